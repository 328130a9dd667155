"""The method without any framework: what a plain PyTorch loop calls, and that nothing else is needed for it."""

import ast
import copy
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mmrm import core
from mmrm.core import Box, Consistency, Mix, RecursiveMix, kl_divergence, pool, roi_mean


def batch(number=4, num_classes=5, size=16):
    return torch.rand(number, 3, size, size), torch.randint(num_classes, (number,))


def test_the_file_needs_torch_and_numpy_alone():
    found = set()
    for node in ast.walk(ast.parse(Path(core.__file__).read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.split('.')[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or '').split('.')[0] if node.level == 0 else 'mmrm')
    assert {name for name in found if name not in sys.stdlib_module_names} == {'numpy', 'torch'}


# -------------------------------------------------------------------------------------------------------------- mixing
def test_integer_labels_become_scores():
    one = RecursiveMix(alpha=1.0, num_classes=5, rng=np.random.RandomState(3))
    other = RecursiveMix(alpha=1.0, rng=np.random.RandomState(3))
    for kind in (torch.int64, torch.int32, torch.uint8):
        images, labels = batch()
        x, y, mix = one.mix(images, labels.to(kind))
        expected = other.mix(images, F.one_hot(labels, 5))
        assert y.dtype == torch.float32 and y.shape == (4, 5)
        assert torch.equal(x, expected[0]) and torch.equal(y, expected[1]) and mix.box == expected[2].box
    assert mix.lam > 0


def test_mix_returns_what_mmpretrains_call_leaves_to_take_mix():
    one, other = (RecursiveMix(alpha=1.0, rng=np.random.RandomState(3)) for _ in range(2))
    for _ in range(3):
        images, labels = batch()
        scores = F.one_hot(labels, 5)
        x, y, mix = one.mix(images, scores)
        called = other(images, scores)
        taken = other.take_mix()
        assert torch.equal(x, called[0]) and torch.equal(y, called[1])
        assert (mix.lam, mix.count, mix.box) == (taken.lam, taken.count, taken.box)
        assert other.take_mix() is None and one.take_mix() is None


def test_disabled_mixing_keeps_batch_and_history():
    """What is mixed afterwards is as if the batches in between had never been."""
    torch.manual_seed(0)
    one, other = (RecursiveMix(alpha=1.0, num_classes=5, rng=np.random.RandomState(3)) for _ in range(2))
    for on in (False, True, True, False, False, True, False, True):
        images, labels = batch()
        one.enabled = on
        x, y, mix = one.mix(images, labels)
        if on:
            expected = other.mix(images, labels)
            assert torch.equal(x, expected[0]) and torch.equal(y, expected[1]) and mix.box == expected[2].box
            past = expected[2].historical_prediction
            assert mix.historical_prediction is past is None or torch.equal(mix.historical_prediction, past)
        else:
            assert x is images and torch.equal(y, F.one_hot(labels, 5).float()) and mix.lam == mix.share == 0
        logits, features = torch.randn(4, 5), torch.randn(4, 8, 2, 2)
        for each in (mix, expected[2]) if on else (mix,):
            Consistency(8, 5)(each, features, logits)
    assert past is not None and mix.lam > 0


def test_prob_is_how_often_a_batch_is_mixed():
    rm = RecursiveMix(alpha=1.0, num_classes=5, rng=np.random.RandomState(0), prob=0.3)
    assert 0.2 < np.mean([rm.mix(*batch())[2].lam > 0 for _ in range(300)]) < 0.4
    never = RecursiveMix(num_classes=5, prob=0)
    assert all(never.mix(*batch())[2].lam == 0 for _ in range(5)) and never._history is None


# ---------------------------------------------------------------------------------------------------- a box per sample
@pytest.mark.parametrize('interpolation', core.INTERPOLATIONS)
def test_a_box_per_sample_fills_and_labels_each_sample_as_its_box_alone_would(interpolation):
    rm = RecursiveMix(0.9, interpolation, num_classes=5, rng=np.random.RandomState(2), per_sample=True)
    given = None
    for number, size in ((6, (16, 12)), (6, (16, 12)), (4, (9, 20)), (6, (16, 12)), (6, (5, 7))):
        images, labels = torch.rand(number, 3, *size), torch.randint(5, (number,))
        past, (x, y, mix) = given, rm.mix(images, labels)
        given = x, y
        if past is None:
            continue
        assert mix.count == min(number, len(past[0])) and mix.lam == pytest.approx(float(mix.lams[: mix.count].mean()))
        for index in range(number):
            lam, box = mix.of_sample(index)
            expected = images[index : index + 1].clone()
            if lam:
                core.resize_fill(expected, past[0][index : index + 1], box, interpolation)
            assert torch.equal(x[index], expected[0]) or (
                interpolation == 'bilinear' and torch.allclose(x[index], expected[0], atol=1e-6)
            )
            label = F.one_hot(labels[index], 5).float()
            assert torch.allclose(y[index], label if lam == 0 else lam * past[1][index] + (1 - lam) * label, atol=1e-6)
            assert float(mix.lams[index]) == pytest.approx(lam)
    assert len({mix.of_sample(index) for index in range(4)}) > 1


def test_a_box_per_sample_in_batches_of_one_is_the_plain_method():
    torch.manual_seed(0)
    one, other = (
        RecursiveMix(1.0, num_classes=5, rng=np.random.RandomState(3), per_sample=each) for each in (False, True)
    )
    consistency = Consistency(8, 5, omega=0.7)
    for _ in range(8):
        images, labels = batch(1)
        features, logits = torch.randn(1, 8, 4, 4), torch.randn(1, 5)
        (x, y, mix), (x_each, y_each, mix_each) = one.mix(images, labels), other.mix(images, labels)
        assert torch.equal(x, x_each) and torch.allclose(y, y_each) and mix.of_sample(0) == mix_each.of_sample(0)
        losses = [consistency(each, features, logits) for each in (mix, mix_each)]
        assert torch.allclose(*losses, atol=1e-7)
    assert losses[0] > 0


@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last])
def test_a_box_per_sample_is_pooled_and_weighed_for_each(layout):
    rm, consistency = RecursiveMix(1.0, num_classes=5, per_sample=True), Consistency(8, 5, omega=0.7)
    for number in (5, 4, 6):  # the history is smaller than the last batch
        images, labels = batch(number)
        mix = rm.mix(images, labels)[2]
        features = torch.randn(number, 8, 7, 5).to(memory_format=layout).requires_grad_()
        logits = torch.randn(number, 5)
        with Maps(features.numel()) as maps:
            mean, region = pool(features, mix)
        assert maps.made <= {features.untyped_storage().data_ptr()}
        loss = consistency(mix, region, logits)
        assert torch.allclose(loss, consistency(mix, features, logits), atol=1e-6)
    expected = 0
    for index in range(mix.count):
        lam, box = mix.of_sample(index)
        pooled = roi_mean(features[index : index + 1], box, (16, 16))
        assert torch.allclose(region[index], pooled[0], atol=1e-6)
        kl = kl_divergence(mix.historical_prediction[index : index + 1], consistency.fc_roi(pooled))
        expected = expected + 0.7 * lam * kl[0] / number
    assert mix.count == 4 and torch.allclose(loss, expected, atol=1e-6) and loss > 0
    assert torch.allclose(mean, features.mean((2, 3)), atol=1e-6)


# ------------------------------------------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    'classes, images, labels, told',
    [
        (None, (2, 3, 8, 8), torch.tensor([0, 1]), r'integer labels need RecursiveMix\(num_classes='),
        (3, (2, 3, 8, 8), torch.rand(2, 4), 'num_classes=3, but the scores have 4 classes'),
        (3, (2, 3, 8, 8), torch.tensor([0, 1, 2]), r'but got \(3,\) of torch.int64'),
        (None, (2, 3, 8, 8), torch.rand(2), r'but got \(2,\) of torch.float32'),
        (3, (3, 8, 8), torch.tensor([0]), r'images must have shape \(N, C, H, W\)'),
    ],
)
def test_batches_that_do_not_fit_are_named(classes, images, labels, told):
    with pytest.raises(ValueError, match=told):
        RecursiveMix(num_classes=classes).mix(torch.rand(images), labels)


@pytest.mark.parametrize('interpolation', core.INTERPOLATIONS)
@pytest.mark.parametrize('value', [float('nan'), -float('inf'), 1e6])
def test_a_non_finite_pixel_is_not_kept_in_the_history(value, interpolation):
    """NaN, infinity, and what is too large for the half precision of the next batch."""
    rm = RecursiveMix(alpha=1.0, interpolation=interpolation, num_classes=5)
    images, labels = batch()
    images[1] = value
    x, _, _ = rm.mix(images, labels)
    assert x[1].equal(images[1]) or value != value  # the batch itself is the caller's
    clean, labels = batch()
    x, _, mix = rm.mix((clean + 1).half(), labels)
    box = mix.box
    assert mix.lam > 0 and x.dtype == torch.float16 and x.isfinite().all()
    assert value == 1e6 or not x[1, :, box.y1 : box.y2, box.x1 : box.x2].any()  # 0 in its place
    assert x[[0, 2, 3]].all()  # and only there


@pytest.mark.parametrize(
    'clone', [copy.deepcopy, lambda rm: pickle.loads(pickle.dumps(rm))], ids=['deepcopy', 'pickle']
)
def test_a_copy_keeps_the_history_and_detects_an_overwritten_one(clone):
    rm = RecursiveMix(alpha=1.0, num_classes=5)
    x, _, mix = rm.mix(*batch())
    mix.answer(torch.randn(len(x), 5))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        twin = clone(rm)
        kept, history = twin._history, rm._history
        assert kept.images.equal(history.images) and kept.scores.equal(history.scores)
        mixed = twin.mix(*batch())[2]
    assert mixed.lam > 0 and mixed.historical_prediction.equal(mix.prediction)
    x.add_(1)  # a model that works in place on its input
    with pytest.warns(UserWarning, match='in place'):
        assert clone(rm).mix(*batch())[2].lam == 0


def test_under_inference_mode_the_history_survives_a_model_that_works_in_place():
    rm, images = RecursiveMix(alpha=1.0, num_classes=5, rng=np.random.RandomState(0)), batch()[0]
    with torch.inference_mode():
        rm.mix(images, batch()[1])[0].zero_()  # inference tensors count no versions: nobody could tell later
        mixed, _, mix = rm.mix(torch.zeros_like(images), batch()[1])
    assert mix.lam > 0 and mixed.abs().sum() > 0


# --------------------------------------------------------------------------------------------------------- consistency
def test_the_loss_is_the_papers_equation():
    torch.manual_seed(1)
    consistency, box = Consistency(8, 5, omega=0.7), Box(2, 3, 11, 9)
    history, features, logits = F.softmax(torch.randn(3, 5), 1), torch.randn(4, 8, 4, 4), torch.randn(4, 5)
    mix = Mix(0.25, 3, box, (16, 16), history)
    loss = consistency(mix, features, logits)
    kl = kl_divergence(history, consistency.fc_roi(roi_mean(features[:3], box, (16, 16))))
    assert torch.allclose(loss, 0.7 * 0.25 * kl.sum() / 4)  # the fourth sample was not mixed
    assert consistency.last['lam'] == 0.25 * 3 / 4 and torch.allclose(consistency.last['kl'], kl.mean())
    assert not consistency.last['kl'].requires_grad
    assert torch.allclose(mix.prediction, F.softmax(logits, 1))


@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize('count', [4, 3])
def test_one_pass_pools_as_the_mean_and_the_region_by_themselves(layout, count):
    features = torch.randn(4, 8, 7, 5).to(memory_format=layout).requires_grad_()
    mix = Mix(0.25, count, Box(2, 3, 11, 9), (14, 15), torch.full((count, 5), 0.2))
    means = features.mean((2, 3)), roi_mean(features[:count], mix.box, mix.image_size)
    gradients = [torch.randn_like(mean) for mean in means]
    expected = torch.autograd.grad(means, features, gradients)[0]
    with Maps(features.numel()) as maps:
        pooled = pool(features, mix)
    assert maps.made <= {features.untyped_storage().data_ptr()}  # no copy on the way
    assert all(torch.allclose(one, other, rtol=0, atol=1e-6) for one, other in zip(pooled, means))
    with Maps(features.numel()) as maps:
        gradient = torch.autograd.grad(pooled, features, gradients)[0]
    assert len(maps.made) == 1 and torch.allclose(gradient, expected, rtol=0, atol=1e-6)
    assert gradient.is_contiguous(memory_format=layout)


class Maps(TorchDispatchMode):
    """Counts the tensors as large as a map that are made."""

    def __init__(self, size):
        super().__init__()
        self.size, self.made = size, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        if isinstance(output, torch.Tensor) and output.numel() >= self.size:
            self.made.add(output.untyped_storage().data_ptr())
        return output


def test_under_autocast_the_region_is_pooled_in_float32():
    features, box = torch.randn(4, 8, 7, 7), Box(2, 3, 11, 9)
    mix = Mix(0.25, 4, box, (14, 14), torch.full((4, 5), 0.2))
    with torch.autocast('cpu', torch.bfloat16):
        mean, region = pool(features, mix)
        assert torch.allclose(region, roi_mean(features, box, (14, 14)), atol=1e-6)
        low_mean, low_region = pool(features.bfloat16(), mix)
    assert torch.allclose(mean, features.mean((2, 3)), atol=1e-6)
    assert low_mean.dtype == torch.bfloat16 and low_region.dtype == torch.float32
    assert torch.allclose(low_region, roi_mean(features.bfloat16().float(), box, (14, 14)), atol=1e-6)


def test_the_region_in_place_of_the_map_gives_the_same_loss():
    consistency, features, logits = Consistency(8, 5, omega=0.7), torch.randn(4, 8, 4, 4), torch.randn(4, 5)
    mix = Mix(0.25, 3, Box(2, 3, 11, 9), (16, 16), F.softmax(torch.randn(3, 5), 1))
    assert torch.allclose(consistency(mix, pool(features, mix)[1], logits), consistency(mix, features, logits))
    with pytest.raises(ValueError, match=r'must have shape \(4, 8, h, w\), but got \(4, 8\)'):
        consistency(mix, torch.randn(4, 8), logits)
    mean, region = pool(features)
    assert torch.allclose(mean, features.mean((2, 3)), atol=1e-6) and region is None


def test_the_weights_of_the_box_are_made_beside_the_mixed_images():
    """The size of the map is that of the iteration before; another one is noticed."""
    rm, consistency = RecursiveMix(alpha=1.0, num_classes=5, rng=np.random.RandomState(1)), Consistency(8, 5)
    for cells, known in ((4, False), (4, True), (3, False), (3, True)):
        images, _, mix = rm.mix(*batch())
        features, logits = torch.randn(4, 8, cells, cells), torch.randn(4, 5)
        if mix.historical_prediction is not None:
            assert (mix.weights.shape[1:] == (cells, cells)) == known
            expected = roi_mean(features, mix.box, (16, 16))
            assert torch.allclose(pool(features, mix)[1], expected, atol=1e-6)
        consistency(mix, features, logits)
        assert mix.map_size == (cells, cells) and torch.allclose(mix.share, torch.tensor(mix.lam))
    images, labels = batch(size=20)
    assert rm.mix(images, labels)[2].weights is None  # another size of images may give another map


@pytest.mark.parametrize(
    'mix',
    [None, Mix(0.0, 0, Box(0, 0, 0, 0), (16, 16)), Mix(0.3, 4, Box(0, 0, 8, 8), (16, 16))],
    ids=['another augmentation', 'nothing mixed', 'never answered'],
)
def test_with_nothing_to_compare_every_parameter_still_has_a_gradient(mix):
    """What DDP needs without find_unused_parameters."""
    for value in (1.0, float('nan'), float('inf')):
        consistency = Consistency(8, 5)
        loss = consistency(mix, torch.randn(4, 8, 4, 4), value * torch.ones(4, 5))
        loss.backward()
        assert loss == 0 and loss.dtype == torch.float32
        assert all(not parameter.grad.any() for parameter in consistency.parameters())


def test_omega_zero_has_no_layer_and_stores_no_prediction():
    consistency = Consistency(8, 5, omega=0)
    mix = Mix(0.3, 4, Box(0, 0, 8, 8), (16, 16), torch.full((4, 5), 0.2))
    assert consistency(mix, torch.randn(4, 8, 4, 4), torch.randn(4, 5)) == 0
    assert not list(consistency.parameters()) and mix.prediction is None and consistency.last['lam'] == 0.3


@pytest.mark.parametrize(
    'features, logits, told',
    [
        ((4, 8), (4, 5), r'must have shape \(4, 8, h, w\), but got \(4, 8\)'),
        ((4, 2, 2, 8), (4, 5), r'but got \(4, 2, 2, 8\)'),
        ((3, 8, 2, 2), (4, 5), r'but got \(3, 8, 2, 2\)'),
        ((4, 8, 2, 2), (4, 6), r'logits must have shape \(N, 5\), but got \(4, 6\)'),
    ],
)
def test_shapes_that_do_not_fit_are_named(features, logits, told):
    with pytest.raises(ValueError, match=told):
        Consistency(8, 5)(None, torch.randn(features), torch.randn(logits))


@pytest.mark.parametrize('omega', [-0.1, float('nan'), float('inf'), '0.5', True])
def test_a_bad_omega_is_named(omega):
    with pytest.raises(ValueError, match=f'Consistency: omega={omega!r}'):
        Consistency(8, 5, omega)
