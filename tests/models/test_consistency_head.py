"""The head: RoIAlign as a weighted mean, the KL, the losses against plain loops, and stock mmpretrain as the heir."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import batch, classifier, step
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.registry import HOOKS, MODELS
from reference import PlainRM, roi_align
from torchvision.ops import roi_align as torchvision_roi_align

from mmrm import RecursiveMix, RMConsistencyHead, reset_history
from mmrm.core import Box, kl_divergence, roi_mean
from mmrm.models.samples import as_batch


def operator(features, box, scale):
    rois = torch.tensor([[n, *box] for n in range(len(features))], dtype=torch.float32)
    return torchvision_roi_align(features, rois, 1, scale, sampling_ratio=-1, aligned=True).flatten(1)


def random_box(rng, height, width):
    x1, x2 = sorted(rng.choice(width + 1, 2, replace=False))
    y1, y2 = sorted(rng.choice(height + 1, 2, replace=False))
    return Box(int(x1), int(y1), int(x2), int(y2))


@pytest.mark.parametrize('image, cells', [(224, 7), (32, 4), (32, 8), (224, 14), (96, 3), (30, 10), (5, 5), (2, 1)])
def test_roi_mean_equals_torchvisions_operator(image, cells):
    rng = np.random.RandomState(0)
    for _ in range(60):
        features, box = torch.randn(2, 3, cells, cells), random_box(rng, image, image)
        expected = operator(features, box, cells / image)
        assert torch.allclose(roi_mean(features, box, (image, image)), expected, atol=2e-6)


@given(
    image=st.tuples(st.integers(2, 70), st.integers(2, 70)),
    cells=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    seed=st.integers(0, 2**16),
)
@settings(deadline=None, max_examples=80)
def test_roi_mean_with_a_scale_for_each_axis_equals_the_plain_loops(image, cells, seed):
    rng = np.random.RandomState(seed)
    box = random_box(rng, *image)
    features = torch.from_numpy(rng.randn(1, 2, *cells).astype(np.float32))
    lengths = (box.y2 - box.y1) * cells[0] / image[0], (box.x2 - box.x1) * cells[1] / image[1]
    if any(abs(length - round(length)) < 1e-4 for length in lengths):
        return  # float32 and float64 may count the sampling points differently there; the operator test covers it
    assert torch.allclose(roi_mean(features, box, image)[0], roi_align(features[0], box, image), atol=1e-5)


@given(scale=st.floats(0, 100), seed=st.integers(0, 2**16))
@settings(deadline=None, max_examples=50)
def test_kl_is_torchs_zero_where_both_agree_and_never_negative(scale, seed):
    generator = torch.Generator().manual_seed(seed)
    logits, other = torch.randn(4, 7, generator=generator) * scale, torch.randn(4, 7, generator=generator)
    assert (kl_divergence(F.softmax(logits, 1), logits) < 1e-5).all()
    found = kl_divergence(F.softmax(logits, 1), other)
    expected = F.kl_div(F.log_softmax(other, 1), F.softmax(logits, 1), reduction='none').sum(1)
    assert (found >= 0).all() and torch.allclose(found, expected, atol=1e-5)


def test_kl_of_certain_and_empty_targets_is_finite():
    logits = torch.randn(2, 3, requires_grad=True)
    kl = kl_divergence(torch.tensor([[1.0, 0, 0], [0, 0, 0]]), logits)
    kl.sum().backward()
    assert kl.isfinite().all() and kl[1] == 0
    assert logits.grad.isfinite().all() and not logits.grad[1].any()


@pytest.mark.parametrize('share_fc, steps', [(False, 90), (True, 40)])
def test_losses_and_gradients_equal_the_plain_loops(share_fc, steps):
    """Many steps of the real path (preprocessor, stock classifier, head) against the equations with loops."""
    sizes = [(8, 8), (12, 10), (9, 16)]
    rng = np.random.RandomState(3)
    model = classifier(
        num_classes=4,
        omega=0.7,
        share_fc=share_fc,
        in_channels=6,
        augments=RecursiveMix(alpha=0.8, rng=np.random.RandomState(5)),
        backbone=torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3, stride=2, padding=1), torch.nn.Tanh()),
    )
    head = model.head
    plain = PlainRM(0.8, 0.7, np.random.RandomState(5))
    mixed_steps = 0
    for i in range(steps):
        data = batch(int(rng.randint(1, 4)), sizes[(i // 20) % 3], num_classes=4)
        inputs = (torch.stack(data['inputs']).float() - 127.5) / 64
        labels = F.one_hot(torch.cat([s.gt_label for s in data['data_samples']]), 4).float()
        processed = model.data_preprocessor(data, training=True)
        images, labels = plain.mix(inputs, labels)
        assert torch.equal(processed['inputs'], images)
        scores = torch.stack([sample.gt_score for sample in processed['data_samples']])
        assert torch.allclose(scores, labels, atol=1e-6)

        losses = model(**processed, mode='loss')
        model.zero_grad()
        model.parse_losses(losses)[0].backward()
        grads = [p.grad.clone() for p in model.parameters()]
        features = model.backbone(images)
        loss, consistency = plain.losses(
            features, labels, head.fc, head.fc if share_fc else head.fc_roi, images.shape[2:]
        )
        assert torch.allclose(losses['loss'], loss, atol=1e-5)
        assert torch.allclose(losses['loss_consistency'], consistency, atol=1e-5)
        mixed_steps += consistency.item() > 0
        model.zero_grad(set_to_none=False)
        (loss + consistency).backward()
        for grad, parameter in zip(grads, model.parameters()):
            assert torch.allclose(grad, parameter.grad, atol=1e-5)
        with torch.no_grad():  # the history must follow a network that changes
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
    assert mixed_steps > steps / 2


def test_the_hook_logs_the_best_constant_answer_and_what_the_authors_cross_entropy_adds():
    model, logged = classifier(alpha=1.0), {}
    runner = SimpleNamespace(model=model, message_hub=SimpleNamespace(update_scalar=logged.__setitem__))
    hook = HOOKS.build(dict(type='LogConsistencyHook'))
    hook.before_train(runner)
    for number in range(4):
        history = getattr(model.data_preprocessor.batch_augments.augments[0]._history, 'mix', None)
        losses = step(model, batch())
        hook.after_train_iter(runner, number)
        assert (logged['train/rm_kl_blind'] > 0) == (logged['train/rm_entropy'] > 0) == (number > 0)
    prediction = torch.distributions.Categorical(history.prediction.double())
    constants = [prediction.probs.mean(0), torch.full((5,), 0.2).double(), prediction.probs[0]]
    answers = [
        torch.distributions.kl_divergence(prediction, torch.distributions.Categorical(constant)).mean()
        for constant in constants
    ]
    assert float(logged['train/rm_kl_blind']) == pytest.approx(min(answers).item(), abs=1e-5)
    share, entropy = 0.5 * losses['rm_lambda'].double(), prediction.entropy().mean()
    authors = losses['loss_consistency'] + logged['train/rm_entropy']
    assert float(authors) == pytest.approx((share * (losses['rm_kl'].double() + entropy)).item(), rel=1e-5)
    hook.after_train(runner)
    assert not model.data_preprocessor._forward_hooks


def test_arguments_of_0_3_load_and_a_warning_names_the_hook():
    with pytest.warns(UserWarning, match=r"log_entropy is now dict\(type='LogConsistencyHook'\)") as warned:
        classifier(log_entropy=True, log_blind_kl=False)
    assert not any('log_blind_kl' in str(each.message) for each in warned)


@pytest.mark.parametrize(
    'args, layers', [(dict(), {'fc', 'fc_roi'}), (dict(share_fc=True), {'fc'}), (dict(omega=0), {'fc'})]
)
def test_the_roi_layer_exists_only_where_it_is_used(args, layers):
    head = RMConsistencyHead(num_classes=3, in_channels=4, **args)
    assert {name.split('.')[0] for name in head.state_dict()} == layers


def test_a_checkpoint_loads_into_the_stock_head_and_gives_the_same_logits():
    model = classifier()
    step(model, batch())
    stock = classifier(head=dict(type='LinearClsHead', num_classes=5, in_channels=64))
    stock.neck = MODELS.build(dict(type='GlobalAveragePooling'))
    missing, unexpected = stock.load_state_dict(model.state_dict(), strict=False)
    assert not missing and set(unexpected) == {'head.fc_roi.weight', 'head.fc_roi.bias'}
    images = torch.randn(3, 3, 48, 32)
    assert torch.equal(model.eval()(images), stock.eval()(images))


def test_a_prediction_for_another_iteration_is_not_taken():
    """The answer goes to the mix it was computed for: a late one is lost."""
    model = classifier(alpha=1.0)
    step(model, batch())
    late = model.data_preprocessor(batch(), training=True)  # preprocessed, its loss comes too late
    following = model.data_preprocessor(batch(), training=True)
    model(**late, mode='loss')
    assert model(**following, mode='loss')['loss_consistency'] == 0
    after = model.data_preprocessor(batch(), training=True)['data_samples'][0].rm_mix
    expected = F.softmax(model(following['inputs'], mode='tensor'), 1)  # training mode: same batch statistics
    assert torch.allclose(after.historical_prediction, expected, atol=1e-5)


def test_an_overflowed_prediction_does_not_poison_later_steps():
    model = classifier(alpha=1.0)
    step(model, batch())
    bias = model.head.fc.bias.data.clone()
    model.head.fc.bias.data[0] = float('inf')
    assert not step(model, batch())['loss'].isfinite()
    model.head.fc.bias.data.copy_(bias)
    model.zero_grad()  # what a GradScaler does with such a step
    for _ in range(3):
        losses = step(model, batch())
        assert all(value.isfinite() for value in losses.values())
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert losses['rm_kl'] > 0


@pytest.mark.parametrize('channels, pools, word', [(64, True, 'neck=None'), (32, False, 'set in_channels=64')])
def test_wrong_head_inputs_are_named(channels, pools, word):
    model = classifier(in_channels=channels)
    model.neck = MODELS.build(dict(type='GlobalAveragePooling')) if pools else None
    with pytest.raises(ValueError, match=word):
        step(model, batch())


@pytest.mark.parametrize('augments', [dict(type='RecursiveMix', alpha=1.0), dict(type='CutMix', alpha=1.0)])
def test_a_batch_of_labels_gives_what_a_list_of_samples_gives(augments):
    model = classifier(augments=augments)
    for seed in range(4):
        data, found = batch(), []
        packed = dict(inputs=torch.stack(data['inputs']), data_samples=as_batch(data['data_samples']))
        for form in (data, packed):
            np.random.seed(seed)
            torch.manual_seed(seed)
            reset_history(model)
            step(model, batch())
            found.append(step(model, form))
        assert found[0].keys() == found[1].keys()
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
