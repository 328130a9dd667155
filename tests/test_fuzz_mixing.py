"""benchmarks/fuzz_mixing.py in small: it agrees with the method, and notices when the method is wrong."""

import pytest
import torch

from benchmarks import fuzz_mixing
from mmrm import core


def test_random_settings_agree_with_the_slow_reference():
    assert fuzz_mixing.run(steps=600) >= 600


def swapped_labels(scores, history, lam):
    return original(scores, history, 1 - lam)


def shifted_box(lam, height, width, rng):
    box = sample_box(lam, height, width, rng)
    return core.Box(box.x1, box.y1, max(box.x2 - 1, box.x1), box.y2)


def with_nan(images, history, box, interpolation='nearest'):
    images[: len(history), :, box.y1 : box.y2, box.x1 : box.x2] = torch.nn.functional.interpolate(
        history[: len(images)], (box.y2 - box.y1, box.x2 - box.x1)
    )


original, sample_box = core.mix_labels, core.sample_box


@pytest.mark.parametrize(
    'name, wrong', [('mix_labels', swapped_labels), ('sample_box', shifted_box), ('resize_fill', with_nan)]
)
def test_a_wrong_label_box_or_nan_is_found_and_its_episode_named(name, wrong, monkeypatch):
    monkeypatch.setattr(core, name, wrong)
    with pytest.raises(fuzz_mixing.Wrong, match=r'--seed 1 --episode \d+: step \d+'):
        fuzz_mixing.run(steps=3000, seed=1)
