"""Feature CutMix as a batch augment."""

from typing import Optional, Sequence

import numpy as np
import torch
from mmpretrain.registry import BATCH_AUGMENTS

from ...regularisers import box_mask, draw_box, feature_cutmix
from .layer_mix import LayerMix, check_positive


@BATCH_AUGMENTS.register_module()
class FeatureCutMix(LayerMix):
    r"""Feature CutMix: `CutMix <https://arxiv.org/abs/1905.04899>`_ at a layer drawn evenly for each batch.

    Box and :math:`\lambda` are those of the layer's own grid. At the layer ``'input'`` it is CutMix.

    Args:
        alpha (float): :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`, above 0. Defaults to 1.0.
        layers (Sequence[str]): ``'input'`` and modules of the backbone that put out maps ``(N, C, H, W)``. Defaults to
            the input, the stem and the first three stages of a ResNet.
        rng (np.random.RandomState, optional): Defaults to None, NumPy's global generator.

    Example:
        >>> data_preprocessor = dict(batch_augments=dict(augments=dict(type='FeatureCutMix', alpha=1.0)))
    """

    needs_map = True

    def __init__(
        self,
        alpha: float = 1.0,
        layers: Sequence[str] = ('input', 'maxpool', 'layer1', 'layer2', 'layer3'),
        rng: Optional[np.random.RandomState] = None,
    ):
        super().__init__(layers, rng)
        self.alpha = check_positive(self._name, 'alpha', alpha)

    def draw(self, count: int, size: Sequence[int]):
        lam = self._generator.beta(self.alpha, self.alpha)
        index = torch.randperm(count)
        height, width = size[-2:]
        box, lam = draw_box(lam, height, width, self._generator)
        return dict(index=index, mask=box_mask(box, height, width)), index, lam

    mix_features = staticmethod(feature_cutmix)
