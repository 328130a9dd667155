"""Every family of networks as a program for other runtimes: written, run there, compared."""

import pytest
import torch
from test_targets import NETWORKS

from mmrm.utils.errors import UserFileError, UserValueError
from mmrm.weights.deploy import export_network, run_file

from networks import classifier, shake  # isort: skip

FAMILIES = {
    **{name: each for name, each in NETWORKS.items() if name != 'ResNet with bottlenecks'},
    'CIFAR ResNet': (dict(type='ResNet_CIFAR', depth=18, stem_channels=8, base_channels=8), 64),
    'PyramidNet': (dict(type='PyramidNetCIFAR', depth=29, alpha=24), 160),
    'CIFAR DenseNet': (dict(type='DenseNetCIFAR', arch=dict(growth_rate=4, depths=[2, 2, 2, 2], init_channels=8)), 16),
    'MobileNetV3': (dict(type='MobileNetV3', arch='small'), 576),
    'EfficientNet': (dict(type='EfficientNet', arch='b0'), 1280),
    'RegNet': (dict(type='RegNet', arch='regnetx_400mf'), 384),
    'DeiT': (dict(type='VisionTransformer', arch='deit-tiny', img_size=64, out_type='featmap'), 192),
}


def network(name):
    if name.startswith('timm'):
        pytest.importorskip('timm')
    pooled = 'pools first' in name
    arguments = dict(mid_channels=[32]) if name == 'MobileNetV3' else {}
    return shake(classifier(*FAMILIES[name], 'LinearClsHead' if pooled else 'RMConsistencyHead', pooled, **arguments))


@pytest.mark.slow
@pytest.mark.parametrize('kind, suffix', [('onnx', '.onnx'), ('torch.export', '.pt2')])
@pytest.mark.parametrize('name', FAMILIES)
def test_any_number_of_images(name, kind, suffix, tmp_path):
    if kind == 'onnx':
        for package in ('onnx', 'onnxscript', 'onnxruntime'):
            pytest.importorskip(package)
    model = network(name)
    export_network(model, tmp_path / f'net{suffix}', (64, 64), {}, kind, 'batch')
    images = torch.randn(5, 3, 64, 64)
    with torch.no_grad():
        expected = model(images, mode='tensor')
    found = run_file(tmp_path / f'net{suffix}', kind, images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * expected.abs().max().item())


@pytest.mark.parametrize('name', ['SwinTransformer', 'DeiT'])
def test_attention_has_one_size(name, tmp_path):
    with pytest.raises(UserValueError, match='is for networks without attention') as error:
        export_network(network(name), tmp_path / 'net.pt2', (64, 64), {}, 'torch.export', 'all')
    assert '\n' not in str(error.value) and list(tmp_path.iterdir()) == []


class Fickle(torch.nn.Module):
    """What it does depends on the values that it gets: no program of fixed steps."""

    def forward(self, images):
        return (images.mean(dim=(2, 3), keepdim=True) if images.sum() > 0 else images,)


def test_failed_export_or_other_logits_leave_no_file(tmp_path, monkeypatch):
    model = network('CIFAR ResNet')
    arguments = tmp_path / 'net.pt2', (32, 32), {}, 'torch.export'
    monkeypatch.setattr('mmrm.weights.deploy.run_file', lambda *args: torch.zeros(1, 5))
    with pytest.raises(UserFileError, match='differ from those in torch'):
        export_network(model, *arguments)
    model.backbone = Fickle()
    with pytest.raises(UserFileError, match=r'cannot be written as torch\.export') as error:
        export_network(model, *arguments)
    assert '\n' not in str(error.value) and list(tmp_path.iterdir()) == []
