"""Feature CutMix: CutMix of the feature map at a layer that is drawn anew for every batch.

The variant of `CutMix <https://arxiv.org/abs/1905.04899>`_ that its paper compares with. There is no public code; box
and share are drawn on the map's own grid.
"""

from typing import Any, Tuple

import torch

from ..core import Box, sample_box


def draw_box(lam: float, height: int, width: int, rng: Any) -> Tuple[Box, float]:
    r"""Draw the box that the partner fills, sides :math:`\sqrt{1 - \lambda}` of the map's, clipped to the map.

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
