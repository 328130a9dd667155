"""RecursiveMix around any image classifier that has a feature map.

Example:
    >>> model = RecursiveMixModel(torchvision.models.resnet18(num_classes=100), layer='layer4')
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # fc_roi included
    >>> for epoch in range(epochs):
    ...     model.reset_history()
    ...     for images, labels in loader:
    ...         loss = model(images, labels)
    ...         ...
    >>> torch.save(model.module.state_dict(), 'resnet18.pth')  # the network alone, for deployment
"""

import copy
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import nn

from .core import Consistency, Mix, RecursiveMix

LAYOUTS = ('NCHW', 'NHWC', 'tokens')
MOST_PREFIX_TOKENS = 16  # class, distillation and register tokens that are looked for
MOST_CANDIDATES = 6  # layers that an error message names

InputSize = Union[int, Tuple[int, int], Tuple[int, int, int]]


class _Reading(NamedTuple):
    """How a layer's output is read as a map.

    Args:
        position: Which tensor of the output, in the order of :func:`_tensors`.
        layout: One of :data:`LAYOUTS`.
        prefix: Tokens before the first one that has a place in the image.
        shape: Channels, height and width of the map in the dry run.
    """

    position: int
    layout: str
    prefix: int
    shape: Tuple[int, int, int]


class RecursiveMixModel(nn.Module):
    r"""Train an image classifier with RecursiveMix.

    ``loss = model(images, labels)`` mixes in training, runs the network, and returns cross entropy plus
    ω λ KL. ``logits = model(images)`` is the network as it is. ``model.module`` is the
    network, to be saved and deployed. The ``state_dict`` holds the network and ``fc_roi``, not the history; copies
    and pickles start with an empty history, too.

    One dry run in eval mode finds channels, classes and the layout of the map. ``NHWC`` maps and ``(N, L, C)`` tokens
    are recognised, and class or register tokens are set aside. The network may return a tensor, an object or mapping
    with ``logits``, or a tuple that starts with the logits; further outputs, such as auxiliary logits, get no loss.

    Args:
        module: The classifier. It is called with the images, shape ``(N, C, H, W)``.
        layer: Name of the submodule whose output is the last feature map, as in ``module.named_modules()``.
        alpha: λ ~ U(0, α), in (0, 1].
        omega: Weight of the consistency loss. The default is the paper's on CIFAR; on ImageNet it has 0.5.
        input_size: Size of the dry run's image: ``224``, ``(height, width)`` or ``(channels, height, width)``.
        num_classes: Checked against the network's logits. None: as many as there are logits.
        interpolation: How the historical image is resized, ``'nearest'`` or ``'bilinear'``.
        loss: Called with logits and mixed scores, both float32, ``(N, num_classes)``; returns a scalar. None: the cross
            entropy, or the binary one, summed over classes, with ``multi_label``.
        multi_label: Whether an image has several labels: scores in [0, 1], whatever their sum, sigmoid, and the
            consistency by binary KL.
        label_smoothing: Of the cross entropy in training, in [0, 1). The history keeps unsmoothed labels.
        layout: ``'NCHW'``, ``'NHWC'`` or ``'tokens'`` where the shape leaves it open. None: recognised.
        prefix_tokens: Class and register tokens before the image's tokens. None: ``module.num_prefix_tokens`` as timm
            has it, or as many as leave a grid of the image's aspect ratio.
        rng: Where λ and the box come from, an ``np.random.RandomState``. None: NumPy's global generator.
        prob: How often a batch is mixed, in [0, 1].
        per_sample: Whether each sample has a box of its own; the paper has one per batch.

    Attributes:
        enabled: False switches mixing off, as for the last epochs. The history stays as it is.
        losses: The parts of the last loss, detached: ``cross_entropy`` (of a ``loss`` of your own: ``loss``),
            ``consistency`` (weighted, as it was added), ``kl``, the mean KL of the mixed samples, and ``lam``, the mean
            λ of the batch.
        logits: Of the last batch in training, as it was mixed, detached.
        in_channels: Channels of the feature map.
        num_classes: Number of logits.
    """

    def __init__(
        self,
        module: nn.Module,
        layer: str = 'layer4',
        alpha: float = 0.5,
        omega: float = 0.1,
        input_size: InputSize = 224,
        num_classes: Optional[int] = None,
        interpolation: str = 'nearest',
        label_smoothing: float = 0.0,
        layout: Optional[str] = None,
        prefix_tokens: Optional[int] = None,
        rng: Any = None,
        prob: float = 1.0,
        per_sample: bool = False,
        loss: Optional[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = None,
        multi_label: bool = False,
    ):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f'RecursiveMixModel: module must be a torch.nn.Module, not {type(module).__name__}.')
        if label_smoothing and (loss is not None or multi_label):
            raise ValueError(
                'RecursiveMixModel: label_smoothing applies to the cross entropy only. Smooth in your own loss instead.'
            )
        if layout is not None and layout not in LAYOUTS:
            raise ValueError(f'RecursiveMixModel: layout={layout!r} must be None or one of {LAYOUTS}.')
        if prefix_tokens is not None and (not isinstance(prefix_tokens, int) or prefix_tokens < 0):
            raise ValueError(f'RecursiveMixModel: prefix_tokens={prefix_tokens!r} must be None or an integer >= 0.')
        self.module = module
        self.layer = layer
        self.label_smoothing = label_smoothing
        self.multi_label = multi_label
        self.losses: Dict[str, Any] = {}
        self.logits: Optional[torch.Tensor] = None
        self._tap = _Tap()
        self._scores_checked = False
        self._reading, self.num_classes = _dry_run(module, layer, _size(input_size), layout, prefix_tokens)
        self.in_channels = self._reading.shape[0]
        if num_classes not in (None, self.num_classes):
            raise ValueError(
                f'RecursiveMixModel: num_classes={num_classes}, but {type(module).__name__} gives '
                f'{self.num_classes} logits: leave num_classes out, or build the network with it.'
            )
        self.rm = RecursiveMix(alpha, interpolation, self.num_classes, rng, prob, per_sample)
        device = next((p.device for p in module.parameters()), None)
        self.consistency = Consistency(self.in_channels, self.num_classes, omega, multi_label).to(device)
        self.loss = loss.to(device) if isinstance(loss, nn.Module) else loss
        if loss is not None:
            _try_loss(loss, torch.zeros(2, self.num_classes, device=device))

    @property
    def enabled(self) -> bool:
        return self.rm.enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self.rm.enabled = value

    def reset_history(self) -> None:
        """Empty the history, as at the start of an epoch: the next batch is not mixed."""
        self.rm.reset()

    @torch._disable_dynamo(recursive=False)  # the mixing stays eager, the loss and the network are compiled
    def forward(self, images: torch.Tensor, labels: Optional[torch.Tensor] = None) -> torch.Tensor:
        """The loss of a batch, or, without labels, the logits.

        Args:
            images: Shape ``(N, C, H, W)``.
            labels: Integers, shape ``(N, )``, or scores, shape ``(N, num_classes)``, whose rows sum to 1 unless there
                are several labels per image. In eval mode nothing is mixed, and the history stays as it is.

        Returns:
            The loss, a float32 scalar, or the logits, shape ``(N, num_classes)``.
        """
        if labels is None:
            return _logits(self.module(images))
        self._check_scores(labels)
        if not self.training:
            loss = self._classification_loss(_logits(self.module(images)), labels, smoothing=0.0)
            self.losses = {self._loss_name: loss.detach()}
            return loss
        if getattr(self, '_is_replica', False):
            raise ValueError(
                'RecursiveMixModel: nn.DataParallel copies the model in every step, so a history would '
                'get lost. Use DistributedDataParallel.'
            )
        images, scores, mix = self.rm.mix(images, labels)
        self._tap.start(self.module, self.layer)
        try:
            loss = self._loss(images, scores, mix)
        finally:
            self._tap.stop()
        if mix.prediction is not None:  # here, not in a compiled graph, whose next call overwrites its outputs
            mix.prediction = mix.prediction.clone()
        return loss

    def _check_scores(self, labels: torch.Tensor) -> None:
        """Raise if labels do not fit; a GPU would wait for their values, so there only the first batch is looked at."""
        if labels.ndim != 2:
            if self.multi_label:
                raise ValueError('RecursiveMixModel: multi_label needs scores of shape (N, num_classes).')
            return
        if not len(labels) or (labels.device.type != 'cpu' and self._scores_checked):
            return
        self._scores_checked = True
        values = labels.detach().float() if self.multi_label else labels.detach().float().sum(dim=1)
        low, high = float(values.min()), float(values.max())
        if self.multi_label and not (low >= 0 and high <= 1):
            raise ValueError(f'RecursiveMixModel: scores must be in [0, 1], but they are in [{low:.4g}, {high:.4g}].')
        if not self.multi_label and not (low > 0.99 and high < 1.01):
            raise ValueError(
                f'RecursiveMixModel: scores of one label per image must sum to 1, but rows sum to {low:.4g} to '
                f'{high:.4g}. For several labels per image use multi_label=True.'
            )

    def _loss(self, images: torch.Tensor, scores: torch.Tensor, mix: Mix) -> torch.Tensor:
        """The loss of a mixed batch: what ``torch.compile`` makes one graph of."""
        logits = _logits(self.module(images))
        output, self._tap.output = self._tap.output, None
        if output is None:
            raise ValueError(
                f'RecursiveMixModel: layer {self.layer!r} of {type(self.module).__name__} did not run in '
                'this forward pass, so there is no feature map. Name a layer that every pass calls.'
            )
        height, width = images.shape[-2:]
        feature_map = _to_map(output, self._reading, height, width, self.layer)
        loss = self._classification_loss(logits, scores, self.label_smoothing)
        consistency = self.consistency(mix, feature_map, logits)
        self.logits = logits.detach()
        self.losses = {self._loss_name: loss.detach(), 'consistency': consistency.detach(), **self.consistency.last}
        return loss + consistency

    @property
    def _loss_name(self) -> str:
        return 'cross_entropy' if self.loss is None else 'loss'

    def _classification_loss(self, logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
        logits, integers = logits.float(), labels.ndim == 1
        if self.loss is None and not self.multi_label:
            return F.cross_entropy(logits, labels.long() if integers else labels.float(), label_smoothing=smoothing)
        scores = F.one_hot(labels.long(), self.num_classes).float() if integers else labels.float()
        if self.loss is None:
            return F.binary_cross_entropy_with_logits(logits, scores, reduction='sum') / len(logits)
        return self.loss(logits, scores)

    def __getstate__(self) -> dict:
        # An averaged copy needs no history, and a saved one would carry a batch of images along.
        state = dict(self.__dict__)
        state['rm'] = copy.copy(self.rm)
        state['rm'].reset()
        state['losses'], state['logits'] = {}, None
        return state

    def extra_repr(self) -> str:
        return f'layer={self.layer!r}, rm={self.rm}'


def _try_loss(loss: Callable, logits: torch.Tensor) -> None:
    """Raise if the user's loss does not take mixed scores."""
    name = getattr(loss, '__name__', type(loss).__name__)
    try:
        with torch.no_grad():
            loss(logits, torch.full_like(logits, 1 / logits.shape[1]))
    except Exception as error:
        raise ValueError(
            f'RecursiveMixModel: loss={name} fails on scores of shape (N, num_classes) ({_reason(error)}). '
            'Mixed labels are scores: use a loss for soft labels.'
        ) from error


def _reason(error: Exception) -> str:
    return ' '.join(str(error).split()) or type(error).__name__


class _Tap:
    """Keeps the output of a layer. It is one object for all passes: a graph that was compiled with it serves them all.

    Between two passes there is no hook: copies and pickles of the network are free of it.
    """

    output: Any = None
    _handle: Any = None

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.output = output

    @torch._disable_dynamo
    def start(self, module: nn.Module, layer: str) -> None:
        self.output, self._handle = None, module.get_submodule(layer).register_forward_hook(self)

    @torch._disable_dynamo
    def stop(self) -> None:
        self._handle.remove()
        self.output = self._handle = None


def _logits(output: Any) -> torch.Tensor:
    """The logits in what a classifier returns."""
    if isinstance(output, Mapping) and 'logits' in output:
        output = output['logits']
    else:
        output = getattr(output, 'logits', output)
    if isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, torch.Tensor) or output.ndim != 2:
        what = f'shape {tuple(output.shape)}' if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(
            'RecursiveMixModel: the network must return logits of shape (N, num_classes), or an object '
            f'that has them as `logits`, but it returned {what}.'
        )
    return output


def _tensors(output: Any) -> List[torch.Tensor]:
    """The tensors of a layer's output, nested tuples, lists and mappings included, in order."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = list(output.values())
    return [tensor for part in output for tensor in _tensors(part)] if isinstance(output, (tuple, list)) else []


def _to_map(output: Any, reading: _Reading, height: int, width: int, layer: str) -> torch.Tensor:
    """The output of a layer as a map, shape ``(N, C, h, w)``, for images of ``height`` x ``width`` pixels."""
    tensors = _tensors(output)
    if len(tensors) <= reading.position or tensors[reading.position].ndim != (3 if reading.layout == 'tokens' else 4):
        raise ValueError(
            f'RecursiveMixModel: layer {layer!r} gives {[tuple(t.shape) for t in tensors]}, which is not '
            f'the {reading.layout} output of the dry run in eval mode. Name another layer.'
        )
    tensor = tensors[reading.position]
    if reading.layout == 'NCHW':
        return tensor
    if reading.layout == 'NHWC':
        return tensor.permute(0, 3, 1, 2)
    tokens = tensor[:, reading.prefix :]
    grid = _grid(tokens.shape[1], height, width)
    if grid is None:
        raise ValueError(
            f'RecursiveMixModel: the {tokens.shape[1]} tokens of layer {layer!r}, after {reading.prefix} prefix '
            f'tokens, do not form a grid for {height} x {width} pixels. Set prefix_tokens, or name another layer.'
        )
    return tokens.transpose(1, 2).unflatten(2, grid)


@lru_cache(maxsize=64)
def _grid(tokens: int, height: int, width: int) -> Optional[Tuple[int, int]]:
    """Rows and columns of ``tokens`` that are nearest to the image's aspect ratio; None if none is within a cell."""
    pairs = [(rows, tokens // rows) for rows in range(1, tokens + 1) if tokens % rows == 0]
    if not pairs:
        return None
    distortion, rows = min((_distortion(rows, columns, height, width), rows) for rows, columns in pairs)
    return (rows, tokens // rows) if distortion < max(height, width) else None


def _distortion(rows: int, columns: int, height: int, width: int) -> int:
    """How far a map's aspect ratio is from the image's: 0 if equal, ``height`` or ``width`` for one cell more."""
    return abs(rows * width - columns * height)


def _size(input_size: InputSize) -> Tuple[int, int, int]:
    size = (input_size, input_size) if isinstance(input_size, int) else tuple(input_size)
    size = (3, *size) if len(size) == 2 else size
    if len(size) != 3 or not all(isinstance(n, int) and n > 0 for n in size):
        raise ValueError(
            f'RecursiveMixModel: input_size={input_size!r} must be a number of pixels, (height, width) or '
            '(channels, height, width).'
        )
    return size


def _dry_run(
    module: nn.Module, layer: str, size: Tuple[int, int, int], layout: Optional[str], prefix_tokens: Optional[int]
) -> Tuple[_Reading, int]:
    """Run the network once. Returns how the layer's output is read, and the number of classes."""
    reader = _Reader(size[1], size[2], layout, prefix_tokens, getattr(module, 'num_prefix_tokens', None))
    shapes: Dict[str, List[Tuple[int, ...]]] = {}  # of the layers that ran
    readings: Dict[str, _Reading] = {}  # of those with a map, in the order of their last run

    def note(name: str, output: Any) -> None:
        shapes[name] = [tuple(tensor.shape) for tensor in _tensors(output)]
        readings.pop(name, None)
        if (reading := reader.read(output)) is not None:
            readings[name] = reading

    layers = {name: child for name, child in module.named_modules() if name}
    hooks = [
        child.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, child in layers.items()
    ]
    try:
        logits = _run_in_eval(module, size)
    finally:
        for hook in hooks:
            hook.remove()
    if layer in readings:
        return readings[layer], logits.shape[1]

    network = type(module).__name__
    if layer not in layers:
        problem = f'{network} has no layer {layer!r}'
    elif layer not in shapes:
        problem = f'layer {layer!r} of {network} does not run in a forward pass'
    elif any(len(reader.layouts(shape)) > 1 for shape in shapes[layer]):
        problem = (
            f'the output of layer {layer!r} of {network} may be of layout NCHW or NHWC, which its shape leaves open: '
            f'set layout to one of them (got {shapes[layer]})'
        )
    else:
        problem = f'the output of layer {layer!r} of {network} is not a feature map for this image ({shapes[layer]})'
    raise ValueError(f'RecursiveMixModel: {problem}; {_candidates(readings, size)}.')


def _candidates(readings: Dict[str, _Reading], size: Tuple[int, int, int]) -> str:
    """The layers to choose from: for each shape of a map the last one, outer layers only."""
    maps = {name: r.shape for name, r in readings.items() if r.shape[0] > 1 and r.shape[1] * r.shape[2] > 1}
    outer = {name: shape for name, shape in maps.items() if name.count('.') < 2} or maps
    found: Dict[Tuple[int, int, int], str] = {}
    for name, shape in reversed(outer.items()):
        found.setdefault(shape, name)
    if not found:
        return f'no layer gives a map for an input of {_times(size)}: try a larger input_size'
    names = [f'{name!r} ({c} channels, {h} x {w})' for (c, h, w), name in found.items()]
    return 'layers with a map, last first: ' + ', '.join(names[:MOST_CANDIDATES])


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch every submodule to evaluation; afterwards each has the flag that it had, also norms that are frozen."""
    flags = [(child, child.training) for child in module.modules()]
    try:
        for child, _ in flags:
            child.training = False
        yield
    finally:
        for child, training in flags:
            child.training = training


def _run_in_eval(module: nn.Module, size: Tuple[int, int, int]) -> torch.Tensor:
    """The logits of one grey image. Modes, statistics, gradients and torch's random state stay as they were."""
    parameter = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    image = torch.zeros(1, *size, device=parameter.device, dtype=parameter.dtype)
    devices = [parameter.device] if parameter.device.type == 'cuda' else []
    try:
        with evaluation_mode(module), torch.random.fork_rng(devices), torch.no_grad():
            output = module(image)
    except Exception as error:
        raise ValueError(
            f'RecursiveMixModel: {type(module).__name__} fails on an input of {_times(size)} ({_reason(error)}). '
            'Set input_size: pixels, (height, width) or (channels, height, width).'
        ) from error
    return _logits(output)


def _times(size: Tuple[int, ...]) -> str:
    return ' x '.join(map(str, size))


class _Reader:
    """Recognises maps in the outputs of layers, for one image of ``height`` x ``width`` pixels."""

    def __init__(self, height: int, width: int, layout: Optional[str], prefix: Optional[int], known: Any):
        self.height, self.width = height, width
        self.layout, self.prefix = layout, prefix
        self.known_prefix = [known] if isinstance(known, int) else []
        strides = range(1, max(height, width) + 1)  # one for both axes, rounded down or up
        self.grids = {(height // stride, width // stride) for stride in strides}
        self.grids |= {(-(-height // stride), -(-width // stride)) for stride in strides}

    def read(self, output: Any) -> Optional[_Reading]:
        """The map of an output. Of several, the smallest: a pyramid's last, or the one beside attention weights.

        A pooled ``(1, C, 1, 1)`` beside the map, as Hugging Face's networks have it, does not count.
        """
        found = [reading for index, tensor in enumerate(_tensors(output)) if (reading := self._read(index, tensor))]
        several = [reading for reading in found if reading.shape[1] * reading.shape[2] > 1]
        return min(several or found, key=lambda r: r.shape[1] * r.shape[2], default=None)

    def layouts(self, shape: Tuple[int, ...]) -> List[str]:
        """The layouts of a map with four dimensions: none if it is not a map, both if its shape leaves it open."""
        if len(shape) != 4 or self.layout is not None:
            return [self.layout] if len(shape) == 4 and self.layout in ('NCHW', 'NHWC') else []
        distortions = dict(
            NCHW=_distortion(*shape[2:], self.height, self.width),
            NHWC=_distortion(*shape[1:3], self.height, self.width),
        )
        least = min(distortions.values())  # at most a cell away from the image's aspect ratio
        return [name for name, each in distortions.items() if each == least <= max(self.height, self.width)]

    def _read(self, index: int, tensor: torch.Tensor) -> Optional[_Reading]:
        if len(tensor) != 1 or not tensor.is_floating_point():
            return None
        if tensor.ndim == 3 and self.layout in (None, 'tokens'):
            return self._read_tokens(index, tensor.shape[1], tensor.shape[2])
        layouts = self.layouts(tensor.shape)
        if len(layouts) != 1:
            return None
        a, b, c = tensor.shape[1:]
        return _Reading(index, layouts[0], 0, (a, b, c) if layouts[0] == 'NCHW' else (c, a, b))

    def _read_tokens(self, index: int, tokens: int, channels: int) -> Optional[_Reading]:
        guesses = [*self.known_prefix, *range(MOST_PREFIX_TOKENS + 1)]
        for prefix in guesses if self.prefix is None else [self.prefix]:
            grid = _grid(tokens - prefix, self.height, self.width)
            if grid is not None and (self.prefix is not None or grid in self.grids):
                return _Reading(index, 'tokens', prefix, (channels, *grid))
        return None
