"""The authors' colour augmentation as one matrix and one offset an image, applied to a batch on the training device.

Brightness, contrast, saturation and lighting work on floats from 0 to 1 and clip nothing. Each is affine in a pixel's
RGB, so all of them together with the normalisation are, too. Only contrast needs the image: its mean RGB.

A colour change is an array ``(3, 7)``: of a pixel ``x`` of an image with the mean ``m``, both RGB from 0 to 1, it makes
``change[:, :3] @ x + change[:, 3:6] @ m + change[:, 6]``.
"""

import numpy as np
import torch

GREY = np.array([0.299, 0.587, 0.114])
COLORS_FIELD = 'rm_colors'  # of a data sample: its colour change
HOLE_FIELD = 'rm_hole'  # of a data sample: top, left, bottom and right of what becomes the mean colour
CPU_CHUNK = 4  # images at a time on a CPU, so that what is made of them stays in its cache


def identity() -> np.ndarray:
    """The colour change that changes nothing."""
    return np.eye(3, 7)


def brightness(change: np.ndarray, factor: float) -> np.ndarray:
    """Then ``factor * x``."""
    return factor * change


def contrast(change: np.ndarray, factor: float) -> np.ndarray:
    """Then ``factor * x + (1 - factor) * mean(grey(x))``."""
    grey = GREY @ change
    grey[3:6] += grey[:3]  # the mean of what a change makes is what it makes of the mean
    grey[:3] = 0
    return factor * change + (1 - factor) * grey


def saturation(change: np.ndarray, factor: float) -> np.ndarray:
    """Then ``factor * x + (1 - factor) * grey(x)``."""
    return factor * change + (1 - factor) * (GREY @ change)


def lighting(change: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Then ``x + shift``."""
    change = change.copy()
    change[:, 6] += shift
    return change


def apply_colors(
    images: torch.Tensor, changes: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, bgr: bool
) -> torch.Tensor:
    """Change the colours of a batch and normalise it: ``(change(x) - mean) / std``, RGB, float32.

    There is no matrix product in it, which autocast and TF32 would round, and nothing waits for the device.

    Args:
        images: ``(N, 3, H, W)``, values from 0 to 255.
        changes: ``(N, 3, 7)``, on the device of the images.
        mean, std: ``(3, 1, 1)``, for values from 0 to 255.
        bgr: Whether the images are BGR.
    """
    mean, std = mean.flatten().float(), std.flatten().float()
    matrix, of_mean, shift = changes[..., :3], changes[..., 3:6], changes[..., 6]
    if bgr:
        matrix, of_mean = matrix.flip(-1), of_mean.flip(-1)
    matrix = (matrix / std[:, None])[..., None, None]
    constant = (255 * shift - mean) / std
    of_mean = of_mean / std[:, None]
    out = torch.empty_like(images, dtype=torch.float32)
    step = CPU_CHUNK if images.device.type == 'cpu' else max(len(images), 1)
    for some in (slice(start, start + step) for start in range(0, len(images), step)):
        pixels, made, weights = images[some].float(), out[some], matrix[some]
        offset = constant[some] + (of_mean[some] * pixels.mean((2, 3))[:, None]).sum(-1)
        torch.addcmul(offset[..., None, None], weights[:, :, 0], pixels[:, :1], out=made)
        made.addcmul_(weights[:, :, 1], pixels[:, 1:2]).addcmul_(weights[:, :, 2], pixels[:, 2:])
    return out


def fill_holes(images: torch.Tensor, holes: torch.Tensor) -> torch.Tensor:
    """Set a rectangle of each image, ``(N, C, H, W)``, to 0, in place.

    Args:
        holes: Top, left, bottom and right, ``(N, 4)``, on the device of the images; bottom and right are excluded.
    """
    top, left, bottom, right = holes[..., None].unbind(1)
    rows = torch.arange(images.shape[2], device=images.device)
    columns = torch.arange(images.shape[3], device=images.device)
    rows, columns = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    return images.masked_fill_((rows[:, :, None] & columns[:, None])[:, None], 0)
