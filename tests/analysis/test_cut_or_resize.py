"""Label against image: with resizing they agree, with cutting they drift apart."""

import pytest
import torch
from tiny_run import write_run

from mmrm.core import RecursiveMix
from mmrm.utils.errors import UserValueError
from tools.analysis import classifiers, cut_or_resize


def test_resizing_is_recursive_mix_itself():
    import numpy as np

    images = torch.rand(6, 3, 24, 24)
    augment = RecursiveMix(alpha=0.5, rng=np.random.RandomState(7))
    for index, step in enumerate(cut_or_resize.recurse(images, 'resize', 0.5, seed=7)):
        mixed, scores = augment(images[index : index + 1], torch.eye(6)[index : index + 1])
        assert torch.equal(step.image, mixed[0]) and torch.allclose(step.label, scores[0])


def test_label_and_image_agree_after_resizing():
    for seed in range(5):
        steps = cut_or_resize.recurse(torch.zeros(8, 1, 224, 224), 'resize', seed=seed)
        assert max(step.mismatch for step in steps) < 0.02  # what rounding to pixels leaves


def test_label_and_image_differ_after_cutting():
    curves = cut_or_resize.mismatches(iterations=6, runs=10, size=64)
    assert curves['cut'][:2] == pytest.approx([0, 0], abs=1e-6)  # one paste is right either way
    assert (curves['cut'][2:] > 3 * curves['resize'][2:]).all()


def test_a_class_that_was_cut_away_stays_in_the_label():
    runs = [cut_or_resize.recurse(torch.zeros(3, 1, 64, 64), 'cut', seed=seed)[-1] for seed in range(20)]
    lost = [step for step in runs if step.label[0] > 0.05 and step.visible[0] == 0]
    assert lost and all(step.mismatch > 0.05 for step in lost)


def test_labels_and_images_sum_to_one():
    for way in cut_or_resize.WAYS:
        for step in cut_or_resize.recurse(torch.zeros(5, 1, 32, 48), way):
            assert float(step.label.sum()) == pytest.approx(1) and float(step.visible.sum()) == pytest.approx(1)


def test_the_figure_and_its_mistakes(tmp_path):
    cfg = classifiers.load_config(write_run(tmp_path, images=6), part='train')
    figure = cut_or_resize.draw(cfg, iterations=3, curves=cut_or_resize.mismatches(3, 1, 16), foot=['x'])
    assert len(figure.axes) == 2 * 3 + 1
    assert 'label → image' in figure.axes[0].get_xlabel()
    with pytest.raises(UserValueError, match="way='paste' must be one of cut, resize"):
        cut_or_resize.recurse(torch.zeros(1, 1, 2, 2), 'paste')
