"""Batch augments that need the model get it."""

from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ...models.regularisers.binding import bind_augments, unbind_augments
from ..batched_images import unwrapped


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
