r"""MoEx, Moment Exchange: a sample's features with the moments of another sample's.

`On Feature Normalization and Data Augmentation <https://arxiv.org/abs/2002.11102>`_. The moments are those of
positional normalisation: over the channels, at each position.
"""

from typing import Any, Optional, Sequence, Tuple

import torch

from ...core import mix_labels, to_device
from ...utils.errors import check_numbers
from .feature_cutmix import FeatureCutMix
from .layer_mix import INPUT, LayerMix

EPS = 1e-5


def moments(features: torch.Tensor, eps: float = EPS) -> Tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation over the channels at each position, in float32 at least.

    Args:
        features: Shape ``(N, C, ...)`` with two dimensions or more after the channels, or ``(N, L, C)``, tokens.
        eps: Added to the (unbiased) variance.

    Returns:
        Two tensors with one channel.
    """
    dim = -1 if features.ndim == 3 else 1
    if features.shape[dim] < 2:
        raise ValueError(
            f'MoEx: features of shape {tuple(features.shape)} have {features.shape[dim]} channel; the '
            'moments over channels need two or more.'
        )
    wide = features.to(torch.promote_types(features.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, dim=dim, keepdim=True)
    return mean, (variance + eps).sqrt()


def exchange_moments(features: torch.Tensor, index: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    r"""Return σ_index(i) (h_i - μ_i) / σ_i + μ_index(i).

    Gradients flow through the moments of both.

    Args:
        features: See :func:`moments`.
        index: Partner of each sample, shape ``(N, )``.
        eps: See :func:`moments`.
    """
    mean, std = moments(features, eps)
    return ((features - mean) / std * std[index] + mean[index]).to(features.dtype)


class MoEx(LayerMix):
    r"""Moment Exchange at a layer. ``probs`` of ``batch_augments`` is how often it is applied.

    The label keeps ``lam`` of its own, which is the loss λ CE_a + (1 - λ) CE_b.

    Args:
        lam (float): The share of the sample whose moments are replaced, in [0, 1]. Defaults to 0.5.
        layer (str): A module of the backbone (or ``'input'``). Defaults to ``'maxpool'``, the end of a ResNet's stem.
        rng (np.random.RandomState, optional): Not used by MoEx itself, whose permutation is torch's.

    Example:
        >>> data_preprocessor = dict(batch_augments=dict(augments=dict(type='MoEx', lam=0.5, layer='bn1'), probs=0.25))
    """

    mix_features = staticmethod(exchange_moments)

    def __init__(self, lam: float = 0.5, layer: str = 'maxpool', rng: Any = None):
        super().__init__(layer, rng)
        check_numbers(self._name, 0, 1, lam=lam)
        self.lam = float(lam)

    def draw(self, count: int, size: Sequence[int]):
        index = torch.randperm(count)
        return dict(index=index), index, self.lam


class CutMixMoEx(MoEx):
    r"""CutMix of the images and, for some of the batches, MoEx of the mixed images with the same partners.

    With c the share that CutMix leaves a sample and λ that of MoEx, the label is::

        c λ y_a + ((1 - c) λ + c (1 - λ)) y_b + (1 - c) (1 - λ) y_b'

    b the partner of a and b' that of b.

    Args:
        alpha (float): Of CutMix, c ~ Beta(α, α), above 0. Defaults to 1.0.
        lam (float): Of MoEx, in [0, 1]. Defaults to 0.9.
        moex_prob (float): Probability that a batch also has its moments exchanged, in [0, 1]. Defaults to 0.25.
        layer (str): Where: a module of the backbone (or ``'input'``). Defaults to ``'maxpool'``.
        rng (np.random.RandomState, optional): Defaults to None, NumPy's global generator.

    Example:
        >>> data_preprocessor = dict(batch_augments=dict(augments=dict(type='CutMixMoEx', lam=0.9, moex_prob=0.25)))
    """

    def __init__(
        self, alpha: float = 1.0, lam: float = 0.9, moex_prob: float = 0.25, layer: str = 'maxpool', rng: Any = None
    ):
        super().__init__(lam, layer, rng)
        check_numbers(self._name, 0, 1, moex_prob=moex_prob)
        check_numbers(self._name, 0, above=True, alpha=alpha)
        self.moex_prob, self.cutmix = moex_prob, FeatureCutMix(alpha, INPUT, rng)
        self._index: Optional[torch.Tensor] = None

    def draw(self, count: int, size: Sequence[int]):
        return dict(index=self._index), self._index, self.lam

    def _mix_batch(self, inputs: torch.Tensor, scores: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        self.clear()
        arguments, _, share = self.cutmix.draw(len(inputs), inputs.shape[1:])
        arguments = {name: to_device(value, inputs.device) for name, value in arguments.items()}
        self._index = arguments['index']
        inputs = self.cutmix.mix_features(inputs, **arguments)
        scores = mix_labels(scores, scores[self._index], 1 - share)
        if self._generator.rand() < self.moex_prob:
            return self._mix_at(self.layers[0], inputs, scores)
        return inputs, scores
