"""Signs of life for the launcher."""

from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ..supervision import beat


@HOOKS.register_module()
class HeartbeatHook(Hook):
    """Tells the launcher of ``dist_train.sh`` what this process does, so that it finds one that hangs.

    A process that waits for its data is behind one that waits for the others.
    """

    priority = 'VERY_HIGH'

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        beat(f'got its batch of iteration {runner.iter + 1}', place(runner.iter + 1))

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        beat(f'was done with iteration {runner.iter + 1}', place(runner.iter + 1, 1))

    def before_save_checkpoint(self, runner, checkpoint) -> None:
        beat('began to write a checkpoint')

    def before_val_iter(self, runner, batch_idx, data_batch=None) -> None:
        beat(f'got batch {batch_idx + 1} of a validation', place(iterations(runner), 2 * batch_idx + 2))

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        beat(f'was done with batch {batch_idx + 1} of a validation', place(iterations(runner), 2 * batch_idx + 3))

    before_test_iter, after_test_iter = before_val_iter, after_val_iter


def place(iteration: int, step: int = 0) -> int:
    """A number that grows in the course of a run."""
    return 10_000_000 * iteration + step


def iterations(runner) -> int:
    """How many are done; 0 in a test."""
    return runner.iter if runner._train_loop is not None else 0
