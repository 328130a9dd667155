"""The hue of mmcv beside NumPy 2."""

import mmcv
import numpy as np
import pytest
from mmcv.image import photometric
from mmpretrain.datasets.transforms import ColorJitter

from mmrm.compat import hue

# Of this pixel in BGR, by hue factor: mmcv 2.1.0 and OpenCV 4.11 with NumPy 1.26.4, which wraps as C does.
PIXEL = (30, 90, 210)
NUMPY_1 = {
    -0.5: (210, 144, 30),
    -0.4: (210, 38, 30),
    -0.25: (210, 30, 187),
    -0.1: (72, 30, 210),
    -0.004: (30, 85, 210),
    -0.003: (30, 89, 210),
    0.0: (30, 89, 210),
    0.1: (30, 195, 210),
    0.25: (30, 210, 64),
    0.5: (210, 153, 30),
}


def colours() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def test_pixels_are_those_of_numpy_1():
    """Also where the factor is a number of NumPy's, and Pillow turns as well."""
    for factor, expected in NUMPY_1.items():
        for number in (factor, np.float64(factor)):
            assert tuple(mmcv.adjust_hue(np.array([[PIXEL]], np.uint8), number, backend='cv2')[0, 0]) == expected
        assert mmcv.adjust_hue(colours(), factor, backend='pillow').dtype == np.uint8


@pytest.mark.skipif(int(np.__version__[0]) < 2, reason='NumPy 1 has no such flaw')
def test_hue_fix_is_needed_and_patches_every_name(monkeypatch):
    inner = getattr(photometric.adjust_hue, '__wrapped__', None)
    if inner is None:
        pytest.skip('this mmcv needs no repair')
    for module in (photometric, mmcv.image, mmcv):
        monkeypatch.setattr(module, 'adjust_hue', inner)
    with pytest.raises(OverflowError):
        mmcv.adjust_hue(colours(), -0.1)
    assert hue.needed()
    hue.apply()
    assert not hue.needed()
    assert mmcv.adjust_hue is mmcv.image.adjust_hue is photometric.adjust_hue


def test_mmpretrains_colour_jitter_turns_both_ways():
    np.random.seed(0)
    jitter = ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.5)
    for _ in range(20):
        assert jitter(dict(img=colours()))['img'].dtype == np.uint8
