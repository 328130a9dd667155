"""Exact resume: a run that was stopped at an epoch's end and resumed is the run that was never stopped."""

import random
import warnings
from typing import List, Optional

import numpy as np
import torch
from mmengine.dist import all_gather_object, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.registry import FUNCTIONS, HOOKS

from ...utils.random_state import get_random_state, set_random_state
from ..loops import RANDOM_KEY, SEED_KEY, ResumableLoop


@HOOKS.register_module()
class RandomStateHook(Hook):
    """Saves every process's random state with each checkpoint and restores it, under mmengine's own Runner.

    The Runner of the tools does more by itself (:mod:`mmrm.engine.loops`) and does not need this hook.

    The state is taken at the end of a training epoch and set again at the start of the next one, in a run that resumes
    as in a run that resumes, so that validation in between changes nothing. With workers the train data loader also
    needs ``worker_init_fn=dict(type='rm_worker_init')`` and ``persistent_workers=False``.

    In iteration-based loops it does nothing before the end: mmengine does not return to the same place in the data.
    """

    # Before the checkpoint is written, and before any other hook draws a number.
    priority = 'VERY_HIGH'

    _states: Optional[List[dict]] = None

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        if not runner._resume or isinstance(runner.train_loop, ResumableLoop):  # a new run; it takes what it needs
            return
        states = checkpoint.get(RANDOM_KEY)
        if states is not None and len(states) != get_world_size():
            warnings.warn(
                f'The checkpoint holds the random state of {len(states)} process(es) and this run has '
                f'{get_world_size()}: training continues, but not exactly.',
                stacklevel=2,
            )
            states = None
        self._states = states
        # Without a seed in the config the sampler of this run was built with another one.
        if SEED_KEY in checkpoint and hasattr(runner.train_dataloader.sampler, 'seed'):
            runner.train_dataloader.sampler.seed = checkpoint[SEED_KEY]

    def before_train_epoch(self, runner) -> None:
        if self._states is not None:
            set_random_state(self._states[get_rank()])

    def after_train_epoch(self, runner) -> None:
        self._states = all_gather_object(get_random_state())

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        if self._states is not None:
            checkpoint[RANDOM_KEY] = self._states
            if hasattr(runner.train_dataloader.sampler, 'seed'):
                checkpoint[SEED_KEY] = runner.train_dataloader.sampler.seed


@FUNCTIONS.register_module()
def rm_worker_init(worker_id: int) -> None:
    """Seed a data-loader worker from the main process's generator.

    mmengine gives a new worker the same constant in every epoch, so that each epoch repeats its random crops. torch
    draws a base seed from the main process when an epoch starts; that one differs between epochs and is part of what
    :class:`RandomStateHook` saves.
    """
    seed = (torch.initial_seed() + 1_000_003 * get_rank()) % 2**32
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
