"""Batch augments in mmpretrain's registry: RecursiveMix itself, its ablation "RS", and the other regularisers."""

from typing import Any, Optional, Tuple

import numpy as np
import torch
from mmpretrain.registry import BATCH_AUGMENTS

from ..core import INTERPOLATIONS, Mix, RecursiveMix, mix_labels, resize_fill, sample_box, to_device
from ..utils.errors import UserValueError, check_numbers
from .regularisers import CutMixMoEx, FeatureCutMix, ManifoldMixup, MoEx, PuzzleMix, StyleCutMix

for augment in (RecursiveMix, CutMixMoEx, FeatureCutMix, ManifoldMixup, MoEx, PuzzleMix, StyleCutMix):
    BATCH_AUGMENTS.register_module(module=augment)


@BATCH_AUGMENTS.register_module()
class ResizeFillMix:
    r"""The paper's ablation "RS": CutMix with resizing instead of cutting, without a history.

    The partner is a permutation of the same batch and λ ~ Beta(α, α); how often it
    is applied is ``probs`` of ``batch_augments``. It needs no other part of RM. Next to ``RMDataPreprocessor`` and
    ``RMConsistencyHead`` with ``omega=0``, λ is logged and the box drawn, as with RecursiveMix.

    Args:
        alpha: Of the beta distribution, above 0. CutMix has 1.
        interpolation: How the partner is resized, ``'nearest'`` or ``'bilinear'``.
        rng: Where λ and the box come from, an ``np.random.RandomState``. None: NumPy's global generator.
            The permutation is torch's.
    """

    def __init__(self, alpha: float = 1.0, interpolation: str = 'nearest', rng: Any = None):
        check_numbers('ResizeFillMix', 0, above=True, alpha=alpha)
        if interpolation not in INTERPOLATIONS:
            raise UserValueError(f'ResizeFillMix: interpolation={interpolation!r} must be one of {INTERPOLATIONS}.')
        self.alpha, self.interpolation, self.rng = alpha, interpolation, rng
        self._mix: Optional[Mix] = None

    def __call__(self, batch_input: torch.Tensor, batch_score: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Mix images ``(N, C, H, W)`` and one-hot or soft labels ``(N, num_classes)``; both are new tensors."""
        rng = np.random if self.rng is None else self.rng
        images, scores = batch_input.detach().clone(), batch_score.detach().to(torch.float32, copy=True)
        height, width = images.shape[-2:]
        partner = to_device(torch.randperm(len(images)), images.device)
        box = sample_box(1 - rng.beta(self.alpha, self.alpha), height, width, rng)
        self._mix = Mix(0.0, 0, box, (height, width))
        if box.area:
            self._mix.lam, self._mix.count = box.area / (height * width), len(images)
            resize_fill(images, batch_input.detach()[partner], box, self.interpolation)
            scores = mix_labels(scores, scores[partner], self._mix.lam)
        return images, scores

    def take_mix(self) -> Optional[Mix]:
        """Return what the last call mixed, once; None if there was no call since."""
        mix, self._mix = self._mix, None
        return mix

    def __repr__(self) -> str:
        return f'{type(self).__name__}(alpha={self.alpha}, interpolation={self.interpolation!r})'
