"""Manifold Mixup: Mixup of the features at a layer that is drawn anew for every batch.

`Manifold Mixup: Better Representations by Interpolating Hidden States <https://arxiv.org/abs/1806.05236>`_
"""

from typing import Union

import torch


def manifold_mixup(features: torch.Tensor, index: torch.Tensor, lam: Union[float, torch.Tensor]) -> torch.Tensor:
    r"""Return :math:`\lambda h_i + (1 - \lambda) h_{\mathrm{index}(i)}`.

    Args:
        features: What the layer puts out, shape ``(N, ...)``.
        index: Partner of each sample, shape ``(N, )``.
        lam: The share that a sample keeps of its own, a number or a tensor without dimensions.
    """
    return lam * features + (1 - lam) * features[index]
