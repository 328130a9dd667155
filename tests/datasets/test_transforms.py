import cv2
import mmcv
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import ColorJitter

import mmrm.models  # noqa: F401
from mmrm.datasets import transforms
from mmrm.datasets.transforms import EIGENVALUES, EIGENVECTORS, RMColorJitter, RMLighting, RMRandomResizedCrop
from mmrm.utils.errors import UserValueError


@pytest.mark.parametrize('to_rgb', [True, False])
def test_lighting_equals_mmcvs_in_float_but_saturates(to_rgb):
    image = np.random.randint(0, 256, (16, 12, 3), dtype=np.uint8)
    vectors = EIGENVECTORS[::-1] if to_rgb else EIGENVECTORS
    saturated = 0
    for seed in range(20):
        np.random.seed(seed)
        wanted = mmcv.adjust_lighting(image, 255 * EIGENVALUES, vectors, alphastd=0.1, to_rgb=False)
        np.random.seed(seed)
        got = RMLighting(std=0.1, to_rgb=to_rgb)(dict(img=image.copy()))['img']
        assert got.dtype == np.uint8
        assert np.abs(got - np.clip(wanted, 0, 255)).max() <= 0.5 + 1e-4
        saturated += int((wanted > 255).sum() + (wanted < 0).sum())
    assert saturated > 0


def picture(height=60, width=80):
    """Smooth colours with noise, BGR."""
    rng = np.random.RandomState(1)
    image = cv2.resize(rng.randint(0, 256, (6, 8, 3)).astype(np.uint8), (width, height))
    return np.clip(image.astype(int) + rng.randint(-20, 20, image.shape), 0, 255).astype(np.uint8)


@pytest.mark.parametrize('interpolation, filter', [('bilinear', Image.BILINEAR), ('bicubic', Image.BICUBIC)])
@pytest.mark.parametrize('size', [(20, 30), (60, 80), (100, 90)], ids=['smaller', 'same', 'larger'])
def test_resize_is_pillows_to_one_level(size, interpolation, filter):
    image = picture()[:, 5:]
    wanted = np.asarray(Image.fromarray(image).resize(size[::-1], filter)).astype(int)
    difference = np.abs(transforms.resize(image, size, interpolation) - wanted)
    assert difference.max() <= (1 if interpolation == 'bilinear' else 2) and difference.mean() < 0.05


def test_jitter_takes_bgr():
    """A grey of red is not that of blue."""
    blue = np.zeros((4, 4, 3), np.uint8)
    blue[..., 0] = 200
    torch.manual_seed(0)
    got = RMColorJitter(saturation=1.0)(dict(img=blue))['img']
    torch.manual_seed(0)
    wanted = ColorJitter(saturation=1.0)(Image.fromarray(blue[..., ::-1]))
    assert np.array_equal(got[..., ::-1], wanted) and not np.array_equal(got, blue)


def test_crop_takes_the_box_that_mmpretrain_draws():
    image = picture()
    crop = RMRandomResizedCrop(scale=(24, 32))
    np.random.seed(3)
    top, left, height, width = crop.rand_crop_params(image)
    np.random.seed(3)
    got = crop(dict(img=image))
    assert got['img_shape'] == (24, 32, 3)
    assert np.array_equal(got['img'], transforms.resize(image[top : top + height, left : left + width], (24, 32)))


@pytest.mark.parametrize(
    'kind, bad',
    [
        (RMLighting, dict(std=-0.1)),
        (RMColorJitter, dict(contrast=-1)),
        (RMRandomResizedCrop, dict(scale=8, interpolation='area')),
    ],
)
def test_bad_arguments_are_named(kind, bad):
    with pytest.raises(UserValueError, match=[*bad][-1]):
        kind(**bad)
