"""From normalised images to pixels in 0..1 and back, by what the model's data preprocessor does."""

import torch
from torch import nn

from ...utils.errors import UserValueError

MAXIMUM = 255.0  # images arrive at a data preprocessor in 0..255


def check_preprocessor(owner: str, model: nn.Module) -> None:
    """Raise if the model has no data preprocessor, which knows how images are normalised."""
    if not isinstance(getattr(model, 'data_preprocessor', None), nn.Module):
        raise UserValueError(
            f'{owner}: {type(model).__name__} has no data_preprocessor, so the normalization of '
            'its images is unknown. Use a model of mmpretrain.'
        )


def to_pixels(images: torch.Tensor, preprocessor: nn.Module) -> torch.Tensor:
    """Undo the normalisation: images of shape ``(N, C, H, W)`` as float32 in 0..1."""
    images = images.float()
    if getattr(preprocessor, 'mean', None) is not None:
        images = images * preprocessor.std.to(images) + preprocessor.mean.to(images)
    return images / MAXIMUM


def from_pixels(pixels: torch.Tensor, preprocessor: nn.Module) -> torch.Tensor:
    """Undo :func:`to_pixels`."""
    images = pixels * MAXIMUM
    if getattr(preprocessor, 'mean', None) is not None:
        images = (images - preprocessor.mean.to(images)) / preprocessor.std.to(images)
    return images
