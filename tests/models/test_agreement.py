"""mmpretrain's path, the wrapper and a plain loop: the same network, batches and draws give the same losses.

In float64: in float32 the rounding of each CPU's kernels grows, from step to step, beyond any useful tolerance.
"""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample

from mmrm import Consistency, RecursiveMix, RecursiveMixModel

STEPS, CLASSES, SIZE = 10, 7, 64
MEAN, STD = 127.5, 64.0


@pytest.fixture(scope='module')
def data():
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randint(0, 256, (6, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator),
            torch.randint(0, CLASSES, (6,), generator=generator),
        )
        for _ in range(STEPS)
    ]


@pytest.fixture(scope='module')
def start():
    """The network of torchvision, and the region's layer, before the first step."""
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=CLASSES).double(), torch.nn.Linear(512, CLASSES).double()


def train(parameters, loss_of, data):
    """Plain SGD without clipping. Returns the losses: all of them, and the consistency by itself."""
    optimizer, found = torch.optim.SGD(parameters, lr=1e-3), []
    for images, labels in data:
        loss, consistency = loss_of(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append((float(loss.detach()), float(consistency.detach())))
    return np.array(found)


@pytest.fixture(scope='module')
def mmpretrain_losses(start, data):
    net, fc_roi = copy.deepcopy(start)
    model = MODELS.build(
        dict(
            type='ImageClassifier',
            data_preprocessor=dict(
                type='RMDataPreprocessor',
                num_classes=CLASSES,
                mean=[MEAN] * 3,
                std=[STD] * 3,
                batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5)),
            ),
            backbone=dict(type='ResNet', depth=18, out_indices=(3,)),
            neck=None,
            head=dict(type='RMConsistencyHead', num_classes=CLASSES, in_channels=512, omega=0.5),
        )
    )
    state = net.state_dict()
    model.head.fc.load_state_dict({name: state.pop(f'fc.{name}') for name in ('weight', 'bias')})
    model.head.fc_roi.load_state_dict(fc_roi.state_dict())
    model.backbone.load_state_dict(state)
    model.data_preprocessor.batch_augments.augments[0].rng = np.random.RandomState(0)
    model.double().train()

    def loss_of(images, labels):
        samples = [DataSample().set_gt_label(int(label)) for label in labels]
        batch = model.data_preprocessor(dict(inputs=list(images), data_samples=samples), training=True)
        losses = model(batch['inputs'].double(), batch['data_samples'], mode='loss')
        return model.parse_losses(losses)[0], losses['loss_consistency']

    return train(model.parameters(), loss_of, data)


def close(losses, expected):
    assert (expected[1:, 1] > 0).sum() > STEPS // 2, 'most batches are mixed'
    assert np.abs(losses / np.where(expected == 0, 1, expected) - (expected != 0)).max() < 1e-5


def test_the_wrapper_agrees_with_mmpretrain(start, data, mmpretrain_losses):
    net, fc_roi = copy.deepcopy(start)
    model = RecursiveMixModel(net, 'layer4', alpha=0.5, omega=0.5, input_size=SIZE, rng=np.random.RandomState(0))
    model.consistency.fc_roi.load_state_dict(fc_roi.state_dict())
    losses = train(
        model.parameters(),
        lambda images, labels: (model((images.double() - MEAN) / STD, labels), model.losses['consistency']),
        data,
    )
    close(losses, mmpretrain_losses)


def test_a_plain_loop_agrees_with_mmpretrain(start, data, mmpretrain_losses):
    net, fc_roi = copy.deepcopy(start)
    rm = RecursiveMix(alpha=0.5, num_classes=CLASSES, rng=np.random.RandomState(0))
    consistency = Consistency(512, CLASSES, omega=0.5).double()
    consistency.fc_roi.load_state_dict(fc_roi.state_dict())
    body = torch.nn.Sequential(*list(net.children())[:-2])

    def loss_of(images, labels):
        images, scores, mix = rm.mix((images.double() - MEAN) / STD, labels)
        feature_map = body(images)
        logits = net.fc(net.avgpool(feature_map).flatten(1))
        region = consistency(mix, feature_map, logits)
        return F.cross_entropy(logits, scores) + region, region

    close(train([*net.parameters(), *consistency.parameters()], loss_of, data), mmpretrain_losses)
