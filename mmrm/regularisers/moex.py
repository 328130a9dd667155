r"""MoEx, Moment Exchange: a sample's features with the moments of another sample's.

`On Feature Normalization and Data Augmentation <https://arxiv.org/abs/2002.11102>`_. The moments are those of
positional normalisation: over the channels, at each position.
"""

from typing import Tuple

import torch

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
    r"""Return :math:`\sigma_{\mathrm{index}(i)} (h_i - \mu_i) / \sigma_i + \mu_{\mathrm{index}(i)}`.

    Gradients flow through the moments of both.

    Args:
        features: See :func:`moments`.
        index: Partner of each sample, shape ``(N, )``.
        eps: See :func:`moments`.
    """
    mean, std = moments(features, eps)
    return ((features - mean) / std * std[index] + mean[index]).to(features.dtype)
