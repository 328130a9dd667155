"""The labels of a batch whose samples were mixed in pairs."""

from typing import Union

import torch


def mix_labels(scores: torch.Tensor, index: torch.Tensor, lam: Union[float, torch.Tensor]) -> torch.Tensor:
    r"""Return :math:`\lambda y_i + (1 - \lambda) y_{\mathrm{index}(i)}`.

    The cross entropy with these labels is :math:`\lambda\,\mathrm{CE}_i + (1 - \lambda)\,\mathrm{CE}_{index(i)}`.

    Args:
        scores: One-hot or soft labels, shape ``(N, num_classes)``.
        index: Partner of each sample, shape ``(N, )``.
        lam: The share that a sample keeps of its own: a number, or one for each sample, shape ``(N, )``.

    Returns:
        Float, shape ``(N, num_classes)``.
    """
    scores = scores.float()
    if isinstance(lam, torch.Tensor) and lam.ndim:
        lam = lam.to(scores).view(-1, 1)
    return lam * scores + (1 - lam) * scores[index]
