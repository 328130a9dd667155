"""Channels last: how convolutions in low precision like their tensors."""

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch.nn.parallel import DistributedDataParallel


@HOOKS.register_module()
class ChannelsLastHook(Hook):
    """Keeps the model's weights channels last; the feature maps follow.

    Results differ by rounding, and where masks are drawn (dropout) by the order of the draws.
    """

    def before_train(self, runner) -> None:  # after the weights were drawn, which is done in the order of the layout
        runner.model.to(memory_format=torch.channels_last)
        wrapped = isinstance(runner.model, DistributedDataParallel)
        if wrapped and 'train_step' not in vars(runner.model):  # mmengine puts a compiled one there
            # DDP made its buckets for the old layout: every gradient would be copied from one to the other.
            runner.model = runner.wrap_model(runner.cfg.get('model_wrapper_cfg'), runner.model.module)
