r"""StyleCutMix (Hong, Choi, Kim, CVPR 2021), with its automatic gamma.

CutMix of two images, each of which also takes on the other's style. With the box B of the sample itself, the
share r_s of its own style and AdaIN's stylisation x_12 (content of 1, style of 2):

.. math::
    g_{12} &= \gamma\, x_1 + (1 - \gamma)\, x_{12}, \qquad \gamma = \tanh(D[y_1, y_2] / \delta) \\
    \tilde x &= B \odot (r_s\, x_1 + (1 - r_s)\, g_{12}) + (1 - B) \odot ((1 - r_s)\, x_2 + r_s\, g_{21}) \\
    \lambda &= r\, |B| + (1 - r) (\gamma\, |B| + (1 - \gamma)\, r_s)

Far classes (a large D) keep their own styles. The style network needs RGB in 0..1.
"""

from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from torch import nn

from ...core import Box, mix_labels, sample_box, to_device
from ...utils.errors import UserError, UserFileError, UserTypeError, UserValueError, check_numbers
from .binding import BoundAugment
from .pixels import check_preprocessor, from_pixels, to_pixels

EPS = 1e-5
# Encoder: VGG-19 from a 1x1 convolution (pixels to what it was trained on) to relu4_1; a number is a convolution to so
# many channels, 'M' a pooling. The published file ends with relu5_4.
ENCODER = (64, 64, 'M', 128, 128, 'M', 256, 256, 256, 256, 'M', 512)
DEEPER = (32, 35, 38, 42, 45, 48, 51)  # the convolutions beyond relu4_1
DECODER = (256, 'U', 256, 256, 256, 128, 'U', 128, 64, 'U', 64, 3)
STYLE_LAYERS = (3, 10, 17, 30)  # relu1_1, relu2_1, relu3_1, relu4_1
SHRINKS_BY = 8  # from the image to relu4_1
WHERE = 'docs/regularisers.md says where the original one is published and how to make your own.'


# ------------------------------------------------------------------------------------------------------------ network
def _layers(channels: int, plan: Iterable) -> List[nn.Module]:
    layers: List[nn.Module] = []
    for step in plan:
        if step == 'M':
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        elif step == 'U':
            layers.append(nn.Upsample(scale_factor=2, mode='nearest'))
        else:
            layers += [nn.ReflectionPad2d(1), nn.Conv2d(channels, step, 3), nn.ReLU()]
            channels = step
    return layers


def build_encoder(weights: Mapping[str, torch.Tensor], name: str = 'encoder') -> nn.Sequential:
    """AdaIN's encoder with weights: ``(N, 3, H, W)`` in 0..1 to relu4_1, ``(N, 512, H / 8, W / 8)``.

    Args:
        weights: State dict of ``vgg_normalised.pth``: ``'0.weight'``, ``'0.bias'``, ``'2.weight'`` ... Layers beyond
            relu4_1 may be in it and are not used.
        name: What errors call it.

    Raises:
        UserValueError: If a layer is missing, unknown or of another shape.
    """
    unused = {f'{layer}.{kind}' for layer in DEEPER for kind in ('weight', 'bias')}
    weights = {key: value for key, value in weights.items() if key not in unused}
    return _loaded(nn.Sequential(nn.Conv2d(3, 3, 1), *_layers(3, ENCODER)), weights, name)


def build_decoder(weights: Mapping[str, torch.Tensor], name: str = 'decoder') -> nn.Sequential:
    """AdaIN's decoder with weights: relu4_1 back to an image in 0..1, 8 times as large.

    Args:
        weights: State dict of ``decoder.pth``: ``'1.weight'``, ``'1.bias'``, ``'5.weight'`` ...
        name: What errors call it.

    Raises:
        UserValueError: If a layer is missing, unknown or of another shape.
    """
    return _loaded(nn.Sequential(*_layers(512, DECODER)[:-1]), weights, name)  # no ReLU at the end


def _loaded(network: nn.Sequential, weights: Mapping[str, torch.Tensor], name: str) -> nn.Sequential:
    try:
        network.load_state_dict({key: value.float() for key, value in weights.items()})
    except (RuntimeError, AttributeError) as error:  # names what is missing, unknown or of another shape
        raise UserValueError(
            f'{name}: these are not the weights of that network. The layout is that of the public PyTorch port of '
            f'AdaIN: {WHERE} {" ".join(str(error).split())[:300]}'
        ) from None
    return network.eval().requires_grad_(False)


def moments(features: torch.Tensor, eps: float = EPS) -> Tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each channel over the image, float32, shapes ``(N, C, 1, 1)``."""
    variance, mean = torch.var_mean(features.float(), dim=(2, 3), keepdim=True)
    return mean, (variance + eps).sqrt()


def adain(content: torch.Tensor, style: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The content's features with the moments of the style's. Both have shape ``(N, C, h, w)``."""
    content_mean, content_std = moments(content, eps)
    style_mean, style_std = moments(style, eps)
    return (content - content_mean) / content_std * style_std + style_mean


# ---------------------------------------------------------------------------------------------------------- distances
def style_vectors(encoder: nn.Sequential, images: torch.Tensor, size: int = 224) -> torch.Tensor:
    """Moments of relu1_1 to relu4_1, side by side: what the distance of two classes compares.

    Args:
        encoder: Of :func:`build_encoder`.
        images: RGB in 0..1, shape ``(N, 3, H, W)``.
        size: To which the images are resized, in pixels.

    Returns:
        Shape ``(N, 1920)``, float32.
    """
    found: List[torch.Tensor] = []
    x = _resize(images, (size, size))
    for number, layer in enumerate(encoder):
        x = layer(x)
        if number in STYLE_LAYERS:
            found += moments(x)
    return torch.cat(found, dim=1).flatten(1)


@torch.no_grad()
def class_distances(
    encoder: nn.Sequential, batches: Iterable[Tuple[torch.Tensor, torch.Tensor]], num_classes: int, size: int = 224
) -> torch.Tensor:
    """The distance of every two classes: mean square difference of their mean style vectors.

    Args:
        encoder: Of :func:`build_encoder`.
        batches: Pairs of images, RGB in 0..1, shape ``(N, 3, H, W)``, and labels, shape ``(N, )``.
        num_classes: Number of classes, ``K``.
        size: To which the images are resized, in pixels.

    Returns:
        Shape ``(K, K)``, float32. NaN for a class without images.
    """
    sums: Dict[int, torch.Tensor] = {}
    counts = torch.zeros(num_classes, dtype=torch.float64)
    for images, labels in batches:
        for vector, label in zip(style_vectors(encoder, images, size).cpu().double(), labels.tolist()):
            sums[label] = sums[label] + vector if label in sums else vector
            counts[label] += 1
    length = len(next(iter(sums.values()))) if sums else 1
    means = torch.stack([sums.get(label, torch.zeros(length, dtype=torch.float64)) for label in range(num_classes)])
    means = means / counts[:, None]  # 0 / 0 is NaN
    return torch.stack([(means - mean).square().mean(dim=1) for mean in means]).float()


def check_distances(distances: torch.Tensor, num_classes: int, name: str = 'distances') -> torch.Tensor:
    """The class distances as float32, shape ``(K, K)``.

    Raises:
        UserValueError: If the matrix has another size, or a class has no distance (NaN, infinite or negative).
    """
    wanted = f'a matrix of {num_classes} x {num_classes}, a distance for every two classes,'
    if not isinstance(distances, torch.Tensor):
        raise UserValueError(f'{name} must be {wanted} but is a {type(distances).__name__}.')
    if distances.shape != (num_classes, num_classes):
        raise UserValueError(f'{name} must be {wanted} but has shape {tuple(distances.shape)}.')
    distances = distances.float()
    bad = ~distances.isfinite() | (distances < 0)
    if bad.any():
        # A class whose row is bad throughout makes every other row bad in one place: name the class, not the others.
        rows = bad.all(dim=1).nonzero().flatten().tolist()
        row, column = bad.nonzero()[0].tolist()
        first = f'classes {", ".join(map(str, rows[:8]))}' if rows else f'the classes {row} and {column}'
        raise UserValueError(f'{name}: there is no distance for {first} (a number >= 0 is needed in rows and columns).')
    return distances


# ----------------------------------------------------------------------------------------------------------------- mix
def style_gamma(
    distances: torch.Tensor, labels: torch.Tensor, partners: torch.Tensor, delta: float = 1.0, same_class: float = 2.0
) -> torch.Tensor:
    r"""γ = tanh(D[y_1, y_2] / δ), the share of its own style that each sample keeps for sure.

    Args:
        distances: Shape ``(K, K)``.
        labels: Classes of the samples, shape ``(N, )``.
        partners: Classes of their partners, shape ``(N, )``.
        delta: Above 0; the distance from which on styles are kept.
        same_class: Added to the distance of a class from itself, which would be 0.

    Returns:
        Shape ``(N, )``.
    """
    distance = distances[labels, partners] + same_class * (labels == partners)
    return torch.tanh(distance / delta)


@torch.no_grad()
def style_cut_mix(
    images: torch.Tensor,
    index: torch.Tensor,
    box: Box,
    style: float,
    gamma: torch.Tensor,
    encoder: nn.Module,
    decoder: nn.Module,
    size: int = 224,
) -> torch.Tensor:
    """Mix sample ``i``, inside the box, with sample ``index[i]``, outside of it.

    Args:
        images: RGB in 0..1, shape ``(N, 3, H, W)``; left as they are.
        index: A permutation, shape ``(N, )``.
        box: In pixels of the resized image.
        style: The share of the sample's own style, in [0, 1].
        gamma: Of :func:`style_gamma`, shape ``(N, )``.
        encoder: Of :func:`build_encoder`.
        decoder: Of :func:`build_decoder`.
        size: To which the images are resized for all of it, in pixels, a multiple of 8.

    Returns:
        Same shape, not clipped to 0..1.
    """
    own = _resize(images, (size, size))
    partner, gamma = own[index], gamma.to(own).view(-1, 1, 1, 1)
    features = encoder(own)
    mixed = (1 - style) * partner + style * _stylised(partner, features[index], features, gamma, decoder)
    inside = (..., slice(box.y1, box.y2), slice(box.x1, box.x2))
    if box.area:
        styled = _stylised(own, features, features[index], gamma, decoder)
        mixed[inside] = style * own[inside] + (1 - style) * styled[inside]
    return _resize(mixed, images.shape[-2:])


def _stylised(images, content, style, gamma, decoder) -> torch.Tensor:
    return gamma * images + (1 - gamma) * decoder(adain(content, style)).to(images.dtype)


def _resize(images: torch.Tensor, size: Tuple[int, int]) -> torch.Tensor:
    if images.shape[-2:] == tuple(size):
        return images.clone()
    return F.interpolate(images, tuple(size), mode='bilinear', align_corners=False)


def label_share(area: float, style: float, gamma: torch.Tensor, r: float = 0.7) -> torch.Tensor:
    r"""The sample's share of its mixed label, shape ``(N, )``.

    Args:
        area: The box's share of the image, the content that is the sample's own.
        style: The share of the sample's own style.
        gamma: Of :func:`style_gamma`, shape ``(N, )``.
        r: Weight of the content, in [0, 1]; the style has the rest.
    """
    return r * area + (1 - r) * (gamma * area + (1 - gamma) * style)


# ------------------------------------------------------------------------------------------------------- batch augment
class StyleCutMix(BoundAugment):
    r"""StyleCutMix with automatic gamma (Hong, Choi, Kim: StyleMix, CVPR 2021): CutMix with a mix of styles.

    The style network, AdaIN, is not trained and not part of the model: its files are read when training begins, not for
    testing. It works on images resized to ``size``, RGB; the normalisation of the data preprocessor is undone for it.

    Args:
        encoder (str | Path): File of AdaIN's VGG encoder, ``vgg_normalised.pth``.
        decoder (str | Path): File of AdaIN's decoder, ``decoder.pth``.
        distances (str | Path | Sequence[Sequence[float]]): Style distance of every two classes, a square matrix: a file
            of ``torch.save``, or the numbers. See :func:`class_distances`.
        r (float): Weight of the content in the label, in [0, 1]; the style has the rest. Defaults to 0.7.
        delta (float): Styles of classes with a distance far above it are kept, above 0. Defaults to 1.0.
        alpha (float): Size of the box and share of the style come from Beta(α, α), above 0.
            Defaults to 1.0.
        same_class (float): Added to the distance of a class from itself, at least 0. Defaults to 2.0.
        size (int): To which images are resized for all of it, in pixels, a multiple of 8 and at least 16. Defaults to
            224.
        rng (np.random.RandomState, optional): Defaults to None, NumPy's global generator.

    Example:
        >>> augment = dict(type='StyleCutMix', encoder='vgg_normalised.pth', decoder='decoder.pth',
        ...                distances='styleDistanceMatrix10.pt')
        >>> data_preprocessor = dict(batch_augments=dict(augments=augment, probs=0.5))
    """

    def __init__(
        self,
        encoder: Union[str, Path],
        decoder: Union[str, Path],
        distances: Union[str, Path, Sequence[Sequence[float]]],
        r: float = 0.7,
        delta: float = 1.0,
        alpha: float = 1.0,
        same_class: float = 2.0,
        size: int = 224,
        rng: Any = None,
    ):
        for name, value in dict(encoder=encoder, decoder=decoder).items():
            if not isinstance(value, (str, Path)):
                raise UserTypeError(f'StyleCutMix: {name}={value!r} must be the path of a file.')
        if not isinstance(distances, (str, Path, list, tuple)):
            raise UserTypeError(f'StyleCutMix: distances={distances!r} must be the path of a file or a list of rows.')
        check_numbers('StyleCutMix', 0, 1, r=r)
        check_numbers('StyleCutMix', 0, above=True, delta=delta, alpha=alpha)
        check_numbers('StyleCutMix', 0, same_class=same_class)
        check_numbers('StyleCutMix', 2 * SHRINKS_BY, integer=True, size=size)
        if size % SHRINKS_BY:
            raise UserValueError(f'StyleCutMix: size={size} must be a multiple of {SHRINKS_BY}.')
        self.r, self.delta, self.alpha, self.same_class, self.size = r, delta, alpha, same_class, size
        self.encoder, self.decoder, self.distances, self.rng = encoder, decoder, distances, rng
        self._networks: Optional[Tuple[nn.Module, nn.Module]] = None
        self._distances: Optional[torch.Tensor] = None

    def bind(self, model: nn.Module) -> None:
        """Get the model and read the files; raises if one is missing or does not fit."""
        self.unbind()
        check_preprocessor('StyleCutMix', model)
        networks = self._network('encoder', build_encoder), self._network('decoder', build_decoder)
        distances, classes = self._read_distances(), num_classes(model)
        if classes is not None:
            distances = self._checked(distances, classes)
        super().bind(model)
        self._networks, self._distances = networks, distances

    def unbind(self) -> None:
        """Forget the model and the style network."""
        super().unbind()
        self._networks = self._distances = None

    def __call__(self, batch_input: torch.Tensor, batch_score: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Mix a batch with a permutation of itself.

        Args:
            batch_input (Tensor): Images, shape ``(N, 3, H, W)``.
            batch_score (Tensor): One-hot or soft labels, shape ``(N, num_classes)``. The most likely class is looked up
                among the distances.

        Returns:
            tuple[Tensor, Tensor]: The mixed images and the mixed labels, same shapes, new tensors.
        """
        preprocessor, rng = self.model.data_preprocessor, self._generator
        if batch_input.ndim != 4 or batch_input.shape[1] != 3:
            raise UserValueError(
                'StyleCutMix: the style network needs RGB images, shape (N, 3, H, W), but got '
                f'{tuple(batch_input.shape)}.'
            )
        if batch_score.ndim != 2 or batch_score.shape != (len(batch_input), len(self._distances)):
            self._distances = self._checked(self._distances, batch_score.shape[-1])
        encoder, decoder = (network.to(batch_input.device) for network in self._networks)
        distances = self._distances = self._distances.to(batch_input.device)

        style = rng.beta(self.alpha, self.alpha)
        box = sample_box(rng.beta(self.alpha, self.alpha), self.size, self.size, rng)
        index = to_device(torch.randperm(len(batch_input)), batch_input.device)
        labels = batch_score.argmax(dim=1)
        gamma = style_gamma(distances, labels, labels[index], self.delta, self.same_class)
        pixels = style_cut_mix(
            to_pixels(batch_input, preprocessor), index, box, style, gamma, encoder, decoder, self.size
        )
        share = label_share(box.area / self.size**2, style, gamma, self.r)
        images = from_pixels(pixels, preprocessor).to(batch_input.dtype)
        return images, mix_labels(batch_score, batch_score[index], 1 - share)

    def _network(self, name: str, build) -> nn.Module:
        path = getattr(self, name)
        weights = self._read(name, path)
        weights = weights.get('state_dict', weights) if isinstance(weights, dict) else weights
        if not isinstance(weights, dict):
            raise UserFileError(f'StyleCutMix: {name} {path} holds a {type(weights).__name__}, not a dict of weights.')
        return build(weights, f'StyleCutMix: {name} {path}')

    def _read_distances(self) -> torch.Tensor:
        if isinstance(self.distances, (str, Path)):
            return self._read('distances', self.distances)
        try:
            return torch.tensor(self.distances, dtype=torch.float32)
        except (TypeError, ValueError) as error:
            raise UserValueError(f'StyleCutMix: distances must be rows of numbers of one length: {error}.') from None

    @staticmethod
    def _read(name: str, path: Union[str, Path]):
        from ...utils.checkpoints import read_checkpoint  # needs mmengine, which the arithmetic does without

        try:
            return read_checkpoint(path)
        except UserError as error:
            raise UserFileError(f'StyleCutMix: {name}: {error} {WHERE}') from None

    def _checked(self, distances: torch.Tensor, classes: int) -> torch.Tensor:
        source = f' {self.distances}' if isinstance(self.distances, (str, Path)) else ''
        return check_distances(distances, classes, f'StyleCutMix: distances{source}')


def num_classes(model: nn.Module) -> Optional[int]:
    """The number of classes of a model's labels, if one of its parts says it."""
    for part in (model.data_preprocessor, getattr(model, 'head', None)):
        if isinstance(getattr(part, 'num_classes', None), int):
            return part.num_classes
    return None
