r"""RecursiveMix, the method: torch and numpy alone.

Every iteration mixes its batch with the mixed batch of the iteration before. With the history
(x^h, y^h, p^h), a share λ and a box B (as a mask: M):

.. math::
    \tilde x &= M \odot \mathrm{ResizeFill}(x^h, M) + (1 - M) \odot x \\
    \tilde y &= \lambda\, y^h + (1 - \lambda)\, y \\
    \mathcal L &= \mathrm{CE}(\tilde p, \tilde y) + \omega \lambda\,
        \mathrm{KL}\big(p^h \,\|\, \mathcal H'(\mathrm{RoIAlign}(\mathcal F(\tilde x), B))\big) \\
    x^h, y^h, p^h &\leftarrow \tilde x, \tilde y, \tilde p

This file follows that order: draw λ and the box, fill the box, fuse the labels (:class:`RecursiveMix`
composes them and holds the history), then pool the region, compare, weigh (:class:`Consistency`). The prediction
p^h comes back through the :class:`Mix` of its iteration, so that the triplet always belongs together.

Example:
    >>> rm = RecursiveMix(alpha=0.5, num_classes=100)
    >>> consistency = Consistency(in_channels=512, num_classes=100, omega=0.1)  # give its parameters to the optimizer
    >>> for images, labels in loader:
    ...     images, scores, mix = rm.mix(images, labels)
    ...     feature_map = net.forward_features(images)
    ...     logits = net.forward_head(feature_map)
    ...     loss = F.cross_entropy(logits, scores) + consistency(mix, feature_map, logits)
"""

import math
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

INTERPOLATIONS = ('nearest', 'bilinear')
ROI_LAYER = 'fc_roi'  # the layer that classifies the region: it exists in training only


class Box(NamedTuple):
    """Pixels ``x1 <= x < x2``, ``y1 <= y < y2``."""

    x1: int
    y1: int
    x2: int
    y2: int

    @property
    def area(self) -> int:
        return (self.x2 - self.x1) * (self.y2 - self.y1)


def sample_lambda(alpha: float, rng: Any) -> float:
    r"""Draw λ ~ U(0, α), the share of the historical image."""
    return rng.uniform(0, alpha)


def sample_box(lam: float, height: int, width: int, rng: Any) -> Box:
    r"""Draw a box for the share ``lam`` of the image: sides √λ of the image's, any centre.

    It is clipped to the image of ``height`` x ``width`` pixels, and its area may be 0.
    """
    ratio = np.sqrt(lam)
    half_w, half_h = int(width * ratio) // 2, int(height * ratio) // 2
    x, y = int(rng.randint(width)), int(rng.randint(height))
    return Box(max(x - half_w, 0), max(y - half_h, 0), min(x + half_w, width), min(y + half_h, height))


def sample_boxes(alpha: float, number: int, height: int, width: int, rng: Any) -> np.ndarray:
    r"""Draw λ and a box as above for each of ``number`` images: rows x1, y1, x2, y2, ``(number, 4)``."""
    ratio = np.sqrt(rng.uniform(0, alpha, number))
    half_w, half_h = (width * ratio).astype(int) // 2, (height * ratio).astype(int) // 2
    x, y = rng.randint(width, size=number), rng.randint(height, size=number)
    corners = [np.maximum(x - half_w, 0), np.maximum(y - half_h, 0)]
    return np.stack([*corners, np.minimum(x + half_w, width), np.minimum(y + half_h, height)], axis=1)


def box_shares(boxes: np.ndarray, height: int, width: int) -> np.ndarray:
    """The share of the image that each box covers, float32, shape ``(N, )``."""
    return ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / (height * width)).astype(np.float32)


def resize_fill(images: torch.Tensor, history: torch.Tensor, box: Box, interpolation: str = 'nearest') -> None:
    """Resize whole historical images to ``box`` and write them there, sample by sample, in place.

    NaN and infinity of the history arrive as 0: one bad image must not live on in every iteration that follows.

    Args:
        images: Written to, shape ``(N, C, H, W)``. The first ``min(N, M)`` samples are filled.
        history: Shape ``(M, C, H', W')``.
        box: Not empty.
        interpolation: ``'nearest'`` or ``'bilinear'`` (with aligned corners).
    """
    count = min(len(images), len(history))
    size = (box.y2 - box.y1, box.x2 - box.x1)
    patch = F.interpolate(
        history[:count], size, mode=interpolation, align_corners=True if interpolation == 'bilinear' else None
    )
    images[:count, :, box.y1 : box.y2, box.x1 : box.x2] = patch.nan_to_num(0.0, 0.0, 0.0)


def resize_fill_each(
    images: torch.Tensor, history: torch.Tensor, boxes: np.ndarray, interpolation: str = 'nearest'
) -> None:
    """:func:`resize_fill` with a box for each sample, rows of ``boxes``, which may be empty; the same pixels."""
    count = len(boxes)
    (rows, in_rows), (columns, in_columns) = (
        _source_pixels(boxes[:, axis], boxes[:, axis + 2], images, history, 3 - axis, interpolation) for axis in (1, 0)
    )
    linear = interpolation == 'bilinear'
    patch = _take(_take(history[:count], rows, 2, linear), columns, 3, linear).nan_to_num(0.0, 0.0, 0.0)
    inside = in_rows[:, None, :, None] & in_columns[:, None, None, :]
    images[:count] = torch.where(inside, patch, images[:count])


def _source_pixels(
    start: np.ndarray, stop: np.ndarray, images: torch.Tensor, history: torch.Tensor, axis: int, interpolation: str
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Where each pixel of an axis comes from in the history, and whether it lies in the box, shape ``(count, size)``.

    In float32, as the operator computes it.
    """
    size, source = images.shape[axis], history.shape[axis]
    length = (stop - start)[:, None].astype(np.float32)
    target = np.arange(size) - start[:, None]
    with np.errstate(divide='ignore', invalid='ignore'):  # of empty boxes, and of aligned corners one pixel apart
        if interpolation == 'bilinear':
            at = target.astype(np.float32) * np.where(length > 1, np.float32(source - 1) / (length - 1), np.float32(0))
        else:
            at = np.floor(target.astype(np.float32) * (np.float32(source) / length))
    inside = (target >= 0) & (target < length)
    at = np.where(inside, np.clip(at, 0, source - 1), 0).astype(np.float32)
    return to_device(at, images.device), to_device(inside, images.device)


def _take(images: torch.Tensor, at: torch.Tensor, axis: int, linear: bool) -> torch.Tensor:
    """Rows (axis 2) or columns (axis 3) of each image at positions ``(N, size)``; ``linear``: between two pixels."""
    at = at[:, None, :, None] if axis == 2 else at[:, None, None, :]
    sizes = [*images.shape]
    sizes[axis] = at.shape[axis]
    low = at.long()
    first = images.gather(axis, low.expand(sizes))
    if not linear:
        return first
    second = images.gather(axis, (low + 1).clamp(max=images.shape[axis] - 1).expand(sizes))
    return torch.lerp(first, second, (at - low).to(first))


def mix_labels(scores: torch.Tensor, history: torch.Tensor, lam: Union[float, torch.Tensor]) -> torch.Tensor:
    r"""Return λ y^h + (1 - λ) y for the first ``min(N, M)`` rows, the others as they are.

    Args:
        scores: One-hot or soft labels, shape ``(N, num_classes)``.
        history: Labels of what was mixed in, shape ``(M, num_classes)``; of a partner in the batch: ``scores[index]``.
        lam: The share of ``history``: a number, or one for each of the mixed samples, shape ``(min(N, M), )``.

    Returns:
        A new float32 tensor, shape ``(N, num_classes)``.
    """
    count = min(len(scores), len(history))
    mixed = scores.to(torch.float32, copy=True)
    if isinstance(lam, torch.Tensor) and lam.ndim:
        lam = lam.to(mixed)[:, None]
    mixed[:count] = lam * history[:count] + (1 - lam) * mixed[:count]
    return mixed


@dataclass(eq=False)
class Mix:
    """What one iteration mixed. It travels with the batch to the loss, which answers with the prediction.

    The numbers are for logging. The loss reads ``share`` and ``weights`` instead, where they are: they change from one
    iteration to the next, and neither a device nor a compiled graph has to wait for a tensor.

    Args:
        lam: The share of the historical image in each mixed sample, 0 if nothing was mixed; with a box per sample their
            mean.
        count: How many samples, the first ones of the batch, were mixed.
        box: Where, in pixels of the image; with a box per sample empty.
        image_size: Height and width of the image in pixels.
        historical_prediction: Softmax (of several labels: sigmoid) of the historical iteration, ``(M, num_classes)``,
            float32, or None if that iteration was never answered.
        prediction: This iteration's, set by :meth:`answer`.
        map_size: Height and width of this iteration's feature map, once the loss has seen it.
        share: The mean of ``lam`` over the batch, a scalar. None: as ``lam`` and ``count`` say.
        weights: :func:`pool_weights` of the box. None, or of another size than the map: made when they are needed.
        boxes: With a box per sample: rows x1, y1, x2, y2, shape ``(N, 4)``, empty where nothing was mixed.
        lams: With a box per sample: the share in each, shape ``(N, )``.
    """

    lam: float
    count: int
    box: Box
    image_size: Tuple[int, int]
    historical_prediction: Optional[torch.Tensor] = None
    prediction: Optional[torch.Tensor] = None
    map_size: Optional[Tuple[int, int]] = None
    share: Optional[torch.Tensor] = None
    weights: Optional[torch.Tensor] = None
    boxes: Optional[np.ndarray] = None
    lams: Optional[torch.Tensor] = None

    @property
    def drawn(self) -> Any:
        """The box, or the boxes, for :func:`pool_weights`."""
        return self.box if self.boxes is None else self.boxes

    def of_sample(self, index: int) -> Tuple[float, Box]:
        """The share and the box of one sample."""
        height, width = self.image_size
        box = self.box if self.boxes is None else Box(*self.boxes[index].tolist())
        return (box.area / (height * width), box) if self.lam and index < self.count else (0.0, Box(0, 0, 0, 0))

    def answer(self, logits: torch.Tensor, multi_label: bool = False) -> None:
        """Give this iteration its prediction: the softmax of ``logits``, shape ``(N, num_classes)``, detached.

        With ``multi_label`` the sigmoid.
        """
        logits = logits.detach().float()
        prediction = logits.sigmoid() if multi_label else F.softmax(logits, dim=1)
        # An overflowed row becomes zeros, whose KL and gradient are 0.
        finite = prediction.isfinite().all(dim=1, keepdim=True)
        self.prediction = torch.where(finite, prediction, torch.zeros_like(prediction))

    def __deepcopy__(self, memo: dict) -> 'Mix':
        # A copy of a data sample still belongs to this iteration, and its answer must arrive here.
        return self


class _History:
    """The images and labels of an iteration as they were fed to the model, and its :class:`Mix`."""

    def __init__(self, images: torch.Tensor, scores: torch.Tensor, mix: Mix, overwritten: bool = False) -> None:
        self.images, self.scores, self.mix = images, scores, mix
        self._version = None if overwritten else _version(images)

    @property
    def overwritten(self) -> bool:
        """Whether the images were changed since they were kept, as by a model that works in place on its input."""
        return _version(self.images) != self._version

    def __reduce__(self) -> tuple:
        # A copy's tensor counts its versions from 0.
        return _History, (self.images, self.scores, self.mix, self.overwritten)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class RecursiveMix:
    r"""Mix every batch with the mixed batch before it.

    The whole historical image, resized, fills a box of the current one. One box serves the whole batch, unless
    ``per_sample`` draws one for each; sample ``i`` is paired with sample ``i`` of the history. The images that are
    given stay as they are; the mixed ones are new and become the history without a copy.

    Args:
        alpha: λ ~ U(0, α), in (0, 1].
        interpolation: How the historical image is resized, ``'nearest'`` or ``'bilinear'``.
        num_classes: Number of classes, needed only if :meth:`mix` gets integer labels.
        rng: Where λ and the box come from, an ``np.random.RandomState``. None: NumPy's global generator.
        prob: How often a batch is mixed, in [0, 1]. Else it stays as it is, and the history, too.
        per_sample: Whether each sample has a λ and a box of its own. The paper has one per batch.

    Attributes:
        enabled: False switches mixing off, as for the last epochs: batches stay as they are, and the history, too.
    """

    def __init__(
        self,
        alpha: float = 0.5,
        interpolation: str = 'nearest',
        num_classes: Optional[int] = None,
        rng: Any = None,
        prob: float = 1.0,
        per_sample: bool = False,
    ):
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha <= 1:
            raise ValueError(f'RecursiveMix: alpha={alpha!r} must be a number in (0, 1].')
        if interpolation not in INTERPOLATIONS:
            raise ValueError(f'RecursiveMix: interpolation={interpolation!r} must be one of {INTERPOLATIONS}.')
        if num_classes is not None and (not isinstance(num_classes, (int, np.integer)) or num_classes < 2):
            raise ValueError(f'RecursiveMix: num_classes={num_classes!r} must be None or an integer of at least 2.')
        if rng is not None and not (hasattr(rng, 'uniform') and hasattr(rng, 'randint')):
            raise TypeError(f'RecursiveMix: rng={rng!r} must be None or an np.random.RandomState.')
        if isinstance(prob, bool) or not isinstance(prob, (int, float)) or not 0 <= prob <= 1:
            raise ValueError(f'RecursiveMix: prob={prob!r} must be a number in [0, 1].')
        if not isinstance(per_sample, bool):
            raise TypeError(f'RecursiveMix: per_sample={per_sample!r} must be True or False.')
        self.alpha = alpha
        self.interpolation = interpolation
        self.num_classes = num_classes
        self.rng = rng
        self.prob = prob
        self.per_sample = per_sample
        self.enabled = True
        self._history: Optional[_History] = None
        self._mix: Optional[Mix] = None
        self._copy_images = False

    @property
    def mixup_enabled(self) -> bool:
        """:attr:`enabled` by the name that timm's training loop sets."""
        return self.enabled

    @mixup_enabled.setter
    def mixup_enabled(self, value: bool) -> None:
        self.enabled = value

    def reset(self) -> None:
        """Empty the history, as at the start of an epoch: the next batch is not mixed."""
        self._history = None
        self._mix = None

    def state_dict(self) -> Dict[str, torch.Tensor]:
        """What the next iteration needs of this one, for a checkpoint. With several processes each has its own.

        Tensors only: images, scores, prediction and the size of the map, if there are, and the state of an own ``rng``.
        NumPy's global generator, ``prob`` and ``enabled`` are not part of it.
        """
        past, lost = self._history, self._history is not None and self._history.overwritten
        state = dict(copy_images=torch.tensor(int(self._copy_images or lost)))
        if past is not None and not lost:
            state.update(images=past.images, scores=past.scores)
            if past.mix.prediction is not None:
                state.update(prediction=past.mix.prediction)
            if past.mix.map_size is not None:
                state.update(map_size=torch.tensor(past.mix.map_size))
        if hasattr(self.rng, 'get_state'):
            _, keys, *rest = self.rng.get_state()
            state.update(rng=torch.tensor([*keys.tolist(), *rest], dtype=torch.float64))  # exact for all of them
        return state

    def load_state_dict(self, state: Dict[str, torch.Tensor]) -> None:
        """Restore what :meth:`state_dict` returned: the next iteration is the one that would have followed."""
        if 'rng' in state and not hasattr(self.rng, 'set_state'):
            raise ValueError(
                'RecursiveMix: the saved state includes a generator. Construct with '
                'rng=np.random.RandomState() to restore it.'
            )
        self.reset()
        self._copy_images = bool(state['copy_images'])
        if 'images' in state:
            height, width = state['images'].shape[-2:]
            mix = Mix(0.0, 0, Box(0, 0, 0, 0), (height, width), prediction=state.get('prediction'))
            if 'map_size' in state:
                mix.map_size = tuple(state['map_size'].tolist())
            self._history = _History(state['images'], state['scores'], mix)
        if 'rng' in state:
            *keys, position, has_gauss, gauss = state['rng'].tolist()
            self.rng.set_state(('MT19937', np.array(keys, np.uint32), int(position), int(has_gauss), gauss))

    @torch._disable_dynamo  # it draws with NumPy, and slices by what it drew; imports dynamo in its first call
    def mix(self, images: torch.Tensor, labels: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, Mix]:
        """Mix a batch with the history, then make it the history. In a compiled loop this part stays eager.

        Args:
            images: Shape ``(N, C, H, W)``.
            labels: Integers, shape ``(N, )``, or one-hot or soft scores, shape ``(N, num_classes)``.

        Returns:
            The mixed images and float32 scores, both new tensors, and what was mixed, for :class:`Consistency`. Where
            mixing is off, the images are those that were given.
        """
        scores, rng = self._scores(images, labels), np.random if self.rng is None else self.rng
        height, width = images.shape[-2:]
        if not self.enabled or (self.prob < 1 and rng.uniform(0, 1) >= self.prob):
            share = torch.zeros((), device=images.device)
            return images, scores, Mix(0.0, 0, Box(0, 0, 0, 0), (height, width), share=share)  # the history stays
        images = images.detach().clone()
        past = self._valid_history(images, scores)
        mix = Mix(0.0, 0, Box(0, 0, 0, 0), (height, width))
        if past is not None:
            self._draw(mix, len(images), min(len(images), len(past.images)), rng)
        if past is not None and mix.lam:
            if past.mix.prediction is not None:
                # A copy: as the output of a compiled step it is overwritten by the next one (CUDA graphs).
                mix.historical_prediction = past.mix.prediction.clone()
            if past.mix.map_size is not None and past.mix.image_size == mix.image_size:
                mix.weights = to_device(pool_weights(mix.drawn, mix.image_size, past.mix.map_size), images.device)
            if mix.boxes is None:
                resize_fill(images, past.images.to(images), mix.box, self.interpolation)
                scores = mix_labels(scores, past.scores.to(scores), mix.lam)
            else:
                mix.lams = to_device(box_shares(mix.boxes, height, width), images.device)
                resize_fill_each(images, past.images.to(images), mix.boxes[: mix.count], self.interpolation)
                scores = mix_labels(scores, past.scores.to(scores), mix.lams[: mix.count])
        mix.share = torch.full((), mix.lam * mix.count / max(len(images), 1), device=images.device)
        # Inference tensors count no versions: that a model overwrote one would stay unnoticed.
        kept = images.clone() if self._copy_images or images.is_inference() else images
        self._history = _History(kept, scores.clone(), mix)
        return images, scores, mix

    def _draw(self, mix: Mix, number: int, count: int, rng: Any) -> None:
        """Draw what is mixed into the first ``count`` of ``number`` samples. The share is that of the clipped box."""
        height, width = mix.image_size
        if self.per_sample:
            mix.boxes = np.zeros((number, 4), np.int64)
            mix.boxes[:count] = sample_boxes(self.alpha, count, height, width, rng)
            mix.lam = float(box_shares(mix.boxes[:count], height, width).mean()) if count else 0.0
        else:
            mix.box = sample_box(sample_lambda(self.alpha, rng), height, width, rng)
            mix.lam = mix.box.area / (height * width)
        mix.count = count if mix.lam else 0

    def __call__(self, batch_input: torch.Tensor, batch_score: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """:meth:`mix` as mmpretrain calls a batch augment and timm its ``mixup_fn``; :meth:`take_mix` has the mix."""
        images, scores, self._mix = self.mix(batch_input, batch_score)
        return images, scores

    def take_mix(self) -> Optional[Mix]:
        """Return what the last call mixed, once; None if there was no call since."""
        mix, self._mix = self._mix, None
        return mix

    def _scores(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Check a batch and return its labels as new float32 scores, shape ``(N, num_classes)``."""
        if images.ndim != 4:
            raise ValueError(f'RecursiveMix: images must have shape (N, C, H, W), but got {tuple(images.shape)}.')
        integers = labels.ndim == 1 and not labels.is_floating_point()
        if labels.ndim != (1 if integers else 2) or len(labels) != len(images):
            raise ValueError(
                f'RecursiveMix: labels must be integers, shape ({len(images)}, ), or one-hot or soft scores, shape '
                f'({len(images)}, num_classes), but got {tuple(labels.shape)} of {labels.dtype}.'
            )
        if not integers:
            if self.num_classes not in (None, labels.shape[1]):
                raise ValueError(
                    f'RecursiveMix: num_classes={self.num_classes}, but the scores have {labels.shape[1]} classes.'
                )
            return labels.detach().to(torch.float32, copy=True)
        if self.num_classes is None:
            raise ValueError(
                'RecursiveMix: integer labels need RecursiveMix(num_classes=...); or give one-hot scores, '
                'torch.nn.functional.one_hot(labels, num_classes).'
            )
        return F.one_hot(labels.long(), self.num_classes).float()

    def _valid_history(self, images: torch.Tensor, scores: torch.Tensor) -> Optional[_History]:
        past = self._history
        if past is None:
            return None
        if past.images.shape[1] != images.shape[1] or past.scores.shape[1] != scores.shape[1]:
            raise ValueError(
                f'RecursiveMix: a batch of {images.shape[1]} channels and {scores.shape[1]} classes follows one of '
                f'{past.images.shape[1]} and {past.scores.shape[1]}. Call reset() between data sets, and give each '
                'model its own RecursiveMix.'
            )
        if past.overwritten:
            warnings.warn(
                'The model changed its input in place, so the historical images are lost for this iteration. '
                'RecursiveMix keeps a copy of them from now on.',
                stacklevel=3,
            )
            self._copy_images = True
            return None
        return past

    def __repr__(self) -> str:
        return f'{type(self).__name__}(alpha={self.alpha}, interpolation={self.interpolation!r})'


def roi_weights(start: np.ndarray, stop: np.ndarray, scale: float, size: int) -> np.ndarray:
    """The weights that 1x1 RoIAlign gives to the cells of one axis, float32, shape ``(N, size)``, for N boxes.

    One bin, ``aligned=True`` and adaptive sampling: the bin is sampled at ``ceil(length)`` points, each interpolated
    linearly between two cells. The mean is separable, so an axis needs no knowledge of the other one. A box covers the
    pixels from ``start`` to before ``stop``, shape ``(N, )``; the axis has ``size`` cells, ``scale`` of them per pixel.
    """
    # In float32, as the operator computes it: the number of sampling points jumps where a length rounds to an integer.
    cells, half = np.float32(scale), np.float32(0.5)
    first = start.astype(np.float32)[:, None] * cells - half
    length = stop.astype(np.float32)[:, None] * cells - half - first
    points = np.maximum(np.ceil(length), np.float32(1))
    point = np.arange(points.max(initial=1), dtype=np.float32)
    at = first + (point + half) * (length / points)
    box, inside = np.indices(at.shape)[0], (at >= -1) & (at <= size) & (point < points)
    at = np.clip(at, 0, size - 1)
    low = at.astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    fraction = at - low
    weights = np.zeros((len(start), size), np.float32)
    np.add.at(weights, (box[inside], low[inside]), (1 - fraction)[inside])
    np.add.at(weights, (box[inside], high[inside]), fraction[inside])
    return weights / points


def pool_weights(box: Any, image_size: Tuple[int, int], map_size: Tuple[int, int]) -> np.ndarray:
    """What each cell of a map counts in two means, that of the whole map and 1x1 RoIAlign of ``box``: ``(2, h, w)``.

    Equal to RoIAlign (``aligned=True``, ``sampling_ratio=-1``) where the map's two scales agree; where they differ,
    rows and columns have a scale each. The box is in pixels of the image; sizes are (height, width). For boxes
    ``(N, 4)`` the weights are ``(N, 2, h, w)``.
    """
    height, width = map_size
    x1, y1, x2, y2 = np.atleast_2d(box).T
    rows = roi_weights(y1, y2, height / image_size[0], height)
    columns = roi_weights(x1, x2, width / image_size[1], width)
    region = rows[:, :, None] * columns[:, None, :]
    weights = np.stack([np.full_like(region, 1 / (height * width)), region], axis=1)
    return weights[0] if isinstance(box, Box) else weights


def weighted_means(feature_map: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Means of a map, shape ``(N, C, h, w)``, by weights ``(K, h, w)``, in one pass: ``(N, K, C)``, float32 at least.

    Weights of each sample are ``(N, K, h, w)``. One product, whose backward pass makes one gradient map, in the map's
    own memory format.
    """
    kind = feature_map.device.type
    with torch.autocast(kind, enabled=False) if _has_autocast(kind) else nullcontext():
        cells = feature_map.flatten(2).to(torch.promote_types(feature_map.dtype, torch.float32))
        weights = weights.flatten(-2).to(cells)
        if feature_map.stride(1) == 1:  # channels last
            return weights @ cells.transpose(1, 2)
        return (cells @ weights.transpose(-2, -1)).transpose(1, 2)


def _has_autocast(kind: str) -> bool:
    if hasattr(torch.amp, 'is_autocast_available'):  # torch 2.4
        return torch.amp.is_autocast_available(kind)
    return kind in ('cpu', 'cuda')


def roi_mean(feature_map: torch.Tensor, box: Box, image_size: Tuple[int, int]) -> torch.Tensor:
    """1x1 RoIAlign of the same box in every sample, from ``(N, C, h, w)`` to ``(N, C)``. See :func:`pool_weights`."""
    return _region(feature_map, Mix(0.0, len(feature_map), box, image_size))


def pool(feature_map: torch.Tensor, mix: Optional[Mix] = None) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Global average pooling, ``(N, C)``, and in the same pass the region that ``mix`` filled, ``(count, C)``.

    The region is None if there is nothing to compare it with. Give it to :class:`Consistency` in place of the map.
    """
    height, width = feature_map.shape[-2:]
    if mix is not None:
        mix.map_size = (height, width)
        if mix.historical_prediction is not None:
            mean, region = weighted_means(feature_map, _weights_of(mix, feature_map)).unbind(1)
            return mean.to(feature_map.dtype), region[: mix.count]
    equal = feature_map.new_full((1, height, width), 1 / (height * width), dtype=torch.float32)
    return weighted_means(feature_map, equal)[:, 0].to(feature_map.dtype), None


def _region(feature_map: torch.Tensor, mix: Mix) -> torch.Tensor:
    weights = _weights_of(mix, feature_map)
    weights = weights[1:] if mix.boxes is None else weights[: mix.count, 1:]
    return weighted_means(feature_map[: mix.count], weights)[:, 0]


def _weights_of(mix: Mix, feature_map: torch.Tensor) -> torch.Tensor:
    height, width = feature_map.shape[-2:]
    if mix.weights is not None and mix.weights.shape[-2:] == (height, width):
        return mix.weights.to(feature_map.device)
    return to_device(pool_weights(mix.drawn, mix.image_size, (height, width)), feature_map.device)


def to_device(values: Union[np.ndarray, torch.Tensor], device: torch.device) -> torch.Tensor:
    """An array or a tensor on a device. The host does not wait for the copy to a GPU."""
    tensor = torch.as_tensor(values)
    if device.type == 'cuda' and tensor.device.type == 'cpu':
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def kl_divergence(target: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    r"""KL(target ‖ softmax(logits)), summed over classes, in float32.

    From twice ``(N, num_classes)`` to ``(N, )``, never negative. A row of zeros in ``target`` gives 0.
    """
    target = target.float()
    log_prediction = F.log_softmax(logits.float(), dim=1)
    kl = (torch.xlogy(target, target) - target * log_prediction).sum(dim=1)
    return kl.clamp(min=0)  # rounding can leave -1e-8 where the two agree


def binary_kl_divergence(target: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The same for several labels per image: of each class's own probability, sigmoid(logits), summed over classes."""
    target, logits = target.float(), logits.float()
    entropy = torch.xlogy(target, target) + torch.xlogy(1 - target, 1 - target)
    kl = (entropy - target * F.logsigmoid(logits) - (1 - target) * F.logsigmoid(-logits)).sum(dim=1)
    return kl.clamp(min=0) * target.any(dim=1)


def consistency_loss(
    mix: Optional[Mix],
    features: Optional[torch.Tensor],
    logits: torch.Tensor,
    fc_roi: Optional[nn.Linear],
    omega: float,
    multi_label: bool = False,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    r"""Compare the region with what was predicted for the whole historical image, and answer ``mix``.

    Args:
        mix: What this iteration mixed; None if it used another augmentation, which leaves the history alone.
        features: The last feature map, shape ``(N, C, h, w)``, or its region as :func:`pool` returns it.
        logits: Of the whole images, shape ``(N, num_classes)``. Their softmax becomes p^h.
        fc_roi: Classifies the region. May be None if ``omega`` is 0.
        omega: Weight of the loss; 0 switches it off.
        multi_label: Whether an image has several labels: :func:`binary_kl_divergence` instead of softmax and KL.

    Returns:
        The loss, and two numbers to log, detached: the mean KL of the mixed samples, and the mean λ of
        the batch. All are scalars on the device. With nothing to compare, the loss is a zero that still depends on
        ``fc_roi``: DDP waits for the gradient of every parameter in every iteration.
    """
    zero = logits.new_zeros((), dtype=torch.float32)
    share = zero
    if mix is not None:
        share = zero + mix.lam * mix.count / len(logits) if mix.share is None else mix.share.to(logits.device)
    if fc_roi is None:
        return zero, zero, share
    if mix is not None and mix.historical_prediction is not None and features is not None and omega > 0:
        region = _region(features, mix) if features.ndim == 4 else features
        history = mix.historical_prediction[: mix.count].to(logits.device)
        compare = binary_kl_divergence if multi_label else kl_divergence
        each = compare(history, fc_roi(region.to(fc_roi.weight.device, fc_roi.weight.dtype)))
        kl = each.mean()
        if mix.lams is None:
            loss = omega * share * kl  # the share counts samples that were not mixed as 0
        else:
            loss = omega * (mix.lams[: mix.count].to(each) * each).sum() / len(logits)
        kl = kl.detach()
    else:
        # By a forward and a backward pass: where FSDP shards the layer, its weight is complete only there, and it
        # exchanges gradients in the order of the backward pass, which must be that of the other processes.
        last = getattr(fc_roi, 'last', fc_roi)
        nothing = logits[:1, :1].nan_to_num().clamp(0, 0).to(last.weight.dtype).expand(1, last.in_features)
        loss, kl = 0.0 * last(nothing).float().sum(), zero
    if mix is not None:
        mix.answer(logits, multi_label)
        if features is not None and features.ndim == 4:
            mix.map_size = (features.shape[2], features.shape[3])
    return loss, kl, share


class Consistency(nn.Module):
    r"""The consistency loss ω λ KL(p^h ‖ p_roi), with its layer ``fc_roi``.

    Its parameters are trained with the model's and thrown away afterwards. ``last`` has what to log of the last call:
    ``lam``, the mean λ of the batch, and ``kl``, the mean KL of the mixed samples.

    Args:
        in_channels: Channels of the last feature map.
        num_classes: Number of classes.
        omega: Weight of the loss, at least 0; 0 makes no ``fc_roi``. The default is the paper's on CIFAR; on ImageNet
            it has 0.5.
        multi_label: Whether an image has several labels: sigmoid and binary KL instead of softmax and KL.
    """

    def __init__(self, in_channels: int, num_classes: int, omega: float = 0.1, multi_label: bool = False):
        super().__init__()
        self.in_channels, self.num_classes, self.multi_label = in_channels, num_classes, multi_label
        self.omega = check_omega('Consistency', omega)
        self.fc_roi = nn.Linear(in_channels, num_classes) if omega > 0 else None
        self.last: dict = {}

    def forward(self, mix: Optional[Mix], features: Optional[torch.Tensor], logits: torch.Tensor) -> torch.Tensor:
        """The loss of a batch, a scalar; ``mix`` gets its answer.

        Args:
            mix: What this iteration mixed, or None.
            features: The feature map, shape ``(N, in_channels, h, w)``; or the region, as :func:`pool` returned it.
            logits: Shape ``(N, num_classes)``.
        """
        if features is not None and not self._fits(features, mix, len(logits)):
            raise ValueError(
                f'Consistency: the feature map must have shape ({len(logits)}, {self.in_channels}, h, w), '
                f'but got {tuple(features.shape)}.'
            )
        if logits.ndim != 2 or logits.shape[1] != self.num_classes:
            raise ValueError(
                f'Consistency: the logits must have shape (N, {self.num_classes}), but got {tuple(logits.shape)}.'
            )
        loss, kl, lam = consistency_loss(mix, features, logits, self.fc_roi, self.omega, self.multi_label)
        self.last = dict(lam=lam, kl=kl)
        return loss

    def _fits(self, features: torch.Tensor, mix: Optional[Mix], number: int) -> bool:
        if features.ndim == 2 and mix is not None:
            return features.shape == (mix.count, self.in_channels)
        return features.ndim == 4 and features.shape[:2] == (number, self.in_channels)


def check_omega(owner: str, omega: float) -> float:
    """Return ``omega`` if it is a finite number of at least 0, else raise an error that names ``owner``."""
    if isinstance(omega, bool) or not isinstance(omega, (int, float)) or not 0 <= omega < math.inf:
        raise ValueError(f'{owner}: omega={omega!r} must be a finite number >= 0.')
    return omega
