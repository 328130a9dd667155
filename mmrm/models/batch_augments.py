r"""RecursiveMix: mix the batch with the mixed batch of the iteration before.

.. math::
    \tilde x^t &= M \odot \mathrm{ResizeFill}(x^h, M) + (1 - M) \odot x^t \\
    \tilde y^t &= \lambda\, y^h + (1 - \lambda)\, y^t \\
    x^h, y^h, p^h &\leftarrow \tilde x^t, \tilde y^t, \tilde p^t

Sampling (:func:`sample_lambda`, :func:`sample_box`) is apart from applying (:func:`resize_fill`, :func:`mix_labels`);
:class:`RecursiveMix` holds the history and composes them. The prediction :math:`p^h` comes back from the head through
the :class:`Mix` that travels with the batch, so that the triplet always belongs to one iteration.
"""
import warnings
from dataclasses import dataclass
from typing import NamedTuple, Optional, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from mmpretrain.registry import BATCH_AUGMENTS

from ..utils.errors import UserTypeError, UserValueError

INTERPOLATIONS = ('nearest', 'bilinear')


class Box(NamedTuple):
    """Pixels ``x1 <= x < x2``, ``y1 <= y < y2``."""
    x1: int
    y1: int
    x2: int
    y2: int

    @property
    def area(self) -> int:
        return (self.x2 - self.x1) * (self.y2 - self.y1)


def sample_lambda(alpha: float, rng) -> float:
    r"""Draw :math:`\lambda \sim U(0, \alpha)`, the share of the historical image."""
    return rng.uniform(0, alpha)


def sample_box(lam: float, height: int, width: int, rng) -> Box:
    r"""Draw a box that covers about ``lam`` of the image: sides :math:`\sqrt\lambda` of its own, any centre, clipped.

    Args:
        lam (float): The share of the image's area, in [0, 1].
        height (int): Height of the image in pixels.
        width (int): Width of the image in pixels.
        rng (np.random.RandomState | module): Has ``randint``.

    Returns:
        Box: Inside the image; its area may be 0.
    """
    ratio = np.sqrt(lam)
    half_w, half_h = int(width * ratio) // 2, int(height * ratio) // 2
    x, y = int(rng.randint(width)), int(rng.randint(height))
    return Box(max(x - half_w, 0), max(y - half_h, 0), min(x + half_w, width), min(y + half_h, height))


def resize_fill(images: torch.Tensor, history: torch.Tensor, box: Box, interpolation: str = 'nearest') -> None:
    """Resize whole historical images to ``box`` and write them there, sample by sample, in place.

    Args:
        images (Tensor): Written to, shape ``(N, C, H, W)``. The first ``min(N, M)`` samples are filled.
        history (Tensor): Shape ``(M, C, H', W')``.
        box (Box): Not empty.
        interpolation (str): ``'nearest'`` or ``'bilinear'`` (with aligned corners). Defaults to ``'nearest'``.
    """
    count = min(len(images), len(history))
    size = (box.y2 - box.y1, box.x2 - box.x1)
    patch = F.interpolate(
        history[:count], size, mode=interpolation, align_corners=True if interpolation == 'bilinear' else None)
    images[:count, :, box.y1:box.y2, box.x1:box.x2] = patch


def mix_labels(scores: torch.Tensor, history: torch.Tensor, lam: float) -> torch.Tensor:
    r"""Return :math:`\lambda y^h + (1 - \lambda) y` for the first ``min(N, M)`` rows, the others as they are.

    Args:
        scores (Tensor): Float, shape ``(N, num_classes)``.
        history (Tensor): Float, shape ``(M, num_classes)``.
        lam (float): The share of the historical image.
    """
    count = min(len(scores), len(history))
    mixed = scores.clone()
    mixed[:count] = lam * history[:count] + (1 - lam) * scores[:count]
    return mixed


@dataclass(eq=False)
class Mix:
    """What one iteration mixed. It travels with the data samples to the head, which answers with its prediction.

    Args:
        lam (float): The share of the historical image in each mixed sample, 0 if nothing was mixed.
        count (int): How many samples, the first ones of the batch, were mixed.
        box (Box): Where, in pixels of the image.
        image_size (tuple[int, int]): Height and width of the image.
        historical_prediction (Tensor, optional): Softmax of the historical iteration, ``(M, num_classes)``, float32,
            or None if that iteration was never answered.
        prediction (Tensor, optional): This iteration's softmax. The head sets it by :meth:`answer`.
        answered (bool): Whether a head did.
    """
    lam: float
    count: int
    box: Box
    image_size: Tuple[int, int]
    historical_prediction: Optional[torch.Tensor] = None
    prediction: Optional[torch.Tensor] = None
    answered: bool = False

    def answer(self, prediction: Optional[torch.Tensor]) -> None:
        """Give this iteration its prediction, shape ``(N, num_classes)``, detached; None if it is of no use."""
        self.prediction = prediction
        self.answered = True

    def __deepcopy__(self, memo) -> 'Mix':
        # A copy of a data sample still belongs to this iteration, and its answer must arrive here.
        return self


@dataclass(eq=False)
class _History:
    images: torch.Tensor
    scores: torch.Tensor
    mix: Mix
    version: int

    def overwritten(self) -> bool:
        """Whether somebody (a model that works in place on its input) wrote into the images since they were kept."""
        return _version(self.images) != self.version


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@BATCH_AUGMENTS.register_module()
class RecursiveMix:
    r"""RecursiveMix batch augmentation.

    The whole historical image, resized, fills a box of the current one. One box serves the whole batch, sample ``i`` is
    paired with sample ``i`` of the history. The inputs that are given are left as they are; the mixed ones are new and
    become the history without a copy.

    Args:
        alpha (float): :math:`\lambda \sim U(0, \alpha)`, in (0, 1]. Defaults to 0.5.
        interpolation (str): How the historical image is resized, ``'nearest'`` or ``'bilinear'``.
            Defaults to ``'nearest'``.
        history (bool): False gives the paper's ablation "RS": CutMix with resizing instead of cutting. The partner is a
            permutation of the same batch and :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`; set ``alpha=1.0`` and
            the probability in ``batch_augments``. Defaults to True.
        rng (np.random.RandomState, optional): Where :math:`\lambda` and the box come from. Defaults to None, NumPy's
            global generator, which mmengine seeds.

    Example:
        >>> import torch, torch.nn.functional as F
        >>> from mmrm import RecursiveMix
        >>> augment = RecursiveMix(alpha=0.5)
        >>> for _ in range(2):
        ...     images, labels = torch.rand(16, 3, 32, 32), torch.randint(10, (16, ))
        ...     mixed_images, mixed_scores = augment(images, F.one_hot(labels, 10))
        >>> mixed_images.shape, mixed_scores.shape
        (torch.Size([16, 3, 32, 32]), torch.Size([16, 10]))
        >>> augment.reset()  # empties the history, as at the start of an epoch
    """

    def __init__(self,
                 alpha: float = 0.5,
                 interpolation: str = 'nearest',
                 history: bool = True,
                 rng: Optional[np.random.RandomState] = None):
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha <= 1:
            raise UserValueError(f'RecursiveMix: alpha={alpha!r} must be a number in (0, 1].')
        if interpolation not in INTERPOLATIONS:
            raise UserValueError(f'RecursiveMix: interpolation={interpolation!r} must be one of {INTERPOLATIONS}.')
        if not isinstance(history, bool):
            raise UserTypeError(f'RecursiveMix: history={history!r} must be True or False.')
        self.alpha = alpha
        self.interpolation = interpolation
        self.history = history
        self.rng = rng
        self._history: Optional[_History] = None
        self._mix: Optional[Mix] = None
        self._copy_images = False
        self._warned = False

    def reset(self) -> None:
        """Empty the history: the next batch is not mixed."""
        self._history = None
        self._mix = None

    def take_mix(self) -> Optional[Mix]:
        """Return what the last call mixed, once; None if there was no call since."""
        mix, self._mix = self._mix, None
        return mix

    def __call__(self, batch_input: torch.Tensor, batch_score: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Mix a batch with the history, then make it the history.

        Args:
            batch_input (Tensor): Images, shape ``(N, C, H, W)``.
            batch_score (Tensor): One-hot or soft labels, shape ``(N, num_classes)``.

        Returns:
            tuple[Tensor, Tensor]: The mixed images and the mixed labels, same shapes, new tensors.
        """
        self._check(batch_input, batch_score)
        self._warn_if_nobody_looks()
        rng = np.random if self.rng is None else self.rng
        images, scores = batch_input.detach().clone(), batch_score.detach().to(torch.float32, copy=True)
        if not self.history:
            index = torch.randperm(len(images))
            lam, partner_images, partner_scores, prediction = (
                1 - rng.beta(self.alpha, self.alpha), batch_input.detach()[index], scores[index], None)
        elif (past := self._valid_history()) is not None:
            lam, partner_images, partner_scores, prediction = (
                sample_lambda(self.alpha, rng), past.images, past.scores, past.mix.prediction)
        else:
            lam, partner_images = 0.0, None

        height, width = images.shape[-2:]
        box = Box(0, 0, 0, 0) if partner_images is None else sample_box(lam, height, width, rng)
        if box.area:
            lam = box.area / (height * width)
            resize_fill(images, partner_images.to(images), box, self.interpolation)
            scores = mix_labels(scores, partner_scores.to(scores), lam)
            mix = Mix(lam, min(len(images), len(partner_images)), box, (height, width), prediction)
        else:
            mix = Mix(0.0, 0, box, (height, width))
        self._mix = mix
        if self.history:
            kept = images.clone() if self._copy_images else images
            self._history = _History(kept, scores.clone(), mix, _version(kept))
        return images, scores

    def _warn_if_nobody_looks(self) -> None:
        if self.history and self._mix is not None and not self._warned:
            self._warned = True
            warnings.warn(
                'Nobody looks at what RecursiveMix mixes, so there is no consistency loss (the ablation "RS + HIS"). '
                'RM needs data_preprocessor=dict(type="RMDataPreprocessor", ...) and '
                'head=dict(type="RMConsistencyHead", ...).', stacklevel=3)

    def _valid_history(self) -> Optional[_History]:
        past = self._history
        if past is not None and past.overwritten():
            warnings.warn(
                'The model changed its input in place, so the historical images are lost for this iteration. '
                'RecursiveMix keeps a copy of them from now on.', stacklevel=3)
            self._copy_images = True
            return None
        return past

    def _check(self, batch_input: torch.Tensor, batch_score: torch.Tensor) -> None:
        if batch_input.ndim != 4:
            raise UserValueError('RecursiveMix: images must have shape (N, C, H, W), but got '
                                 f'{tuple(batch_input.shape)}.')
        if batch_score.ndim != 2 or len(batch_score) != len(batch_input):
            raise UserValueError(
                f'RecursiveMix: labels must be one-hot or soft scores, shape ({len(batch_input)}, num_classes), but '
                f'got {tuple(batch_score.shape)} of {batch_score.dtype}. Integer labels become scores by '
                'torch.nn.functional.one_hot(labels, num_classes), or by `num_classes` in the data preprocessor.')
        past = self._history
        if past is not None and (past.images.shape[1] != batch_input.shape[1]
                                 or past.scores.shape[1] != batch_score.shape[1]):
            raise UserValueError(
                f'RecursiveMix: a batch of {batch_input.shape[1]} channels and {batch_score.shape[1]} classes follows '
                f'one of {past.images.shape[1]} and {past.scores.shape[1]}. Call reset() between data sets, and give '
                'each model an augment of its own.')

    def __repr__(self) -> str:
        return (f'{type(self).__name__}(alpha={self.alpha}, interpolation={self.interpolation!r}, '
                f'history={self.history})')
