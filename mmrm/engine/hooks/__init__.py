"""Hooks that mmengine lacks."""
# ruff: noqa: F401

from .bind_augments import BindAugmentsHook
from .channels_last import ChannelsLastHook
from .check_classes import CheckClassesHook
from .crash_safe_checkpoint import CrashSafeCheckpointHook
from .dropblock import DropBlockHook
from .log_consistency import LogConsistencyHook
from .mix_schedule import MixScheduleHook
from .mixed_batches import MixedBatchesHook
from .non_finite import NonFiniteLossHook, TrainingDivergedError
from .random_state import RandomStateHook, rm_worker_init
from .reset_history import ResetHistoryHook
