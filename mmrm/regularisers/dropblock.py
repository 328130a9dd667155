r"""DropBlock: dropout of square regions of a feature map.

`DropBlock: A regularization method for convolutional networks <https://arxiv.org/abs/1810.12890>`_. Unlike
torchvision's operator, it takes blocks of any size, also even ones.
"""

from typing import Tuple

import torch
import torch.nn.functional as F


def gamma(keep_prob: float, block_size: int, height: int, width: int) -> float:
    r"""The probability that a block begins at a place where it fits: about ``keep_prob`` of all cells are then kept.

    .. math::
        \gamma = \frac{1 - \mathrm{keep}}{b^2} \cdot \frac{H W}{(H - b + 1)(W - b + 1)}
    """
    return (1 - keep_prob) * height * width / (block_size**2 * (height - block_size + 1) * (width - block_size + 1))


def keep_rate(progress: float, keep_prob: float) -> float:
    """The keep rate at a point of training, ``progress`` from 0 to 1: from 1 on a line down to ``keep_prob``."""
    return 1 - (1 - keep_prob) * min(max(progress, 0.0), 1.0)


def block_mask(shape: Tuple[int, int, int, int], block_size: int, keep_prob: float, device=None) -> torch.Tensor:
    """Draw what is kept: 1, and 0 in blocks of ``block_size`` x ``block_size`` cells, float32, of the given shape.

    The blocks lie inside the map and may overlap. Each channel of each sample has its own.
    """
    height, width = shape[2:]
    # Where the blocks begin; a max pool grows each cell to a block.
    begins = torch.empty(*shape[:2], height - block_size + 1, width - block_size + 1, device=device)
    begins.bernoulli_(gamma(keep_prob, block_size, height, width))
    return 1 - F.max_pool2d(F.pad(begins, [block_size - 1] * 4), block_size, stride=1)


def drop_block(features: torch.Tensor, block_size: int, keep_prob: float) -> torch.Tensor:
    """Zero random blocks and scale what is left by cells / kept cells.

    Args:
        features: Shape ``(N, C, H, W)``.
        block_size: Side of a block in cells, at most that of the map (a larger one becomes the map's shorter side).
        keep_prob: About which share of the cells is kept, in (0, 1].

    Returns:
        Same shape and type.
    """
    if features.ndim != 4:
        raise ValueError(f'DropBlock needs maps (N, C, H, W), but got features of shape {tuple(features.shape)}.')
    if keep_prob >= 1:
        return features
    mask = block_mask(features.shape, min(block_size, *features.shape[2:]), keep_prob, features.device)
    # Counted in float32: the number of cells is beyond float16's range.
    mask = mask * (mask.numel() / (mask.sum() + 1e-6))
    return features * mask.to(features.dtype)
