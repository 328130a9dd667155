"""CutMix-PyTorch's model_best.pth.tar, weights of the baseline and CutMix rows, in files made here in its layout."""

import pytest
import torch
import torchvision

from mmrm.utils.errors import UserFileError
from mmrm.weights import convert, export_classifier, load_backbone, read_checkpoint

from networks import PyramidNet, backbone, classifier, logits, shake  # isort: skip


def cutmix_release(model, file, old=False, **more):
    """What its train.py saves: names with ``module.``, errors in percent, the optimizer."""
    tensors = {f'module.{key}': value for key, value in model.state_dict().items() if not key.startswith('fc_roi')}
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True).state_dict()
    saved = dict(epoch=298, arch='resnet', state_dict=tensors, best_err1=21.4, best_err5=5.92, optimizer=optimizer)
    torch.save({**saved, **more}, file, _use_new_zipfile_serialization=not old)
    return file


@pytest.fixture(scope='module')
def resnet():
    torch.manual_seed(5)
    return shake(torchvision.models.resnet50(num_classes=7))


@pytest.mark.parametrize('old', [False, True], ids=['zip file', "torch's older format"])
def test_a_detectors_backbone_takes_it(old, resnet, tmp_path):
    module = backbone('mmdet', type='ResNet', depth=50)
    load_backbone(module, cutmix_release(resnet, tmp_path / 'model_best.pth.tar', old))
    found, expected = module.state_dict(), resnet.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in found.items())


def test_it_is_converted_and_exported_with_the_same_logits(resnet, tmp_path):
    source = cutmix_release(resnet, tmp_path / 'model_best.pth.tar')
    meta = convert(source, tmp_path / 'ours.pth')
    assert meta['origin']['file'] == 'model_best.pth.tar' and meta['origin']['epoch'] == 298
    ours = classifier(dict(type='ResNet', depth=50), num_classes=7, in_channels=2048)
    ours.load_state_dict(read_checkpoint(tmp_path / 'ours.pth')['state_dict'], strict=True)
    images = torch.randn(1, 3, 64, 64)
    expected = logits(resnet, images)
    torch.testing.assert_close(logits(ours, images), expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    export_classifier(source, tmp_path / 'there.pth', layout='torchvision')
    there = torchvision.models.resnet50(num_classes=7)
    there.load_state_dict(torch.load(tmp_path / 'there.pth', weights_only=True), strict=True)
    assert torch.equal(logits(there.eval(), images), expected)


def test_its_pyramidnet_is_converted(tmp_path):
    theirs = shake(PyramidNet())
    convert(cutmix_release(theirs, tmp_path / 'model_best.pth.tar', arch='pyramidnet'), tmp_path / 'ours.pth')
    ours = classifier(dict(type='PyramidNetCIFAR', depth=29, alpha=24), in_channels=theirs.fc.in_features)
    ours.load_state_dict(read_checkpoint(tmp_path / 'ours.pth')['state_dict'], strict=True)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(logits(ours, images), logits(theirs, images), rtol=0, atol=1e-5)


def test_what_such_a_file_would_execute_is_refused(tmp_path):
    class Trap:
        def __reduce__(self):
            return print, ('executed',)

    file = cutmix_release(PyramidNet(), tmp_path / 'model_best.pth.tar', best_err1=Trap())
    with pytest.raises(UserFileError, match='print'):
        convert(file, tmp_path / 'ours.pth')
