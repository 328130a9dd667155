"""Image transforms for the paper's ImageNet pipeline: as Pillow and torchvision compute them, at the speed of OpenCV.

Images are uint8 ``(H, W, 3)`` arrays in BGR, as mmcv loads them. Colours, which cost time and can be changed in a whole
batch, are only drawn here; :class:`mmrm.models.data_preprocessor.RMDataPreprocessor` applies them on its device.
"""

from typing import List, Optional, Tuple

import mmcv
import numpy as np
import torch
import torch.nn.functional as F
from mmcv.transforms import BaseTransform
from mmcv.transforms.utils import cache_randomness
from mmengine import fileio
from mmpretrain.datasets import PackInputs, RandomResizedCrop
from mmpretrain.registry import TRANSFORMS
from PIL import Image
from torchvision.transforms import ColorJitter

from ..utils.errors import UserValueError, check_numbers
from . import colors
from .images import LoadCheckedImage
from .jpeg import crop_decoder

# Principal components of ImageNet's RGB pixels (AlexNet's colour augmentation), for values from 0 to 1.
EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


def resize(image: np.ndarray, size: Tuple[int, int], interpolation: str = 'bilinear') -> np.ndarray:
    """Resize with Pillow's filter, which widens when it shrinks an image; OpenCV's does not.

    torch computes it on uint8 in fixed point as Pillow does, several times faster; a value may differ by one level.
    Its result lies in memory as one plane a channel, which is what a batch is made of: the array returned is a view of
    that, so that nothing is moved twice.

    Args:
        image (ndarray): uint8, ``(H, W, 3)``.
        size (tuple[int, int]): Height and width.
        interpolation (str): ``'bilinear'`` or ``'bicubic'``. Defaults to ``'bilinear'``.
    """
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    resized = F.interpolate(pixels, size, mode=interpolation, align_corners=False, antialias=True)
    return resized[0].contiguous().permute(1, 2, 0).numpy()


def lighting_shift(alpha: np.ndarray) -> np.ndarray:
    """What PCA lighting adds to red, green and blue, for pixels from 0 to 255.

    Args:
        alpha (ndarray): Weight of each of the three components.
    """
    return 255 * EIGENVECTORS @ (alpha * EIGENVALUES)


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
        return self._finish(results, results['img'][top : top + height, left : left + width])

    def _finish(self, results: dict, crop: np.ndarray) -> dict:
        results['img'] = resize(crop, tuple(self.scale), self.interpolation)
        results['img_shape'] = results['img'].shape
        return results


@TRANSFORMS.register_module()
class RMLoadResizedCrop(RMRandomResizedCrop):
    """``LoadImageFromFile`` and :class:`RMRandomResizedCrop` in one, which decodes no more of a JPEG than the crop.

    Boxes and pixels are those of the two; where :func:`mmrm.datasets.jpeg.crop_decoder` finds no library, or a file is
    damaged, turned, CMYK, huge or no JPEG, it is the two. The box is drawn from the size in the file's header. A file
    that is cut short or too large is an error that names it.

    Args:
        scale (int | Sequence[int]): Height and width of the result.
        interpolation (str): ``'bilinear'`` or ``'bicubic'``. Defaults to ``'bilinear'``.
        backend_args (dict, optional): Of ``LoadImageFromFile``: where files are, if not on a disk. Defaults to None.
        **kwargs: ``crop_ratio_range``, ``aspect_ratio_range`` and ``max_attempts`` of mmpretrain's.
    """

    def __init__(self, scale, interpolation: str = 'bilinear', backend_args: Optional[dict] = None, **kwargs):
        super().__init__(scale, interpolation=interpolation, **kwargs)
        self.backend_args = backend_args
        self.load = LoadCheckedImage(backend_args=backend_args)
        crop_decoder()  # looked for once, here, and not in every worker

    def transform(self, results: dict) -> dict:
        """Load, crop and resize the image at ``results['img_path']``."""
        decoder = crop_decoder()
        content = fileio.get(results['img_path'], self.backend_args) if decoder else b''
        header = decoder.header(content) if decoder else None
        if header is None:
            return super().transform(self.load(results))
        box = self.rand_crop_params(header)
        crop = decoder.decode(content, header, box)
        if crop is None:
            top, left, height, width = box
            crop = self.load(results)['img'][top : top + height, left : left + width]
        results['ori_shape'] = header.shape
        return self._finish(results, crop)


@TRANSFORMS.register_module()
class RMColors(BaseTransform):
    """Draws the authors' colour jitter and PCA lighting, which ``RMDataPreprocessor`` applies to the batch.

    They work on floats and clip nothing, see :mod:`mmrm.datasets.colors`. The image is left as it is, its colour
    change goes into ``results``; ``RMPackInputs`` hands it on.

    Args:
        brightness, contrast, saturation (float): A factor is drawn from ``[max(0, 1 - x), 1 + x]``. Default to 0.
        lighting (float): Standard deviation of the weights of the three components of colour. Defaults to 0.
    """

    def __init__(self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, lighting: float = 0.0):
        self.ranges = dict(brightness=brightness, contrast=contrast, saturation=saturation)
        self.lighting = lighting
        check_numbers('RMColors', 0, **self.ranges, lighting=lighting)

    @cache_randomness
    def _sample(self) -> List[Tuple[str, float]]:
        """Names and factors in random order, those of a range of 0 left out."""
        ranges = list(self.ranges.items())
        order = [ranges[index] for index in np.random.permutation(3)]
        return [(name, np.random.uniform(max(0, 1 - spread), 1 + spread)) for name, spread in order if spread]

    @cache_randomness
    def _sample_lighting(self) -> np.ndarray:
        return np.random.normal(0, self.lighting, 3) if self.lighting else np.zeros(3)

    def transform(self, results: dict) -> dict:
        """Add the colour change, float32 ``(3, 7)``."""
        change = colors.identity()
        for name, factor in self._sample():
            change = getattr(colors, name)(change, factor)
        change = colors.lighting(change, lighting_shift(self._sample_lighting()) / 255)
        results[colors.COLORS_FIELD] = change.astype(np.float32)
        return results

    def __repr__(self) -> str:
        settings = dict(self.ranges, lighting=self.lighting)
        return f'{type(self).__name__}({", ".join(f"{name}={value}" for name, value in settings.items())})'


@TRANSFORMS.register_module()
class RMCutout(BaseTransform):
    """Draws the hole of Cutout, which ``RMDataPreprocessor`` fills with the mean colour after all other colours.

    mmcv's ``Cutout`` fills it with a colour that :class:`RMColors` would change. The hole is drawn as there: one that
    would cross the upper or left edge is moved into the image.

    Args:
        shape (int): Height and width of the hole.
        prob (float): How often there is one. Defaults to 1.
    """

    def __init__(self, shape: int, prob: float = 1.0):
        check_numbers('RMCutout', 1, integer=True, shape=shape)
        check_numbers('RMCutout', 0, 1, prob=prob)
        self.shape = shape
        self.prob = prob

    @cache_randomness
    def _sample(self, height: int, width: int) -> np.ndarray:
        if np.random.rand() > self.prob:
            return np.zeros(4, np.int64)
        corner = [int(max(0, np.random.uniform(length) - self.shape / 2)) for length in (height, width)]
        ends = [min(length, start + self.shape) for length, start in zip((height, width), corner)]
        return np.array(corner + ends)

    def transform(self, results: dict) -> dict:
        """Add the hole: top, left, bottom, right."""
        results[colors.HOLE_FIELD] = self._sample(*results['img'].shape[:2])
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(shape={self.shape}, prob={self.prob})'


@TRANSFORMS.register_module()
class RMPackInputs(PackInputs):
    """mmpretrain's ``PackInputs``, which hands on what :class:`RMColors` and :class:`RMCutout` have drawn."""

    def transform(self, results: dict) -> dict:
        """Pack the image, its label and what was drawn for it."""
        packed = super().transform(results)
        for field in (colors.COLORS_FIELD, colors.HOLE_FIELD):
            if field in results:
                packed['data_samples'].set_field(results[field], field)
        return packed


@TRANSFORMS.register_module()
class RMColorJitter(BaseTransform):
    """torchvision's ``ColorJitter`` for the BGR images of mmcv: random factors, in random order.

    mmpretrain's ``ColorJitter`` hands BGR images to Pillow, which takes blue for red when it computes greys. Values
    saturate at 0 and 255; the authors' do not: the paper's recipes use :class:`RMColors`. This one works with any data
    preprocessor.

    Args:
        brightness, contrast, saturation (float): A factor is drawn from ``[max(0, 1 - x), 1 + x]``. Default to 0.
    """

    def __init__(self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0):
        check_numbers('RMColorJitter', 0, brightness=brightness, contrast=contrast, saturation=saturation)
        self.jitter = ColorJitter(brightness, contrast, saturation)

    def transform(self, results: dict) -> dict:
        """Change ``results['img']``."""
        image = self.jitter(Image.fromarray(results['img'][..., ::-1]))
        results['img'] = np.asarray(image)[..., ::-1]
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.jitter})'


@TRANSFORMS.register_module()
class RMLighting(BaseTransform):
    """PCA lighting of ImageNet: one random colour is added to all pixels of an image, saturating at 0 and 255.

    mmpretrain's ``Lighting`` casts the sum to uint8, where 256 becomes 0: bright pixels turn dark.

    Args:
        std (float): Standard deviation of the components' weights. Defaults to 0.1.
        to_rgb (bool): Whether the images are BGR, as OpenCV loads them. Defaults to True.
    """

    def __init__(self, std: float = 0.1, to_rgb: bool = True):
        check_numbers('RMLighting', 0, std=std)
        self.std = std
        self.to_rgb = to_rgb

    def transform(self, results: dict) -> dict:
        """Add the colour to ``results['img']``, uint8 (H, W, 3)."""
        vectors = EIGENVECTORS[::-1] if self.to_rgb else EIGENVECTORS
        image = mmcv.adjust_lighting(results['img'], 255 * EIGENVALUES, vectors, self.std, to_rgb=False)
        results['img'] = np.clip(np.rint(image), 0, 255).astype(np.uint8)
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(std={self.std}, to_rgb={self.to_rgb})'
