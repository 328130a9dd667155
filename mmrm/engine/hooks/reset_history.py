from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ...models.data_preprocessor import reset_history


@HOOKS.register_module()
class ResetHistoryHook(Hook):
    """Empties RecursiveMix's history at the start of every training epoch, as the authors' code does.

    mmengine's iteration-based loop is one long epoch, so there the history is kept until the end.
    """

    def before_train_epoch(self, runner) -> None:
        reset_history(runner.model)
