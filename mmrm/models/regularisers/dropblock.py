r"""DropBlock: dropout of square regions of a feature map, in a network that was built without it.

`DropBlock: A regularization method for convolutional networks <https://arxiv.org/abs/1810.12890>`_. Unlike
torchvision's operator, it takes blocks of any size, also even ones.
"""

import fnmatch
from typing import List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from ...utils.errors import UserTypeError, UserValueError, check_numbers
from .layer_mix import backbone_of, stages


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


class DropBlock:
    """A forward hook that drops blocks of a module's output while the network trains. See :func:`attach`.

    Args:
        block_size (int): Side of a block in cells of the map, 1 or more, even or odd.
        keep_prob (float): About which share of the cells is kept, in (0, 1]. May be changed while training.
    """

    def __init__(self, block_size: int, keep_prob: float):
        check_numbers('DropBlock', 1, integer=True, block_size=block_size)
        check_numbers('DropBlock', 0, 1, keep_prob=keep_prob)
        if keep_prob == 0:
            raise UserValueError('DropBlock: keep_prob=0 would drop everything; it must be above 0 and at most 1.')
        self.block_size, self.keep_prob = block_size, float(keep_prob)
        self.network: Optional[nn.Module] = None

    def __call__(self, module: nn.Module, arguments: tuple, output: torch.Tensor) -> torch.Tensor:
        # The network's mode, not the module's: a frozen BN is in evaluation mode inside a network that trains.
        return drop_block(output, self.block_size, self.keep_prob) if self.network.training else output

    def __repr__(self) -> str:
        return f'DropBlock(block_size={self.block_size}, keep_prob={self.keep_prob})'


def attach(model: nn.Module, dropblock: DropBlock, modules: Sequence[str]) -> List[str]:
    """Put DropBlock after the modules of a network that match one of several patterns.

    Where a pattern ends in the name of an attribute that is None (``downsample`` of a residual block whose skip is the
    identity), an ``nn.Identity`` takes its place, so that the skip can be hooked. It has no parameters.

    Args:
        model: A classifier, whose backbone is meant, or any network.
        dropblock: What to attach; one serves all modules.
        modules: Shell patterns of module names, e.g. ``'layer[34].*.bn[123]'``.

    Returns:
        The names of the modules that were hooked, each once.
    """
    if isinstance(modules, str) or not all(isinstance(pattern, str) for pattern in modules):
        raise UserTypeError(f'DropBlock: modules={modules!r} must be a list of patterns of module names.')
    network = backbone_of(model)
    found = {}
    for pattern in modules:
        parent, _, last = pattern.rpartition('.')
        for name, module in network.named_modules():
            free = getattr(module, last, 0) is None and last not in {**module._parameters, **module._buffers}
            if parent and free and fnmatch.fnmatchcase(name, parent):
                setattr(module, last, nn.Identity())
        matching = {
            name: module for name, module in network.named_modules() if name and fnmatch.fnmatchcase(name, pattern)
        }
        if not matching:
            raise UserValueError(
                f'DropBlock: no module of {type(network).__name__} matches {pattern!r}. Its stages '
                f'are {", ".join(stages(network))}.'
            )
        found.update(matching)
    dropblock.network = network
    for module in found.values():
        module.register_forward_hook(dropblock)
    return list(found)


def detach(model: nn.Module) -> None:
    """Take every DropBlock off a network."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, DropBlock):
                del module._forward_hooks[key]
