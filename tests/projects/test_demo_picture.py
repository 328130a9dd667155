"""The demo's picture shows what the network gets, and noise where it is known."""

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure

from projects.demo import picture
from projects.demo.photographs import make_photographs


def test_a_mixed_cell_holds_the_one_before_it_with_its_labels(tmp_path):
    make_photographs(tmp_path / 'photographs', train=8, val=1)
    shown = picture.mixed_images(tmp_path, count=4)
    first, label, lam, _ = shown[0]
    assert lam == 0 and label == {'Platelets': 1.0}
    for before, (image, label, lam, box) in zip(shown, shown[1:]):
        assert sum(label.values()) == pytest.approx(1, abs=1e-5)
        assert lam == pytest.approx((box.x2 - box.x1) * (box.y2 - box.y1) / 32**2)
        small = cv2.resize(before[0], (box.x2 - box.x1, box.y2 - box.y1), interpolation=cv2.INTER_NEAREST)
        pasted = image[box.y1 : box.y2, box.x1 : box.x2]
        assert np.abs(pasted.astype(int) - small).max() <= 1  # of rounding
        assert all(label[name] >= lam * share - 1e-5 for name, share in before[1].items())
    assert first.shape == (32, 32, 3) and first.dtype == np.uint8


@pytest.mark.parametrize('noise', [None, 2.5])
def test_the_noise_stands_beside_the_bars_if_it_is_known(noise):
    axis = Figure().add_subplot()
    results = {f'atss/{name}': dict(value=value) for name, value in zip(('baseline', 'cutmix', 'rm'), range(40, 43))}
    picture._draw_bars(axis, 'ATSS', 'atss', results, noise)
    assert [bar.get_height() for bar in axis.patches] == [40, 41, 42]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ['baseline', 'CutMix', 'RM'] + ['noise'] * bool(
        noise
    )
    assert any(text.get_text() == '2.5' for text in axis.texts) == bool(noise)
