"""Mixing at a layer of any backbone, by the names of its modules.

The batch augment draws partners, share and layer, mixes the labels and keeps the draws. A forward hook on the layer
mixes its output by these draws, until the next batch arrives. A second forward pass of the same batch (activation
checkpointing, an optimizer that looks ahead) is mixed alike.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

from ...core import mix_labels, to_device
from ...utils.errors import UserError, UserTypeError, UserValueError
from ...wrapper import evaluation_mode
from .binding import BoundAugment

INPUT = 'input'  # the images themselves; every other layer is a module of the backbone


class Drawn(NamedTuple):
    """What was drawn for a batch: at which layer, for how many samples, and the arguments of ``mix_features``."""

    layer: str
    count: int
    arguments: Dict[str, torch.Tensor]


class LayerMix(BoundAugment):
    """Base of the batch augments that mix at a layer. A subclass gives :meth:`draw` and ``mix_features``.

    Args:
        layers: One of them is drawn for each batch: ``'input'``, or a module of the backbone (of the whole model, if it
            has no backbone), whose output is mixed.
        rng: Source of numbers. Defaults to None, NumPy's global generator, which mmengine seeds. Permutations come from
            torch's, as those of mmpretrain's Mixup and CutMix.
    """

    needs_map = False  # whether the layer must put out (N, C, H, W)

    def __init__(self, layers: Sequence[str], rng: Any = None):
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
        """Mix the output of a layer, shape ``(N, ...)``, by what was drawn."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------- binding
    def bind(self, model: nn.Module) -> None:
        """Hook the layers of ``model``; raises if there is one that it does not have."""
        self.unbind()
        modules = {layer: self._find(backbone_of(model), layer) for layer in self.layers if layer != INPUT}
        super().bind(model)
        for layer, module in modules.items():
            self._handles.append(module.register_forward_hook(_MixAt(self, layer)))
        if isinstance(getattr(model, 'data_preprocessor', None), nn.Module):
            self._handles.append(model.data_preprocessor.register_forward_pre_hook(self.clear))

    def unbind(self) -> None:
        """Remove the hooks."""
        super().unbind()
        for handle in self._handles:
            handle.remove()
        self._handles, self._sizes, self._drawn = [], {}, None

    def clear(self, *_) -> None:
        """Forget what was drawn: the next batch is not mixed. The data preprocessor calls it before every batch."""
        self._drawn = None

    def _find(self, backbone: nn.Module, layer: str) -> nn.Module:
        try:
            module = backbone.get_submodule(layer)
        except AttributeError:
            raise UserValueError(
                f'{self._name}: layer {layer!r} does not exist in {type(backbone).__name__}. There are '
                f'{INPUT}, {", ".join(stages(backbone))}, and the modules inside them.'
            ) from None
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            inside = ', '.join(f'{layer}.{name}' for name, _ in module.named_children())
            raise UserValueError(
                f'{self._name}: layer {layer!r} of {type(backbone).__name__} is a list of modules, which '
                f'has no output. Name one of {inside}.'
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
        layer = self.layers[self._generator.randint(len(self.layers)) if len(self.layers) > 1 else 0]
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
        arguments = {
            name: to_device(value, inputs.device) if value.ndim else value for name, value in arguments.items()
        }
        if layer == INPUT:
            inputs = self.mix_features(inputs, **arguments)
        else:
            self._drawn = Drawn(layer, len(inputs), arguments)
        return inputs, mix_labels(scores, scores[to_device(index, scores.device)], 1 - lam)

    def mix_output(self, layer: str, output: Any) -> Any:
        """The output of a layer, a tensor or a tuple with tensors, mixed if this batch is to be mixed there."""
        drawn = self._drawn
        if drawn is None or drawn.layer != layer or not backbone_of(self.model).training:
            return output
        if isinstance(output, torch.Tensor):
            return self._mix_tensor(output, drawn)
        if isinstance(output, (list, tuple)) and not hasattr(output, '_fields'):
            return type(output)(
                self._mix_tensor(each, drawn) if isinstance(each, torch.Tensor) else each for each in output
            )
        raise UserTypeError(
            f'{self._name}: layer {layer!r} returns a {type(output).__name__}; a tensor or a tuple of '
            'tensors is needed.'
        )

    def _mix_tensor(self, features: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        if len(features) != drawn.count:
            raise UserError(
                f'{self._name}: {len(features)} samples at layer {drawn.layer!r}, but the batch that was '
                f'drawn for has {drawn.count}. Do not split a batch.'
            )
        return self.mix_features(features, **drawn.arguments)

    # --------------------------------------------------------------------------------------------------------- sizes
    def _size_at(self, layer: str, inputs: torch.Tensor) -> Sequence[int]:
        """Shape, without the batch, of the output of ``layer`` for ``inputs``."""
        size = tuple(inputs.shape[1:])
        if layer == INPUT:
            return size
        if size not in self._sizes:
            self._sizes[size] = self._measure(inputs)
        return self._sizes[size][layer]

    @torch.no_grad()
    def _measure(self, inputs: torch.Tensor) -> Dict[str, tuple]:
        """Pass one image in evaluation mode, which changes nothing in the network, and note every layer's shapes."""
        backbone = backbone_of(self.model)
        passes: Dict[str, List[list]] = {layer: [] for layer in self.layers if layer != INPUT}

        def note(layer: str, output: Any) -> None:
            tensors = output if isinstance(output, (list, tuple)) else (output,)
            passes[layer].append([tuple(each.shape) for each in tensors if isinstance(each, torch.Tensor)])

        handles = [
            backbone.get_submodule(layer).register_forward_hook(lambda _, __, out, layer=layer: note(layer, out))
            for layer in passes
        ]
        try:
            with evaluation_mode(backbone):
                backbone(inputs[:1])
        finally:
            torch.clear_autocast_cache()  # else an older torch trains with weights that were cast without a graph
            for handle in handles:
                handle.remove()
        return {layer: self._check_shapes(layer, shapes) for layer, shapes in passes.items()}

    def _check_shapes(self, layer: str, passes: List[list]) -> tuple:
        if len(passes) != 1:
            backbone = backbone_of(self.model)
            raise UserValueError(
                f'{self._name}: layer {layer!r} runs {len(passes)} times in a forward pass of '
                f'{type(backbone).__name__}; one that runs once is needed, e.g. one of {", ".join(stages(backbone))}.'
            )
        for shape in passes[0]:
            if len(shape) < 2 or shape[0] != 1 or (self.needs_map and len(shape) != 4):
                wanted = '(N, C, H, W)' if self.needs_map else '(N, ...)'
                raise UserValueError(
                    f'{self._name}: layer {layer!r} returns the shape {shape} for one image; {wanted} is needed.'
                )
        return passes[0][0][1:]

    # ---------------------------------------------------------------------------------------------------------- rest
    @property
    def _name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        return f'{self._name}(layers={list(self.layers)})'


def backbone_of(model: nn.Module) -> nn.Module:
    """The backbone of a classifier, or the network itself."""
    backbone = getattr(model, 'backbone', None)
    return backbone if isinstance(backbone, nn.Module) else model


def stages(network: nn.Module) -> List[str]:
    """The names of a network's stages: its children, lists of modules opened."""
    names = []
    for name, module in network.named_children():
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
