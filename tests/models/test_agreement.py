"""mmpretrain's path, the wrapper and a plain loop: the same network, batches and draws give the same losses.

In float64: batch norms of few samples amplify the rounding of float32 within a few steps.
"""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import classifier
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample

from mmrm import Consistency, RecursiveMix, RecursiveMixModel

STEPS, CLASSES, SIZE = 10, 7, 64
MEAN, STD = 127.5, 64.0  # of helpers.classifier


@pytest.fixture(scope='module')
def data():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (STEPS, 6, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
    return list(zip(images, torch.randint(0, CLASSES, (STEPS, 6), generator=generator)))


class Net(torch.nn.Module):
    """A narrow ResNet as a plain loop has it: logits of images."""

    def __init__(self):
        super().__init__()
        self.backbone = MODELS.build(dict(type='ResNet', depth=18, base_channels=8))
        self.fc = torch.nn.Linear(64, CLASSES)

    def forward(self, images):
        return self.fc(self.backbone(images)[-1].mean((2, 3)))


@pytest.fixture(scope='module')
def start():
    """The network, and the region's layer, before the first step."""
    torch.manual_seed(0)
    return Net().double(), torch.nn.Linear(64, CLASSES, dtype=torch.double)


def train(parameters, loss_of, data):
    """Plain SGD without clipping. Returns the losses: all of them, and the consistency by itself."""
    optimizer, found = torch.optim.SGD(parameters, lr=0.02), []
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
    model = classifier(num_classes=CLASSES).double()
    model.head.fc.load_state_dict(net.fc.state_dict())
    model.head.fc_roi.load_state_dict(fc_roi.state_dict())
    model.backbone.load_state_dict(net.backbone.state_dict())
    model.data_preprocessor.batch_augments.augments[0].rng = np.random.RandomState(0)
    model.train()

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
    model = RecursiveMixModel(
        net, 'backbone.layer4', alpha=0.5, omega=0.5, input_size=SIZE, rng=np.random.RandomState(0)
    )
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
    consistency = Consistency(64, CLASSES, omega=0.5).double()
    consistency.fc_roi.load_state_dict(fc_roi.state_dict())

    def loss_of(images, labels):
        images, scores, mix = rm.mix((images.double() - MEAN) / STD, labels)
        feature_map = net.backbone(images)[-1]
        logits = net.fc(feature_map.mean((2, 3)))
        region = consistency(mix, feature_map, logits)
        return F.cross_entropy(logits, scores) + region, region

    close(train([*net.parameters(), *consistency.parameters()], loss_of, data), mmpretrain_losses)
