from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ...models.check_parts import check_drawn_colors, check_head_norm, missing_parts
from ...models.data_preprocessor import reset_history
from ...utils.config import datasets


def check_model_parts(runner) -> None:
    """Run the checks of :mod:`mmrm.models.check_parts`: raise on what cannot train, log a missing part of RM."""
    check_head_norm(runner.model)
    for dataset, _ in datasets((runner.cfg.get('train_dataloader') or {}).get('dataset')):
        check_drawn_colors(runner.model, dataset.get('pipeline') or [])
    problem = missing_parts(runner.model)
    if problem:
        runner.logger.warning(problem)


@HOOKS.register_module()
class ResetHistoryHook(Hook):
    """Empties RecursiveMix's history at the start of every training epoch, as the authors' code does.

    mmengine's iteration-based loop is one long epoch, so there the history is kept until the end. When training starts,
    it warns if a part of RM is missing (:func:`mmrm.models.check_parts.missing_parts`).
    """

    empties_history = True  # a checkpoint at the end of an epoch need not hold it

    def before_train(self, runner) -> None:
        check_model_parts(runner)

    def before_train_epoch(self, runner) -> None:
        reset_history(runner.model)
