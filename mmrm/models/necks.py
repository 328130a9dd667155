"""Pooling for backbones that return their maps in a list."""

from typing import Sequence, Tuple

import torch
from mmpretrain.models.necks import GlobalAveragePooling
from mmpretrain.registry import MODELS


@MODELS.register_module()
class MapPooling(GlobalAveragePooling):
    """Global average pooling of every map of a list or tuple.

    mmpretrain's own neck takes tuples and tensors only; mmdet's backbones, among them PVTv2, return lists.
    """

    def forward(self, inputs: Sequence[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
        """Maps (N, C, H, W) to vectors (N, C)."""
        return super().forward(tuple(inputs))
