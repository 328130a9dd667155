"""Hooks around the mixing: RM's history, when batches are mixed, and the model that some augments need."""

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop

from ...models.check_parts import check_drawn_colors, check_head_norm, missing_parts
from ...models.data_preprocessor import RMDataPreprocessor, augments_of, reset_history
from ...models.regularisers.binding import bind_augments, unbind_augments
from ...utils.config import datasets
from ...utils.errors import UserValueError, check_numbers
from ..batched_images import unwrapped


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


@HOOKS.register_module()
class MixScheduleHook(Hook):
    """Switches RecursiveMix, or any other batch augment, off in the first and the last epochs of a run.

    Off, a batch stays as it is and RM's history is left alone. Whether an epoch mixes depends on its number only, so a
    resumed run continues as it would have.

    Args:
        first_epochs (int): Epochs at the start that are not mixed, a warm-up. Defaults to 0.
        last_epochs (int): Epochs at the end that are not mixed. Defaults to 0.
    """

    def __init__(self, first_epochs: int = 0, last_epochs: int = 0):
        check_numbers('MixScheduleHook', 0, integer=True, first_epochs=first_epochs, last_epochs=last_epochs)
        self.first_epochs, self.last_epochs = first_epochs, last_epochs

    def before_train(self, runner) -> None:
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            raise UserValueError('MixScheduleHook counts epochs: it needs train_cfg=dict(by_epoch=True, ...).')
        preprocessor = unwrapped(runner.model).data_preprocessor
        if not isinstance(preprocessor, RMDataPreprocessor) or not augments_of(preprocessor):
            raise UserValueError('MixScheduleHook: there is no RMDataPreprocessor with batch_augments.')
        if self.first_epochs + self.last_epochs >= runner.max_epochs:
            raise UserValueError(
                f'MixScheduleHook: first_epochs={self.first_epochs} and last_epochs={self.last_epochs} leave none of '
                f'{runner.max_epochs} epochs to mix.'
            )

    def before_train_epoch(self, runner) -> None:
        mixing = self.first_epochs <= runner.epoch < runner.max_epochs - self.last_epochs
        unwrapped(runner.model).data_preprocessor.mixing = mixing


@HOOKS.register_module()
class BindAugmentsHook(Hook):
    """Gives the model to the batch augments that need it (Manifold Mixup, MoEx, PuzzleMix ...), before training.

    What is wrong with them, a layer that the backbone does not have, stops the run here. It does nothing where there is
    no such augment.
    """

    def before_train(self, runner) -> None:
        bind_augments(unwrapped(runner.model))

    def after_train(self, runner) -> None:
        unbind_augments(unwrapped(runner.model))
