"""The method against numbers of the authors' own code: 1001 training steps of a tiny network, step by step.

``tests/data/authors_trace.json`` holds what their code drew and computed, and says how the inputs are made.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample

import mmrm
from mmrm import core

TRACE = json.loads((Path(__file__).parents[1] / 'data' / 'authors_trace.json').read_text())
SETTINGS, STEPS = TRACE['settings'], TRACE['steps']
SHAPES = dict(
    conv1=((8, 3, 3, 3), 0.2),
    bias1=((8,), 0.2),
    conv2=((16, 8, 3, 3), 0.2),
    bias2=((16,), 0.2),
    fc=((10, 16), 0.3),
    fc_bias=((10,), 0.3),
    fc_roi=((10, 16), 0.3),
    fc_roi_bias=((10,), 0.3),
)
TOLERANCE = 1e-4
# The network computes in float64, so that the result is the same on every machine: in float32 the order of a sum
# decides on which side of ReLU's kink it falls. At one step one sum of conv2 is 4e-7 above 0; theirs fell below it.
KINKS = {758: 1e-6}


class Replay:
    """Stands for NumPy's generator: gives what the authors' code drew."""

    def __init__(self):
        self.step = None

    def uniform(self, low, high):
        self.left = list(self.step['centre'])
        return self.step['drawn_lambda']

    def randint(self, high):
        return self.left.pop(0)


class Backbone(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.kink = 0.0

    def forward(self, images):
        return (F.threshold(self.conv2(self.conv1(images.double()).relu()), self.kink, 0.0),)


class CoreRun:
    """A plain PyTorch loop on :mod:`mmrm.core` alone."""

    def __init__(self, omega):
        self.rng = Replay()
        self.backbone, self.fc = Backbone().double(), torch.nn.Linear(16, SETTINGS['classes']).double()
        self.rm = core.RecursiveMix(SETTINGS['alpha'], SETTINGS['interpolation'], SETTINGS['classes'], self.rng)
        self.consistency = core.Consistency(16, SETTINGS['classes'], omega)
        self.fc_roi = self.consistency.double().fc_roi

    def reset(self):
        self.rm.reset()

    def losses(self, images, labels):
        images, scores, mix = self.rm.mix(images, labels)
        (feature_map,) = self.backbone(images)
        logits = self.fc(feature_map.mean(dim=(2, 3)))
        loss = F.cross_entropy(logits, scores.double())
        consistency = self.consistency(mix, feature_map, logits)
        return loss, consistency, self.consistency.last['kl'], mix


class RegistryRun:
    """What a config of mmpretrain builds: preprocessor, augment, stock classifier, head."""

    def __init__(self, omega):
        self.rng, classes = Replay(), SETTINGS['classes']
        augment = dict(
            type='RecursiveMix', alpha=SETTINGS['alpha'], interpolation=SETTINGS['interpolation'], rng=self.rng
        )
        self.model = MODELS.build(
            dict(
                type='ImageClassifier',
                data_preprocessor=dict(
                    type='RMDataPreprocessor', num_classes=classes, batch_augments=dict(augments=augment)
                ),
                backbone=Backbone(),
                neck=None,
                head=dict(type='RMConsistencyHead', num_classes=classes, in_channels=16, omega=omega),
            )
        ).double()
        self.backbone, self.fc, self.fc_roi = self.model.backbone, self.model.head.fc, self.model.head.fc_roi

    def reset(self):
        mmrm.reset_history(self.model)

    def losses(self, images, labels):
        samples = [DataSample().set_gt_label(int(label)) for label in labels]
        data = self.model.data_preprocessor(dict(inputs=list(images), data_samples=samples), training=True)
        losses = self.model(**data, mode='loss')
        return losses['loss'], losses['loss_consistency'], losses['rm_kl'], data['data_samples'][0].rm_mix


def weights_of(run):
    layers = (run.backbone.conv1, run.backbone.conv2, run.fc, run.fc_roi)
    return dict(zip(SHAPES, itertools.chain(*((layer.weight, layer.bias) for layer in layers))))


def replay(run, count):
    """Train ``count`` steps; returns what the trace has of each step, and the final weights."""
    images, labels, found = np.random.RandomState(0), np.random.RandomState(1), []
    weights = weights_of(run)
    optimizer = torch.optim.SGD(weights.values(), SETTINGS['lr'])
    for t in range(count):
        if t % 91 == 0:
            rng = np.random.RandomState(2)
            for name, (shape, scale) in SHAPES.items():
                weights[name].data.copy_(torch.from_numpy((rng.randn(*shape) * scale).astype(np.float32)))
        if t % 7 == 0:
            run.reset()
        run.rng.step, run.backbone.kink = STEPS[t], KINKS.get(t, 0.0)
        x = torch.from_numpy(images.randn(6, 3, SETTINGS['height'], SETTINGS['width']).astype(np.float32))
        y = torch.tensor([labels.randint(10) for _ in range(6)])
        size = 4 if t % 7 == 6 else 6
        optimizer.zero_grad()
        loss, consistency, kl, mix = run.losses(x[:size], y[:size])
        (loss + consistency).backward()
        found.append(
            {
                't': t,
                'box': list(mix.box) if t % 7 else None,
                'lambda': mix.lam,
                'ce': loss.item(),
                'kl': kl.item(),
                'weighted_kl': consistency.item(),
                'grad_conv1': weights['conv1'].grad.norm().item(),
                'grad_fc': weights['fc'].grad.norm().item(),
                'grad_fc_roi': weights['fc_roi'].grad.norm().item(),
            }
        )
        optimizer.step()
    return found, weights


def check_steps(found):
    """Every step: boxes and lambdas equal, losses and gradients to a relative 1e-4."""
    for mine, theirs in zip(found, STEPS):
        assert mine['box'] == theirs['box'], mine['t']
        assert mine['lambda'] == pytest.approx(theirs['lambda'], abs=1e-11), mine['t']
        for name in ('ce', 'kl', 'weighted_kl', 'grad_conv1', 'grad_fc', 'grad_fc_roi'):
            assert mine[name] == pytest.approx(theirs[name], rel=TOLERANCE, abs=1e-9), (mine['t'], name)


RUNS = pytest.mark.parametrize('kind', [CoreRun, RegistryRun], ids=['core', 'registry'])


@RUNS
def test_every_step_and_the_final_weights_are_the_authors(kind):
    found, weights = replay(kind(SETTINGS['omega']), len(STEPS))
    assert len(found) == len(STEPS) == 1001
    check_steps(found)
    for name, theirs in TRACE['final'].items():
        mine = weights[name].detach().double()
        assert float(mine.norm()) == pytest.approx(theirs['norm'], rel=TOLERANCE), name
        assert float(mine.sum()) == pytest.approx(theirs['sum'], abs=TOLERANCE * theirs['norm']), name
        assert mine.flatten()[:3].tolist() == pytest.approx(theirs['first'], rel=TOLERANCE, abs=1e-5), name


def one_pixel_right(box):
    return (
        core.Box(box.x1 + 1, box.y1, box.x2 + 1, box.y2)
        if box.x2 < SETTINGS['width']
        else core.Box(box.x1 - 1, box.y1, box.x2 - 1, box.y2)
    )


# What is spoilt, and how.
SPOILT = {
    'labels of another lambda': ('mix_labels', lambda mix: lambda new, old, lam: mix(new, old, lam * 1.001)),
    'drawn box': ('sample_box', lambda draw: lambda *args: one_pixel_right(draw(*args))),
    'filled box': (
        'resize_fill',
        lambda fill: lambda new, old, box, *more: fill(new, old, one_pixel_right(box), *more),
    ),
    'pooled box': ('pool_weights', lambda pool: lambda box, *sizes: pool(one_pixel_right(box), *sizes)),
    'transposed box': (
        'pool_weights',
        lambda pool: lambda box, *sizes: pool(core.Box(box.y1, box.x1, box.y2, box.x2), *sizes),
    ),
    'omega': None,
}


@RUNS
@pytest.mark.parametrize('what', SPOILT)
def test_the_comparison_detects_a_wrong_step(what, kind, monkeypatch):
    omega = SETTINGS['omega']
    if what == 'omega':
        omega *= 1.001
    else:
        name, spoil = SPOILT[what]
        monkeypatch.setattr(core, name, spoil(getattr(core, name)))
    found, _ = replay(kind(omega), 60)
    with pytest.raises(AssertionError):
        check_steps(found)
