"""Backbones in the form of the shipped ones."""

from pathlib import Path

import pytest
import torch

from mmrm.weights import export_classifier
from mmrm.weights.build import build
from projects.demo import stages


@pytest.fixture(scope='session')
def weights(tmp_path_factory) -> Path:
    """Backbones that nobody trained, in the form of the shipped ones."""
    folder = tmp_path_factory.mktemp('weights')
    for seed, name in enumerate(('baseline', 'cutmix', 'rm')):
        torch.manual_seed(seed)
        model = build(f'configs/{name}/resnet18-w16_1xb64_cifar10-250.py')
        torch.save(dict(state_dict=model.state_dict(), meta={}), folder / f'{name}.pth')
        export_classifier(folder / f'{name}.pth', folder / f'{name}.safetensors', half=True)
    return folder


@pytest.fixture
def own_weights(weights, monkeypatch) -> Path:
    monkeypatch.setattr(stages, 'weights_file', lambda method: weights / f'{method}.safetensors')
    return weights
