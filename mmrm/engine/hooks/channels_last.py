"""Channels last: how convolutions in low precision like their tensors."""

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class ChannelsLastHook(Hook):
    """Keeps the model's weights channels last; the feature maps follow.

    Results differ by rounding, and where masks are drawn (dropout) by the order of the draws.
    """

    def before_train(self, runner) -> None:  # after the weights were drawn, which is done in the order of the layout
        runner.model.to(memory_format=torch.channels_last)
