"""CIFAR's augmentation, a random crop of the padded image and a random flip, for one image or a whole batch."""

import numpy as np
from mmcv.transforms import BaseTransform
from mmpretrain.registry import TRANSFORMS

from ..utils.errors import UserValueError, check_numbers
from .seeding import current_seed, sample_uniforms


def crop_flip(images: np.ndarray, draws: np.ndarray, crop_size: int, padding: int) -> np.ndarray:
    """Crop and flip images padded with 0, each at its own place.

    Args:
        images (ndarray): Shape ``(N, C, H, W)``.
        draws (ndarray): Integers, shape ``(N, 3)``: the crop's top and left in the padded image, and 1 for a flip.
        crop_size (int): Pixels of a crop's side.
        padding (int): Pixels on each side of the image.
    """
    padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (crop_size, crop_size), axis=(2, 3))
    top, left, flip = draws.T
    crops = windows[np.arange(len(images)), :, top, left]
    flipped = np.flatnonzero(flip)
    crops[flipped] = crops[flipped, :, :, ::-1]
    return crops


@TRANSFORMS.register_module()
class RMCropFlip(BaseTransform):
    """mmpretrain's ``RandomCrop`` after padding with 0, and its ``RandomFlip``, in one.

    The draws depend on the seed of the sample alone (:mod:`mmrm.datasets.seeding`), not on a generator, so that a whole
    batch can be drawn and cropped at once: mmrm's loops do so where this and ``PackInputs`` are the whole pipeline and
    the images lie in memory. Without such a seed the draws are NumPy's.

    Args:
        crop_size (int): Pixels of a crop's side. Defaults to 32.
        padding (int): Pixels on each side of the image. Defaults to 4.
        prob (float): Of a horizontal flip, from 0 to 1. Defaults to 0.5.
    """

    def __init__(self, crop_size: int = 32, padding: int = 4, prob: float = 0.5):
        check_numbers('RMCropFlip', 1, integer=True, crop_size=crop_size)
        check_numbers('RMCropFlip', 0, integer=True, padding=padding)
        check_numbers('RMCropFlip', 0, 1, prob=prob)
        self.crop_size, self.padding, self.prob = crop_size, padding, prob

    def draws(self, uniforms: np.ndarray, height: int, width: int) -> np.ndarray:
        """Tops, lefts and flips for images of this size from numbers in [0, 1), both of shape ``(N, 3)``."""
        room = np.array([height, width]) + 2 * self.padding - self.crop_size
        if room.min() < 0:
            raise UserValueError(
                f'RMCropFlip: an image of {height} x {width}, padded by {self.padding}, is smaller than a crop of '
                f'crop_size={self.crop_size}.'
            )
        places = (uniforms[:, :2] * (room + 1)).astype(np.int64)
        return np.concatenate([places, uniforms[:, 2:] < self.prob], axis=1)

    def batch(self, images: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """A batch of images, shape ``(N, C, H, W)``, each with its seed, shape ``(N, 3)``."""
        draws = self.draws(sample_uniforms(seeds, 3), *images.shape[2:])
        return crop_flip(images, draws, self.crop_size, self.padding)

    def transform(self, results: dict) -> dict:
        """Crop and flip ``results['img']``, shape ``(H, W, C)``."""
        seed = current_seed()
        uniforms = np.random.rand(1, 3) if seed is None else sample_uniforms(np.array([seed]), 3)
        draws = self.draws(uniforms, *results['img'].shape[:2])
        image = crop_flip(results['img'].transpose(2, 0, 1)[None], draws, self.crop_size, self.padding)[0]
        results['img'] = np.ascontiguousarray(image.transpose(1, 2, 0))
        results['img_shape'] = results['img'].shape[:2]
        results['flip'], results['flip_direction'] = bool(draws[0, 2]), 'horizontal' if draws[0, 2] else None
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(crop_size={self.crop_size}, padding={self.padding}, prob={self.prob})'
