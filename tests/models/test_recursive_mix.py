"""The augment alone: boxes, pixels, labels, history, and what it refuses."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.registry import BATCH_AUGMENTS
from reference import PlainRM

from mmrm import RecursiveMix
from mmrm.core import Box, resize_fill, sample_box, sample_lambda
from mmrm.models.batch_augments import ResizeFillMix


def one_hot(number, num_classes=5):
    return F.one_hot(torch.randint(0, num_classes, (number,)), num_classes).float()


class FixedBox:
    """Stands for a random generator: gives one lambda and one centre."""

    def __init__(self, lam, x, y):
        self.lam, self.centre = lam, [x, y]

    def uniform(self, low, high):
        return self.lam

    def randint(self, high):
        self.centre = self.centre[1:] + self.centre[:1]
        return self.centre[-1]


def test_lambda_is_uniform_up_to_alpha():
    rng = np.random.RandomState(0)
    draws = [sample_lambda(0.5, rng) for _ in range(4000)]
    assert min(draws) >= 0 and max(draws) < 0.5
    assert abs(np.mean(draws) - 0.25) < 0.01 and abs(np.std(draws) - 0.5 / math.sqrt(12)) < 0.01


@given(lam=st.floats(0, 1), height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 2**16))
@settings(deadline=None, max_examples=300)
def test_box_lies_in_the_image_and_is_no_larger_than_asked(lam, height, width, seed):
    box = sample_box(lam, height, width, np.random.RandomState(seed))
    assert 0 <= box.x1 <= box.x2 <= width and 0 <= box.y1 <= box.y2 <= height
    assert box.x2 - box.x1 <= width * math.sqrt(lam) and box.y2 - box.y1 <= height * math.sqrt(lam)


def test_box_edges_as_in_the_method():
    # lambda 0.25 of 32 x 16: 16 wide, 8 high; around (3, 12) it is clipped on the left and at the bottom.
    assert sample_box(0.25, 16, 32, FixedBox(0.25, 3, 12)) == Box(0, 8, 11, 16)


@pytest.mark.parametrize('interpolation', ['nearest', 'bilinear'])
def test_the_whole_historical_image_is_resized_into_the_box(interpolation):
    images, history, box = torch.rand(3, 2, 20, 30), torch.rand(3, 2, 12, 17), Box(4, 5, 19, 16)
    before = images.clone()
    resize_fill(images, history, box, interpolation)
    align_corners = True if interpolation == 'bilinear' else None
    patch = F.interpolate(history, (11, 15), mode=interpolation, align_corners=align_corners)
    assert torch.equal(images[:, :, 5:16, 4:19], patch)
    if interpolation == 'bilinear':  # aligned corners: the historical image's own corners stand in the box's corners
        assert torch.allclose(images[:, :, 5, 4], history[:, :, 0, 0])
        assert torch.allclose(images[:, :, 15, 18], history[:, :, -1, -1])
    images[:, :, 5:16, 4:19] = before[:, :, 5:16, 4:19]
    assert torch.equal(images, before)


def test_changing_returned_labels_does_not_change_the_history():
    augment = RecursiveMix(rng=FixedBox(0.25, 4, 4))
    given = one_hot(2)
    _, returned = augment(torch.rand(2, 3, 8, 8), given)
    expected = given.clone()
    returned.mul_(0.9)  # smoothed in place
    given.zero_()  # a buffer that is used again
    assert torch.allclose(returned, 0.9 * expected)
    second = one_hot(2)
    _, mixed = augment(torch.rand(2, 3, 8, 8), second)
    lam = augment.take_mix().lam
    assert lam > 0 and torch.allclose(mixed, lam * expected + (1 - lam) * second)


@pytest.mark.parametrize('size, lam', [((32, 32), 0.0), ((64, 8), 0.05)], ids=['no side', 'one side zero'])
def test_empty_box_mixes_nothing_but_updates_the_history(size, lam):
    rng = FixedBox(lam, 4, 4)
    augment = RecursiveMix(rng=rng)
    augment(torch.rand(2, 3, *size), one_hot(2))
    images, scores = torch.rand(2, 3, *size), one_hot(2)
    mixed_images, mixed_scores = augment(images, scores)
    assert torch.equal(mixed_images, images) and torch.equal(mixed_scores, scores)
    assert augment.take_mix().lam == 0
    rng.lam = 0.5
    third, _ = augment(torch.zeros(2, 3, *size), scores)
    mix = augment.take_mix()
    box = mix.box
    assert mix.lam > 0
    patch = F.interpolate(images, (box.y2 - box.y1, box.x2 - box.x1), mode='nearest')
    assert torch.equal(third[:, :, box.y1 : box.y2, box.x1 : box.x2], patch)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 14), st.integers(1, 14)), min_size=2, max_size=6),
    alpha=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**16),
)
@settings(deadline=None, max_examples=60)
def test_equals_the_plain_loops_whatever_the_sizes(sizes, alpha, seed):
    """Batches that grow and shrink, image sizes that change, boxes that are empty."""
    plain = PlainRM(alpha, 0, np.random.RandomState(seed))
    augment = RecursiveMix(alpha=alpha, rng=np.random.RandomState(seed))
    for number, height, width in sizes:
        images, scores = torch.rand(number, 2, height, width), one_hot(number)
        expected_images, expected_scores = plain.mix(images, scores)
        mixed_images, mixed_scores = augment(images, scores)
        mix = augment.take_mix()
        assert torch.equal(mixed_images, expected_images)
        assert torch.allclose(mixed_scores, expected_scores, atol=1e-6)
        assert (mix.lam, mix.count) == (plain.lam, plain.count)
        assert torch.allclose(mixed_scores.sum(1), torch.ones(number), atol=1e-5)


@pytest.mark.parametrize('memory_format', [torch.contiguous_format, torch.channels_last])
def test_the_callers_tensors_are_left_alone_and_their_format_is_kept(memory_format):
    augment = RecursiveMix(alpha=1.0)
    for _ in range(4):
        images, scores = torch.rand(3, 3, 16, 16).contiguous(memory_format=memory_format), one_hot(3)
        kept_images, kept_scores = images.clone(), scores.clone()
        mixed, _ = augment(images, scores)
        assert torch.equal(images, kept_images) and torch.equal(scores, kept_scores)
        assert mixed.data_ptr() != images.data_ptr() and mixed.is_contiguous(memory_format=memory_format)
        images.zero_()  # a caller that reuses its buffer does not reach the history
    assert augment._history.images.any()


def test_a_model_that_works_in_place_on_its_input_does_not_reach_the_history():
    augment = RecursiveMix(alpha=1.0, rng=FixedBox(0.5, 8, 8))
    mixed, _ = augment(torch.rand(3, 3, 16, 16), one_hot(3))
    mixed.fill_(7)
    with pytest.warns(UserWarning, match='in place'):
        mixed, _ = augment(torch.rand(3, 3, 16, 16), one_hot(3))
    assert not (mixed == 7).any()
    kept = mixed.clone()
    mixed.fill_(7)
    mixed, _ = augment(torch.zeros(3, 3, 16, 16), one_hot(3))
    box = augment.take_mix().box
    patch = F.interpolate(kept, (box.y2 - box.y1, box.x2 - box.x1), mode='nearest')
    assert torch.equal(mixed[:, :, box.y1 : box.y2, box.x1 : box.x2], patch)


def test_resize_fill_mix_is_cutmix_with_resizing():
    """Lambda ~ Beta(1, 1), a permutation of the same batch, the whole partner in the box."""
    augment = BATCH_AUGMENTS.build(dict(type='ResizeFillMix'))
    shares = []
    for _ in range(300):
        images = torch.arange(1.0, 7).view(6, 1, 1, 1).expand(6, 3, 32, 32)
        labels = torch.eye(6)
        mixed, scores = augment(images, labels)
        mix = augment.take_mix()
        shares.append(mix.lam)
        if mix.lam:
            box = mix.box
            partners = mixed[:, 0, box.y1, box.x1].long() - 1
            assert sorted(partners.tolist()) == list(range(6))
            assert torch.allclose(scores, mix.lam * labels[partners] + (1 - mix.lam) * labels)
    assert max(shares) > 0.6 and abs(np.mean(shares) - 0.34) < 0.06  # E of the clipped area when lambda ~ U(0, 1)


@pytest.mark.parametrize(
    'kind, argument, value',
    [(RecursiveMix, 'alpha', value) for value in (0, 1.5, float('nan'), '0.5')]
    + [(RecursiveMix, 'num_classes', value) for value in (0, True, '10')]
    + [(RecursiveMix, 'interpolation', 'bicubic'), (RecursiveMix, 'rng', 7)]
    + [(RecursiveMix, 'prob', value) for value in (-0.1, 1.1, True)]
    + [(ResizeFillMix, 'alpha', float('inf')), (ResizeFillMix, 'interpolation', 'bicubic')],
)
def test_bad_argument_is_named(kind, argument, value):
    with pytest.raises((ValueError, TypeError), match=f'{kind.__name__}: {argument}={value!r}'):
        kind(**{argument: value})


def test_other_classes_or_channels_than_the_history_are_refused():
    augment = RecursiveMix()
    augment(torch.rand(4, 3, 8, 8), one_hot(4, 5))
    with pytest.raises(ValueError, match='6 classes follows one of 3 and 5'):
        augment(torch.rand(4, 3, 8, 8), one_hot(4, 6))
