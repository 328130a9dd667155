"""Checkpoints in the authors' layout say the same in mmpretrain. The files are made here, in that layout."""

import pytest
import torch
import torchvision
from mmengine.registry import MODELS, init_default_scope

import mmrm
from mmrm.utils.errors import UserFileError
from mmrm.weights import convert, read_checkpoint
from mmrm.weights.layouts import identify, split

from networks import CIFARDenseNet, CIFARResNet, PyramidNet, classifier, logits, release, shake  # isort: skip


def resnet50():
    model = torchvision.models.resnet50(num_classes=5)
    model.fc_roi = torch.nn.Linear(2048, 5)
    return model


NETWORKS = {
    'ImageNet ResNet-50': (resnet50, 64),
    'CIFAR ResNet-18': (CIFARResNet, 32),
    'CIFAR ResNet-50': (lambda: CIFARResNet(True, (3, 4, 6, 3), 4), 32),
    'CIFAR DenseNet': (CIFARDenseNet, 32),
    'PyramidNet': (PyramidNet, 32),
    'PyramidNet of uneven widths': (lambda: PyramidNet(20, 31), 32),
}


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
@pytest.mark.parametrize('name', NETWORKS)
def test_same_logits_before_and_after(name, suffix, tmp_path):
    make, size = NETWORKS[name]
    theirs = shake(make())
    meta = convert(release(theirs, tmp_path / 'theirs.pth'), tmp_path / f'ours{suffix}')
    tensors = read_checkpoint(tmp_path / f'ours{suffix}')
    tensors = tensors.get('state_dict', tensors)
    network = split(tensors)
    ours = classifier(identify(network.backbone), in_channels=network.head['fc.weight'].shape[1])
    missing, left = ours.load_state_dict(tensors, strict=False)
    assert missing == [] and set(left) == {'head.fc_roi.weight', 'head.fc_roi.bias'}
    images = torch.randn(2, 3, size, size)
    expected = logits(theirs, images)
    assert expected.std() > 1e-2
    torch.testing.assert_close(logits(ours, images), expected, rtol=0, atol=1e-6 * max(1, expected.abs().max().item()))
    assert meta['origin']['file'] == 'theirs.pth' and meta['origin']['epoch'] == 300


def test_the_result_loads_into_the_shipped_rm_config(tmp_path):
    theirs = CIFARResNet(width=64, num_classes=100)
    convert(release(theirs, tmp_path / 'theirs.pth'), tmp_path / 'ours.pth')
    from mmengine.config import Config

    config = Config.fromfile(mmrm.utils.paths.shipped() / 'configs/rm/resnet18_2xb64_cifar100.py')
    init_default_scope('mmpretrain')
    model = MODELS.build(config.model)
    model.load_state_dict(read_checkpoint(tmp_path / 'ours.pth')['state_dict'], strict=True)
    assert torch.equal(model.head.fc_roi.weight, theirs.fc_roi.weight)


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda tensors: tensors.pop('module.conv3_x.0.shortcut.0.weight'), 'lacks 1 tensors: layer2.0.downsample.0'),
        (
            lambda tensors: tensors.update({'module.conv6_x.0.weight': torch.ones(1)}),
            'has, unlike it, 1 tensors: conv6_x',
        ),
        (
            lambda tensors: tensors.update({'module.conv4_x.0.residual_function.0.weight': torch.ones(32, 8, 3, 3)}),
            'in another shape 1 tensors: layer3.0.conv1.weight',
        ),
        (lambda tensors: tensors.pop('module.fc.weight'), 'no linear classifier fc'),
    ],
)
def test_a_damaged_release_is_not_converted(change, message, tmp_path):
    tensors = {f'module.{key}': value for key, value in CIFARResNet().state_dict().items()}
    change(tensors)
    torch.save(dict(state_dict=tensors), tmp_path / 'theirs.pth')
    with pytest.raises(UserFileError, match=message):
        convert(tmp_path / 'theirs.pth', tmp_path / 'ours.pth')
    assert [file.name for file in tmp_path.iterdir()] == ['theirs.pth']


def test_an_unknown_network_is_named(tmp_path):
    torch.save(torchvision.models.resnext50_32x4d().state_dict(), tmp_path / 'resnext.pth')
    with pytest.raises(UserFileError, match=r'ResNeXt.*none of the networks that can be converted'):
        convert(tmp_path / 'resnext.pth', tmp_path / 'ours.pth')


def test_mmpretrains_own_layout_needs_no_conversion(tmp_path):
    torch.save(classifier(dict(type='ResNet_CIFAR', depth=18), in_channels=512).state_dict(), tmp_path / 'ours.pth')
    with pytest.raises(UserFileError, match='already'):
        convert(tmp_path / 'ours.pth', tmp_path / 'again.pth')
