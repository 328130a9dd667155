"""DropBlock in a network that was built without it."""

import fnmatch
from typing import List, Sequence

import torch
from torch import nn

from ...regularisers import drop_block
from ...utils.errors import UserTypeError, UserValueError
from .layer_mix import check_share, stages


class DropBlock:
    """Drops blocks of what modules put out, while their network trains.

    :func:`attach` makes it the forward hook of some modules. Its masks come from torch's generator of the device.

    Args:
        block_size (int): Side of a block in cells of the map, 1 or more, even or odd. A map that is smaller is dropped
            or kept as a whole along its shorter side.
        keep_prob (float): About which share of the cells is kept, in (0, 1]. May be changed while training.
    """

    def __init__(self, block_size: int, keep_prob: float):
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise UserValueError(f'DropBlock: block_size={block_size!r} must be a whole number, 1 or more.')
        if check_share('DropBlock', 'keep_prob', keep_prob) == 0:
            raise UserValueError('DropBlock: keep_prob=0 would drop everything; it must be above 0 and at most 1.')
        self.block_size = block_size
        self.keep_prob = keep_prob
        self.network = None

    def __call__(self, module: nn.Module, arguments: tuple, output: torch.Tensor) -> torch.Tensor:
        # The network's mode, not the module's: a frozen BN is in evaluation mode inside a network that trains.
        return drop_block(output, self.block_size, self.keep_prob) if self.network.training else output

    def __repr__(self) -> str:
        return f'DropBlock(block_size={self.block_size}, keep_prob={self.keep_prob})'


def attach(model: nn.Module, dropblock: DropBlock, modules: Sequence[str]) -> List[str]:
    """Hook DropBlock behind the modules of a network that match one of several patterns.

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
    network = model.backbone if isinstance(getattr(model, 'backbone', None), nn.Module) else model
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
