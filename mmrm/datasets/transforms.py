"""Image transforms for the paper's ImageNet pipeline: as Pillow and torchvision compute them, at the speed of OpenCV.

Images are uint8 ``(H, W, 3)`` arrays in BGR, as mmcv loads them.
"""

from typing import Tuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmcv.transforms import BaseTransform
from mmcv.transforms.utils import cache_randomness
from mmpretrain.datasets import RandomResizedCrop
from mmpretrain.registry import TRANSFORMS

from ..utils.errors import UserValueError

# Principal components of ImageNet's RGB pixels (AlexNet's colour augmentation), for values from 0 to 1.
EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
LEVELS = np.arange(256, dtype=np.float32)


def resize(image: np.ndarray, size: Tuple[int, int], interpolation: str = 'bilinear') -> np.ndarray:
    """Resize with Pillow's filter, which widens when it shrinks an image; OpenCV's does not.

    torch computes it on uint8 in fixed point as Pillow does, several times faster; a value may differ by one level.

    Args:
        image (ndarray): uint8, ``(H, W, 3)``.
        size (tuple[int, int]): Height and width.
        interpolation (str): ``'bilinear'`` or ``'bicubic'``. Defaults to ``'bilinear'``.
    """
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    resized = F.interpolate(pixels, size, mode=interpolation, align_corners=False, antialias=True)
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend with black: 0 gives black, 1 the image."""
    return _map_levels(image, LEVELS * factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend with the mean grey of the image: 0 gives that grey, 1 the image."""
    mean = round(cv2.mean(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY))[0])
    return _map_levels(image, LEVELS * factor + mean * (1 - factor))


def saturation(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend with the grey image: 0 gives that, 1 the image."""
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    return cv2.addWeighted(image, factor, grey, 1 - factor, 0)


def lighting_shift(alpha: np.ndarray) -> np.ndarray:
    """What PCA lighting adds to red, green and blue, for pixels from 0 to 255.

    Args:
        alpha (ndarray): Weight of each of the three components.
    """
    return 255 * EIGENVECTORS @ (alpha * EIGENVALUES)


def _map_levels(image: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Replace every level by ``levels`` (256 values, or one column a channel), rounded and saturated."""
    table = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
    return cv2.LUT(image, table if table.ndim == 1 else table[None])


@TRANSFORMS.register_module()
class RMRandomResizedCrop(RandomResizedCrop):
    """mmpretrain's ``RandomResizedCrop``, resized with Pillow's filter at OpenCV's speed (see :func:`resize`).

    Args:
        scale (int | Sequence[int]): Height and width of the result.
        interpolation (str): ``'bilinear'`` or ``'bicubic'``. Defaults to ``'bilinear'``.
        **kwargs: ``crop_ratio_range``, ``aspect_ratio_range`` and ``max_attempts`` of mmpretrain's.
    """

    def __init__(self, scale, interpolation: str = 'bilinear', **kwargs):
        if interpolation not in ('bilinear', 'bicubic'):
            raise UserValueError(f'RMRandomResizedCrop: interpolation={interpolation!r} must be bilinear or bicubic.')
        super().__init__(scale, interpolation=interpolation, **kwargs)

    def transform(self, results: dict) -> dict:
        """Crop and resize ``results['img']``."""
        top, left, height, width = self.rand_crop_params(results['img'])
        crop = results['img'][top : top + height, left : left + width]
        results['img'] = resize(crop, tuple(self.scale), self.interpolation)
        results['img_shape'] = results['img'].shape
        return results


@TRANSFORMS.register_module()
class RMColorJitter(BaseTransform):
    """Change brightness, contrast and saturation by random factors, in random order, as torchvision does.

    mmpretrain's ``ColorJitter`` hands BGR images to Pillow, which takes blue for red when it computes greys.

    Args:
        brightness, contrast, saturation (float): A factor is drawn from ``[max(0, 1 - x), 1 + x]``. Default to 0.
    """

    def __init__(self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0):
        self.ranges = dict(brightness=brightness, contrast=contrast, saturation=saturation)
        for name, value in self.ranges.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise UserValueError(f'RMColorJitter: {name}={value!r} must be a number >= 0.')

    @cache_randomness
    def _sample(self) -> list:
        """Pairs of a function and its factor, in random order."""
        order = np.random.permutation([brightness, contrast, saturation])
        ranges = {function: self.ranges[function.__name__] for function in order}
        return [(function, np.random.uniform(max(0, 1 - x), 1 + x)) for function, x in ranges.items() if x]

    def transform(self, results: dict) -> dict:
        """Change ``results['img']``."""
        image = np.ascontiguousarray(results['img'])  # flips leave views with negative strides
        for function, factor in self._sample():
            image = function(image, factor)
        results['img'] = image
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}({", ".join(f"{name}={value}" for name, value in self.ranges.items())})'


@TRANSFORMS.register_module()
class RMLighting(BaseTransform):
    """PCA lighting of ImageNet: one random colour is added to all pixels of an image, saturating at 0 and 255.

    mmpretrain's ``Lighting`` casts the sum to uint8, where 256 becomes 0: bright pixels turn dark.

    Args:
        std (float): Standard deviation of the components' weights. Defaults to 0.1.
        to_rgb (bool): Whether the images are BGR, as OpenCV loads them. Defaults to True.
    """

    def __init__(self, std: float = 0.1, to_rgb: bool = True):
        if not isinstance(std, (int, float)) or std < 0:
            raise UserValueError(f'RMLighting: std={std!r} must be a number >= 0.')
        self.std = std
        self.to_rgb = to_rgb

    @cache_randomness
    def _sample(self) -> np.ndarray:
        return np.random.normal(0, self.std, 3)

    def transform(self, results: dict) -> dict:
        """Add the colour to ``results['img']``, uint8 (H, W, 3)."""
        shift = lighting_shift(self._sample())
        if self.to_rgb:
            shift = shift[::-1]
        results['img'] = _map_levels(np.ascontiguousarray(results['img']), LEVELS[:, None] + shift)
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(std={self.std}, to_rgb={self.to_rgb})'
