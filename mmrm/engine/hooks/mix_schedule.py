"""Mixing in some epochs only."""

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop

from ...models.data_preprocessor import RMDataPreprocessor, augments_of
from ...utils.errors import UserValueError, check_numbers
from ..batched_images import unwrapped


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
        last = runner.max_epochs - self.last_epochs
        mixing = self.first_epochs <= runner.epoch < last
        unwrapped(runner.model).data_preprocessor.mixing = mixing
