"""Hooks that mmengine lacks."""
# ruff: noqa: F401

from ..classes import CheckClassesHook
from .channels_last import ChannelsLastHook
from .crash_safe_checkpoint import CrashSafeCheckpointHook
from .dropblock import DropBlockHook
from .log_consistency import LogConsistencyHook
from .mixed_batches import MixedBatchesHook
from .mixing import BindAugmentsHook, MixScheduleHook, ResetHistoryHook
from .non_finite import NonFiniteLossHook, TrainingDivergedError
from .random_state import RandomStateHook, rm_worker_init
