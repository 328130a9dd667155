"""Feature CutMix: CutMix of the feature map at a layer that is drawn for every batch.

The variant of `CutMix <https://arxiv.org/abs/1905.04899>`_ that its paper compares with. There is no public code; box
and share are drawn on the map's own grid.
"""

from typing import Any, Sequence, Tuple

import torch

from ...core import Box, sample_box
from ...utils.errors import check_numbers
from .layer_mix import LayerMix


def draw_box(lam: float, height: int, width: int, rng: Any) -> Tuple[Box, float]:
    r"""Draw the box that the partner fills, sides √(1 - λ) of the map's, clipped to the map.

    Args:
        lam: The share that a sample keeps, as drawn.
        height: Of the map, in cells.
        width: Of the map, in cells.
        rng: Has ``randint``.

    Returns:
        The box, and the share that a sample really keeps: one minus the clipped box's share of the map.
    """
    box = sample_box(1 - lam, height, width, rng)
    return box, 1 - box.area / (height * width)


def box_mask(box: Box, height: int, width: int) -> torch.Tensor:
    """The box as a bool map, shape ``(height, width)``."""
    mask = torch.zeros(height, width, dtype=torch.bool)
    mask[box.y1 : box.y2, box.x1 : box.x2] = True
    return mask


def feature_cutmix(features: torch.Tensor, index: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Fill the masked cells with the partner's.

    Args:
        features: Shape ``(N, C, H, W)``.
        index: Partner of each sample, shape ``(N, )``.
        mask: From :func:`box_mask`, shape ``(H, W)``. A mask, not a box, so that a compiled graph serves every box.
    """
    return torch.where(mask, features[index], features)


class FeatureCutMix(LayerMix):
    r"""Feature CutMix at a layer drawn evenly for each batch. At the layer ``'input'`` it is CutMix.

    Args:
        alpha (float): λ ~ Beta(α, α), above 0. Defaults to 1.0.
        layers (Sequence[str]): ``'input'`` and modules of the backbone that put out maps ``(N, C, H, W)``. Defaults to
            the input, the stem and the first three stages of a ResNet.
        rng (np.random.RandomState, optional): Defaults to None, NumPy's global generator.

    Example:
        >>> data_preprocessor = dict(batch_augments=dict(augments=dict(type='FeatureCutMix', alpha=1.0)))
    """

    needs_map = True
    mix_features = staticmethod(feature_cutmix)

    def __init__(
        self,
        alpha: float = 1.0,
        layers: Sequence[str] = ('input', 'maxpool', 'layer1', 'layer2', 'layer3'),
        rng: Any = None,
    ):
        super().__init__(layers, rng)
        check_numbers(self._name, 0, above=True, alpha=alpha)
        self.alpha = alpha

    def draw(self, count: int, size: Sequence[int]):
        lam = self._generator.beta(self.alpha, self.alpha)
        index = torch.randperm(count)
        height, width = size[-2:]
        box, lam = draw_box(lam, height, width, self._generator)
        return dict(index=index, mask=box_mask(box, height, width)), index, lam
