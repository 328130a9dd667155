"""Manifold Mixup as a batch augment."""

from typing import Optional, Sequence

import numpy as np
import torch
from mmpretrain.registry import BATCH_AUGMENTS

from ...regularisers import manifold_mixup
from .layer_mix import LayerMix, check_positive


@BATCH_AUGMENTS.register_module()
class ManifoldMixup(LayerMix):
    r"""`Manifold Mixup <https://arxiv.org/abs/1806.05236>`_: Mixup at a layer drawn evenly for each batch.

    One permutation and one :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)` serve the features and the labels. At the
    layer ``'input'`` it is Mixup.

    Args:
        alpha (float): Above 0. Defaults to 1.0.
        layers (Sequence[str]): ``'input'`` and modules of the backbone. Defaults to the input and the first two stages
            of a ResNet.
        rng (np.random.RandomState, optional): Defaults to None, NumPy's global generator.

    Example:
        >>> data_preprocessor = dict(batch_augments=dict(augments=dict(type='ManifoldMixup', alpha=1.0)))
    """

    def __init__(
        self,
        alpha: float = 1.0,
        layers: Sequence[str] = ('input', 'layer1', 'layer2'),
        rng: Optional[np.random.RandomState] = None,
    ):
        super().__init__(layers, rng)
        self.alpha = check_positive(self._name, 'alpha', alpha)

    def draw(self, count: int, size: Sequence[int]):
        lam = self._generator.beta(self.alpha, self.alpha)
        index = torch.randperm(count)
        # A tensor, as a compiled graph would be compiled anew for every other number.
        return dict(index=index, lam=torch.tensor(lam, dtype=torch.float64)), index, lam

    mix_features = staticmethod(manifold_mixup)
