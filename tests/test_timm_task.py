"""RecursiveMix in timm: its task beside the wrapper, step by step, and RecursiveMix as its mixup_fn."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

timm = pytest.importorskip('timm')

from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402

from mmrm import RecursiveMix, RecursiveMixModel  # noqa: E402
from mmrm.timm_task import RecursiveMixTask  # noqa: E402

STEPS = 5


def batches(number=STEPS):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 3, 32, 32, generator=generator), torch.randint(5, (4,), generator=generator))
        for _ in range(number)
    ]


def network():
    torch.manual_seed(0)
    return timm.create_model(
        'vit_tiny_patch16_224', img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=5
    )


def options(**more):
    return dict(alpha=1.0, omega=0.5, input_size=32, rng=np.random.RandomState(0), **more)


def train(step, optimizer, update=lambda: None):
    losses = []
    for images, labels in batches():
        loss = step(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture(scope='module')
def wrapped():
    """The wrapper with timm's optimizer."""
    torch.manual_seed(0)
    model = RecursiveMixModel(network(), 'norm', **options())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return train(model, optimizer), model


@pytest.mark.parametrize('compiled', [False, True])
def test_the_task_is_the_wrapper_step_by_step(wrapped, compiled, one_process):
    expected, model = wrapped
    torch.manual_seed(0)
    task = RecursiveMixTask(network(), 'norm', verbose=False, **options())
    task.setup_ema(decay=0.5)
    average = copy.deepcopy(task.get_eval_model().state_dict())
    if compiled:
        task.compile(backend='eager')
    task.prepare_distributed()
    optimizer = torch.optim.SGD(task.get_trainable_module().parameters(), lr=0.1, momentum=0.9)
    results = []

    def step(images, labels):
        results.append(task(images, labels))
        return results[-1]['loss']

    def update():
        task.update_ema()
        for name, value in task.get_checkpoint_state()['state_dict'].items():
            average[name].lerp_(value, 0.5)

    losses = train(step, optimizer, update)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert results[-1]['output'].shape == (4, 5) and results[-1]['consistency'] > 0 and results[-1]['lam'] > 0
    states = task.get_checkpoint_state(), task.get_checkpoint_state(ema=True)
    network().load_state_dict(states[0]['state_dict'])
    network().load_state_dict(states[1]['state_dict_ema'])
    for name, value in model.module.state_dict().items():
        assert torch.allclose(value, states[0]['state_dict'][name], atol=1e-5)
        assert torch.allclose(average[name], states[1]['state_dict_ema'][name], atol=1e-6)
    images = batches(1)[0][0]
    assert task.get_eval_model().eval()(images).shape == task.get_eval_model(ema=True)(images).shape == (4, 5)

    other = RecursiveMixTask(network(), 'norm', verbose=False, **options())
    other.load_checkpoint_state(states[0]['state_dict'], states[0]['task_state'])
    assert torch.equal(other.module.consistency.fc_roi.weight, task.module.consistency.fc_roi.weight)


def test_timms_optimizers_treat_the_network_as_without_rm():
    net = network()
    task = RecursiveMixTask(net, 'norm', verbose=False, **options())
    alone, together = (
        create_optimizer_v2(model, opt='adamw', lr=1e-3, weight_decay=0.1, layer_decay=0.5)
        for model in (net, task.get_trainable_module())
    )
    expected = {id(p): (g['weight_decay'], g['lr_scale']) for g in alone.param_groups for p in g['params']}
    found = {id(p): (g['weight_decay'], g['lr_scale']) for g in together.param_groups for p in g['params']}
    assert expected.items() <= found.items()
    fc_roi = task.module.consistency.fc_roi
    assert found[id(fc_roi.weight)] == (0.1, 1.0) and found[id(fc_roi.bias)] == (0.0, 1.0)
    assert set(map(id, task.get_clip_parameters())) == set(found)
    assert not {id(net.head.weight), id(fc_roi.weight)} & set(map(id, task.get_clip_parameters(exclude_head=True)))


def test_recursive_mix_is_a_mixup_fn():
    mixup_fn, plain = (RecursiveMix(alpha=1.0, num_classes=5, rng=np.random.RandomState(0)) for _ in range(2))
    for images, labels in batches():
        x, y = mixup_fn(images, labels)
        expected = plain.mix(images, labels)
        assert torch.equal(x, expected[0]) and torch.equal(y, expected[1])
        SoftTargetCrossEntropy()(torch.randn(4, 5), y)
    assert expected[2].lam > 0
    mixup_fn.mixup_enabled = False  # what timm's loop does at --mixup-off-epoch
    assert mixup_fn(images, labels)[0] is images


@pytest.mark.parametrize(
    'loss',
    [
        BinaryCrossEntropy(target_threshold=0.2),
        SoftTargetCrossEntropy(),
        torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4, 5]), label_smoothing=0.1),
        lambda logits, scores: ((1 - logits.sigmoid()) ** 2 * scores).sum(1).mean(),
    ],
    ids=['timm BCE', 'timm soft CE', 'weighted CE', 'a function'],
)
def test_a_loss_of_the_users(loss):
    torch.manual_seed(0)
    model = RecursiveMixModel(network(), 'norm', loss=loss, **options())
    for images, labels in batches(2):
        value = model(images, labels)
    expected = loss(model.logits, model.rm._history.scores) + model.losses['consistency']
    assert torch.allclose(value, expected) and model.losses['lam'] > 0 and 'loss' in model.losses
    value.backward()
    labels = F.one_hot(labels, 5).float()
    assert torch.allclose(model.eval()(images, labels), loss(model(images), labels))


@pytest.mark.parametrize(
    'arguments, message',
    [
        (dict(loss=LabelSmoothingCrossEntropy()), r'loss=LabelSmoothingCrossEntropy fails on scores of shape \(N, num'),
        (dict(loss=torch.nn.BCEWithLogitsLoss(), label_smoothing=0.1), 'label_smoothing applies to the cross entropy'),
        (dict(multi_label=True, label_smoothing=0.1), 'label_smoothing applies to the cross entropy'),
    ],
)
def test_a_loss_that_cannot_take_mixed_labels_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        RecursiveMixModel(network(), 'norm', **options(**arguments))


def test_several_labels_per_image():
    """Sigmoid, binary KL of each class, and labels that mix by area."""
    torch.manual_seed(0)
    model = RecursiveMixModel(network(), 'norm', multi_label=True, **options())
    labels = (torch.rand(4, 5) < 0.4).float()
    labels[0] = 0
    regions = []
    model.consistency.fc_roi.register_forward_hook(lambda _, __, output: regions.append(output))
    for images, _ in batches(3):
        history = model.rm._history and model.rm._history.mix.prediction
        loss = model(images, labels)
    assert torch.allclose(model.rm._history.mix.prediction, model.logits.sigmoid())
    one, other = (torch.distributions.Bernoulli(probs) for probs in (history, regions[-1].sigmoid()))
    kl = torch.distributions.kl_divergence(one, other).sum(1).mean()
    assert torch.allclose(model.losses['kl'], kl, atol=1e-5) and kl > 0
    scores = model.rm._history.scores
    bce = F.binary_cross_entropy_with_logits(model.logits, scores, reduction='none').sum(1).mean()
    assert torch.allclose(loss, bce + 0.5 * model.losses['lam'] * kl, atol=1e-5)
    with pytest.raises(ValueError, match=r'scores must be in \[0, 1\], but they are in \[0, 2\]'):
        model(images, labels * 2)
    with pytest.raises(ValueError, match='needs scores of shape'):
        model(images, torch.tensor([0, 1, 2, 3]))
