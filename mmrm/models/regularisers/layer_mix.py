"""One mechanism for everything that mixes at a layer: any backbone, by the names of its modules, without a fork of it.

The batch augment draws partners, share and layer, mixes the labels and keeps the draws. A forward hook on the layer
mixes what the layer puts out by these draws, until the next batch arrives. A second forward pass of the same batch
(activation checkpointing, an optimizer that looks ahead) is mixed alike.
"""

import functools
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from ...regularisers import mix_labels
from ...utils.errors import UserError, UserTypeError, UserValueError
from .binding import BoundAugment

INPUT = 'input'  # the images themselves; every other layer is a module of the backbone


class Drawn(NamedTuple):
    """What was drawn for a batch: at which layer, for how many samples, and the arguments of ``mix_features``."""

    layer: str
    count: int
    arguments: Dict[str, torch.Tensor]


class LayerMix(BoundAugment):
    """Base of the batch augments that mix at a layer.

    A subclass gives :meth:`draw` and ``mix_features``.

    Args:
        layers: One of them is drawn for each batch: ``'input'``, or a module of the backbone (of the whole model, if it
            has no backbone), whose output is mixed.
        rng: Where numbers come from. Defaults to None, NumPy's global generator, which mmengine seeds. Permutations
            come from torch's, as those of mmpretrain's Mixup and CutMix.
    """

    needs_map = False  # whether the layer must put out (N, C, H, W)

    def __init__(self, layers: Sequence[str], rng: Optional[np.random.RandomState] = None):
        layers = (layers,) if isinstance(layers, str) else layers
        if not isinstance(layers, (list, tuple)) or not all(isinstance(layer, str) and layer for layer in layers):
            raise UserTypeError(
                f'{self._name}: layers={layers!r} must be a list of names: {INPUT!r}, or modules of '
                "the backbone, e.g. 'layer1'."
            )
        if not layers or len(set(layers)) < len(layers):
            raise UserValueError(f'{self._name}: layers={list(layers)} must name one layer or more, each once.')
        self.layers = tuple(layers)
        self.rng = rng
        self._drawn: Optional[Drawn] = None
        self._handles: list = []
        self._sizes: Dict[tuple, Dict[str, tuple]] = {}

    # ------------------------------------------------------------------------------------------------ of a subclass
    def draw(self, count: int, size: Sequence[int]) -> Tuple[Dict[str, torch.Tensor], torch.Tensor, float]:
        """Draw for a batch.

        Args:
            count: Number of samples.
            size: Shape of what is mixed without the batch: ``(C, H, W)`` of a map.

        Returns:
            The arguments of ``mix_features`` (tensors), the partner of each sample, shape ``(N, )``, and the share that
            it keeps of its own label.
        """
        raise NotImplementedError

    @staticmethod
    def mix_features(features: torch.Tensor, **arguments) -> torch.Tensor:
        """Mix what a layer puts out, shape ``(N, ...)``, by what was drawn."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------- binding
    def bind(self, model: nn.Module) -> None:
        """Hook the layers of ``model``; raises if there is one that it does not have."""
        super().bind(model)
        try:
            modules = {layer: self._find(layer) for layer in self.layers if layer != INPUT}
        except UserError:
            self.unbind()
            raise
        for layer, module in modules.items():
            self._handles.append(module.register_forward_hook(_MixAt(self, layer)))
        if isinstance(getattr(model, 'data_preprocessor', None), nn.Module):
            self._handles.append(model.data_preprocessor.register_forward_pre_hook(_NewBatch(self)))

    def unbind(self) -> None:
        """Remove the hooks."""
        super().unbind()
        for handle in self._handles:
            handle.remove()
        self._handles, self._sizes, self._drawn = [], {}, None

    def clear(self) -> None:
        """Forget what was drawn: the next batch is not mixed. A data preprocessor does it before every batch."""
        self._drawn = None

    @property
    def _root(self) -> nn.Module:
        backbone = getattr(self.model, 'backbone', None)
        return backbone if isinstance(backbone, nn.Module) else self.model

    def _find(self, layer: str) -> nn.Module:
        root = self._root
        try:
            module = root.get_submodule(layer)
        except AttributeError:
            raise UserValueError(
                f'{self._name}: layer {layer!r} does not exist in {type(root).__name__}. There are '
                f'{INPUT}, {", ".join(stages(root))}, and the modules inside them.'
            ) from None
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            inside = ', '.join(f'{layer}.{name}' for name, _ in module.named_children())
            raise UserValueError(
                f'{self._name}: layer {layer!r} of {type(root).__name__} is a list of modules, which '
                f'puts nothing out. Name one of {inside}.'
            )
        return module

    # -------------------------------------------------------------------------------------------------------- mixing
    @torch.compiler.disable  # it draws with NumPy; the mixing itself, in the network's forward pass, is compiled
    def __call__(self, batch_input: torch.Tensor, batch_score: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Draw, mix the labels, and the images if they are the layer; else the layer mixes in the forward pass.

        Args:
            batch_input (Tensor): Images, shape ``(N, C, H, W)``.
            batch_score (Tensor): One-hot or soft labels, shape ``(N, num_classes)``.

        Returns:
            tuple[Tensor, Tensor]: Images and mixed labels, same shapes.
        """
        return self._mix_batch(batch_input, batch_score)

    def _mix_batch(self, inputs: torch.Tensor, scores: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        generator = self._generator
        layer = self.layers[generator.randint(len(self.layers)) if len(self.layers) > 1 else 0]
        return self._mix_at(layer, inputs, scores)

    def _mix_at(self, layer: str, inputs: torch.Tensor, scores: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Draw for one layer and mix there."""
        if scores.ndim != 2 or len(scores) != len(inputs):
            raise UserValueError(
                f'{self._name}: {len(inputs)} images come with labels of shape {tuple(scores.shape)}; '
                'one-hot or soft labels, shape (N, num_classes), are needed.'
            )
        self.clear()
        arguments, index, lam = self.draw(len(inputs), self._size_at(layer, inputs))
        arguments = {name: value.to(inputs.device) if value.ndim else value for name, value in arguments.items()}
        if layer == INPUT:
            inputs = self.mix_features(inputs, **arguments)
        else:
            self._drawn = Drawn(layer, len(inputs), arguments)
        return inputs, mix_labels(scores, index.to(scores.device), lam)

    def mix_output(self, layer: str, output: Any) -> Any:
        """What a layer puts out, mixed if this batch is to be mixed there: a tensor, or a tuple with tensors in it."""
        drawn = self._drawn
        if drawn is None or drawn.layer != layer or not self._root.training:
            return output
        if isinstance(output, torch.Tensor):
            return self._mix_tensor(output, drawn)
        if isinstance(output, (list, tuple)) and not hasattr(output, '_fields'):
            return type(output)(
                self._mix_tensor(each, drawn) if isinstance(each, torch.Tensor) else each for each in output
            )
        raise UserTypeError(
            f'{self._name}: layer {layer!r} puts out a {type(output).__name__}; a tensor or a tuple of '
            'tensors is needed.'
        )

    def _mix_tensor(self, features: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        if len(features) != drawn.count:
            raise UserError(
                f'{self._name}: {len(features)} samples at layer {drawn.layer!r}, but the batch that was '
                f'drawn for has {drawn.count}. A batch must pass the network in one piece.'
            )
        return self.mix_features(features, **drawn.arguments)

    # --------------------------------------------------------------------------------------------------------- sizes
    def _size_at(self, layer: str, inputs: torch.Tensor) -> Sequence[int]:
        """Shape, without the batch, of what ``layer`` puts out for ``inputs``."""
        size = tuple(inputs.shape[1:])
        if layer == INPUT:
            return size
        if size not in self._sizes:
            self._sizes[size] = self._measure(inputs)
        return self._sizes[size][layer]

    @torch.no_grad()
    def _measure(self, inputs: torch.Tensor) -> Dict[str, tuple]:
        """Pass one image in evaluation mode, which changes nothing in the network, and look at every layer."""
        root = self._root
        found: Dict[str, List[tuple]] = {layer: [] for layer in self.layers if layer != INPUT}
        handles = [self._find(layer).register_forward_hook(functools.partial(_note, found[layer])) for layer in found]
        modes = [(module, module.training) for module in root.modules()]
        try:
            for module, _ in modes:
                module.training = False
            root(inputs[:1])
        finally:
            torch.clear_autocast_cache()  # else an older torch trains with weights that were cast without a graph
            for module, training in modes:
                module.training = training
            for handle in handles:
                handle.remove()
        return {layer: self._check_shapes(layer, shapes) for layer, shapes in found.items()}

    def _check_shapes(self, layer: str, passes: List[tuple]) -> tuple:
        if len(passes) != 1:
            raise UserValueError(
                f'{self._name}: layer {layer!r} is run {len(passes)} times in a forward pass of '
                f'{type(self._root).__name__}; one that is run once is needed, e.g. one of '
                f'{", ".join(stages(self._root))}.'
            )
        for shape in passes[0]:
            if len(shape) < 2 or shape[0] != 1 or (self.needs_map and len(shape) != 4):
                wanted = '(N, C, H, W)' if self.needs_map else '(N, ...)'
                raise UserValueError(
                    f'{self._name}: layer {layer!r} puts out the shape {tuple(shape)} for one image; '
                    f'{wanted} is needed.'
                )
        return passes[0][0][1:]

    # ---------------------------------------------------------------------------------------------------------- rest
    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _generator(self):
        return np.random if self.rng is None else self.rng

    def __repr__(self) -> str:
        return f'{self._name}(layers={list(self.layers)})'


def stages(root: nn.Module) -> List[str]:
    """The names of a network's stages: its children, lists of modules opened."""
    names = []
    for name, module in root.named_children():
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            names += [f'{name}.{inner}' for inner in stages(module)]
        else:
            names.append(name)
    return names


class _MixAt:
    """The forward hook of a layer. An object, not a closure, so that a model can be copied and pickled with it."""

    def __init__(self, augment: LayerMix, layer: str):
        self.augment, self.layer = augment, layer

    def __call__(self, module, arguments, output):
        return self.augment.mix_output(self.layer, output)


class _NewBatch:
    """The forward pre-hook of the data preprocessor: what was drawn for the last batch is over."""

    def __init__(self, augment: LayerMix):
        self.augment = augment

    def __call__(self, module, arguments):
        self.augment.clear()


def _note(shapes: list, module, arguments, output) -> None:
    tensors = output if isinstance(output, (list, tuple)) else (output,)
    shapes.append(tuple(tuple(each.shape) for each in tensors if isinstance(each, torch.Tensor)))


def check_positive(owner: str, name: str, value: float) -> float:
    """``value`` if it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UserValueError(f'{owner}: {name}={value!r} must be a number above 0.')
    return float(value)


def check_share(owner: str, name: str, value: float) -> float:
    """``value`` if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise UserValueError(f'{owner}: {name}={value!r} must be a number from 0 to 1.')
    return float(value)
