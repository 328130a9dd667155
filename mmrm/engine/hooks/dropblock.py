"""DropBlock over a training run."""

from typing import Sequence

from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ...models.regularisers.dropblock import DropBlock, attach, detach, keep_rate
from ...utils.errors import UserValueError
from ..batched_images import unwrapped

SCHEDULES = ('linear', 'constant')


@HOOKS.register_module()
class DropBlockHook(Hook):
    """Puts DropBlock after modules of the backbone and lowers the keep rate over training.

    The rate depends on the iteration's number alone, so that a resumed run continues as it would have.

    Args:
        block_size (int): Side of a block in cells of the map, even or odd.
        keep_prob (float): The keep rate, in (0, 1].
        modules (Sequence[str]): Patterns of module names, see :func:`mmrm.models.regularisers.dropblock.attach`.
        schedule (str): ``'linear'``: from 1 in the first iteration to ``keep_prob`` at the end; or ``'constant'``.
            Defaults to ``'linear'``.
    """

    def __init__(self, block_size: int, keep_prob: float, modules: Sequence[str], schedule: str = 'linear'):
        if schedule not in SCHEDULES:
            raise UserValueError(f'DropBlockHook: schedule={schedule!r} must be one of {SCHEDULES}.')
        self.dropblock = DropBlock(block_size, keep_prob)
        self.keep_prob = keep_prob
        self.modules = modules
        self.schedule = schedule

    def attach(self, model) -> None:
        """Put DropBlock into a model, once, at the keep rate of training's end."""
        model = unwrapped(model)
        detach(model)
        self._names = attach(model, self.dropblock, self.modules)

    def before_train(self, runner) -> None:
        self.attach(runner.model)
        runner.logger.info(f'{self.dropblock} after {len(self._names)} modules, e.g. {self._names[-1]}')

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        if self.schedule == 'linear':
            self.dropblock.keep_prob = keep_rate(runner.iter / runner.max_iters, self.keep_prob)

    def after_train(self, runner) -> None:
        detach(unwrapped(runner.model))
