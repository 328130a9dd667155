"""``mmcv.adjust_hue``, and with it mmpretrain's ``ColorJitter``, beside NumPy 2.

The hue is a circle of 256 steps in a uint8, and mmcv turns it by ``np.uint8(hue_factor * 255)``. NumPy 1 took -25 for
231, the same turn; NumPy 2 refuses negative numbers there.
"""

import functools

import numpy as np

REASON = 'mmcv.adjust_hue fails with a negative factor, and with it ColorJitter'
VERSIONS = 'mmcv 2.1 and older with NumPy 2'


class _Turn(float):
    """A hue factor that counts its steps around the circle, so that none is negative."""

    def __mul__(self, steps: int) -> int:
        return int(float(self) * steps) % 256


def needed() -> bool:
    """Whether mmcv cannot turn the hue back."""
    import mmcv

    try:
        mmcv.adjust_hue(np.zeros((1, 1, 3), np.uint8), -0.1, backend='cv2')
    except OverflowError:
        return True
    return False


def apply() -> None:
    """Replace ``adjust_hue`` wherever mmcv offers it."""
    import mmcv
    from mmcv.image import photometric

    inner = photometric.adjust_hue

    @functools.wraps(inner)
    def adjust_hue(img, hue_factor, backend=None):
        return inner(img, _Turn(hue_factor), backend)

    for module in (photometric, mmcv.image, mmcv):
        module.adjust_hue = adjust_hue
