from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ...models.data_preprocessor import reset_history
from ...models.trio import check_drawn, check_trio
from ...utils.config import datasets


def warn_of_missing_parts(runner) -> None:
    """Log what :func:`mmrm.models.trio.check_trio` finds, and raise what :func:`mmrm.models.trio.check_drawn` does."""
    for dataset, _ in datasets((runner.cfg.get('train_dataloader') or {}).get('dataset')):
        check_drawn(runner.model, dataset.get('pipeline') or [])
    problem = check_trio(runner.model)
    if problem:
        runner.logger.warning(problem)


@HOOKS.register_module()
class ResetHistoryHook(Hook):
    """Empties RecursiveMix's history at the start of every training epoch, as the authors' code does.

    mmengine's iteration-based loop is one long epoch, so there the history is kept until the end. When training starts,
    it warns if a part of RM is missing (:func:`mmrm.models.trio.check_trio`).
    """

    empties_history = True  # a checkpoint at the end of an epoch need not hold it

    def before_train(self, runner) -> None:
        warn_of_missing_parts(runner)

    def before_train_epoch(self, runner) -> None:
        reset_history(runner.model)
