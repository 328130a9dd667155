"""What is exported computes the same elsewhere, says where it comes from, and never replaces a file unasked."""

import json

import pytest
import torch
import torchvision
from safetensors import safe_open

import mmrm
from mmrm.utils.errors import UserError, UserFileError, UserValueError
from mmrm.weights import export_backbone, export_classifier, load_backbone, read_checkpoint
from mmrm.weights.export import facts_of
from mmrm.weights.layouts import identify, split
from mmrm.weights.provenance import read_weights, tensor_hash

from networks import (  # isort: skip
    CIFARDenseNet,
    CIFARResNet,
    PyramidNet,
    backbone,
    classifier,
    logits,
    narrow_resnet,
    release,
    shake,
)

R18 = dict(type='ResNet', depth=18, stem_channels=8, base_channels=8)


def rm_classifier(config, in_channels):
    """A classifier as RM trains it, with its RoI layer."""
    return shake(classifier(config, in_channels, 'RMConsistencyHead'))


@pytest.fixture(scope='module')
def resnet():
    torch.manual_seed(3)
    return rm_classifier(R18, 64)


@pytest.fixture(scope='module')
def trained(resnet, tmp_path_factory):
    """A checkpoint as mmengine saves it."""
    file = tmp_path_factory.mktemp('run') / 'epoch_9.pth'
    meta = dict(epoch=9, iter=90, experiment_name='resnet18_x', dataset_meta=dict(classes=tuple('abcde')), cfg='text')
    torch.save(dict(meta=meta, state_dict=resnet.state_dict(), optimizer={}), file)
    return file


def tensors_of(file):
    read = read_checkpoint(file)
    return read.get('state_dict', read)


def assert_same(found, expected):
    assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)


def test_an_exported_backbone_arrives_in_detectors_and_segmentors(resnet, trained, tmp_path):
    """Also without mmrm at the other end: mmengine's own Pretrained finds every name."""
    out = tmp_path / 'backbone.pth'
    export_backbone(trained, out)
    expected = resnet.backbone.state_dict()
    strict = backbone('mmdet', **R18)
    load_backbone(strict, out)
    assert_same(strict.state_dict(), expected)
    for scope in ('mmdet', 'mmseg'):
        stock = backbone(scope, **R18, init_cfg=dict(type='Pretrained', checkpoint=str(out)))
        stock.init_weights()
        assert_same(stock.state_dict(), expected)


# --------------------------------------------------------------------------------------------- the authors' checkpoints
def imagenet_resnet():
    model = torchvision.models.resnet18(num_classes=5)
    model.fc_roi = torch.nn.Linear(model.fc.in_features, 5)
    return model


NETWORKS = {
    'ImageNet ResNet-18': (imagenet_resnet, 64),
    'CIFAR ResNet-18': (CIFARResNet, 32),
    'CIFAR DenseNet': (CIFARDenseNet, 32),
    'PyramidNet of uneven widths': (lambda: PyramidNet(20, 31), 32),
}


@pytest.mark.parametrize('name', NETWORKS)
def test_the_authors_networks_have_the_same_logits_in_mmpretrain(name, tmp_path):
    make, size = NETWORKS[name]
    theirs, out = shake(make()), tmp_path / f'ours{".safetensors" if "DenseNet" in name else ".pth"}'
    meta = export_classifier(release(theirs, tmp_path / 'theirs.pth'), out)
    tensors = tensors_of(out)
    network = split(tensors)
    ours = classifier(identify(network.backbone), in_channels=network.head['fc.weight'].shape[1])
    ours.load_state_dict(tensors, strict=True)
    images = torch.randn(2, 3, size, size)
    expected = logits(theirs, images)
    assert expected.std() > 1e-2
    torch.testing.assert_close(logits(ours, images), expected, rtol=0, atol=1e-6 * max(1, expected.abs().max().item()))
    assert meta['origin']['file'] == 'theirs.pth' and meta['origin']['epoch'] == 300 and meta['converted_from']


def test_converted_weights_load_into_the_shipped_rm_config(tmp_path):
    theirs = shake(CIFARResNet(width=64, num_classes=100))
    export_classifier(release(theirs, tmp_path / 'theirs.pth'), tmp_path / 'ours.pth')
    model = mmrm.get_model('rm/resnet18_2xb64_cifar100', pretrained=tmp_path / 'ours.pth')
    assert torch.equal(model.head.fc.weight, theirs.fc.weight)


def test_the_releases_of_cutmix_are_read_and_exported(tmp_path):
    """CutMix-PyTorch's model_best.pth.tar: ``module.`` in all names, errors in percent, the optimizer."""
    theirs = shake(narrow_resnet())
    tensors = {f'module.{key}': value for key, value in theirs.state_dict().items()}
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1, momentum=0.9, nesterov=True).state_dict()
    saved = dict(epoch=298, arch='resnet', state_dict=tensors, best_err1=21.4, best_err5=5.92, optimizer=optimizer)
    source = tmp_path / 'model_best.pth.tar'
    torch.save(saved, source, _use_new_zipfile_serialization=False)  # they are of that time
    assert export_classifier(source, tmp_path / 'ours.pth')['origin']['epoch'] == 298
    assert_same(split(tensors_of(tmp_path / 'ours.pth')).backbone, split(tensors).backbone)


def test_bare_names_of_an_unknown_network_are_not_taken_for_mmpretrains(tmp_path):
    torch.save(shake(narrow_resnet(50, type='ResNeXt', width_per_group=2)).state_dict(), tmp_path / 'resnext.pth')
    with pytest.raises(UserFileError, match=r'ResNeXt.*can be converted for ResNet'):
        export_classifier(tmp_path / 'resnext.pth', tmp_path / 'ours.pth')


# ------------------------------------------------------------------------------------------------------ other libraries
def test_there_and_back_is_exact_and_a_change_is_noticed(tmp_path):
    """mmpretrain to torchvision to mmpretrain: the same bits."""
    source = rm_classifier(dict(type='ResNet', depth=18), 512).state_dict()
    torch.save(source, tmp_path / 'run.pth')
    export_classifier(tmp_path / 'run.pth', tmp_path / 'a.pth', layout='torchvision')
    export_classifier(tmp_path / 'a.pth', tmp_path / 'b.pth')
    assert_same(tensors_of(tmp_path / 'b.pth'), {k: v for k, v in source.items() if 'fc_roi' not in k})
    for name in 'ab':  # saved again its checksums are right, but the note in it is of other tensors
        changed = torch.load(tmp_path / f'{name}.pth', weights_only=True)
        changed.get('state_dict', changed).popitem()
        torch.save(changed, tmp_path / f'{name}.pth')
        with pytest.raises(UserFileError, match='was changed or damaged after it was written'):
            read_checkpoint(tmp_path / f'{name}.pth')


def test_a_network_that_torchvision_computes_otherwise_is_refused(tmp_path):
    """A stride shows in no tensor, but in the config that the checkpoint carries."""
    config = dict(type='ResNet', depth=18, strides=(1, 2, 2, 1))
    meta = dict(cfg=f'model = dict(backbone={config!r})')
    model = shake(classifier(config, in_channels=512))
    torch.save(dict(state_dict=model.state_dict(), meta=meta), tmp_path / 'dense.pth')
    with pytest.raises(UserFileError, match='has other logits in torchvision'):
        export_classifier(tmp_path / 'dense.pth', tmp_path / 'out.pth', layout='torchvision')
    assert not (tmp_path / 'out.pth').exists()


def test_a_convnext_of_rm_keeps_its_order_of_norm_and_pooling_from_file_to_file(tmp_path):
    """The layer of RM, by which it is known, is not in the classifier that is deployed."""
    arch = dict(depths=[1, 1, 1, 1], channels=[8, 16, 24, 32])
    model = rm_classifier(dict(type='ConvNeXt', arch=arch, gap_before_final_norm=False), 32)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'rm.pth')
    export_classifier(tmp_path / 'rm.pth', tmp_path / 'plain.pth')
    for source in ('rm.pth', 'plain.pth'):
        assert facts_of(read_weights(tmp_path / source)).norm_first, source


def test_unsupported_layouts_are_refused(trained, tmp_path):
    pyramid = release(PyramidNet(), tmp_path / 'pyramid.pth')
    for source, layout, message in (
        (pyramid, 'torchvision', r'PyramidNetCIFAR\(depth=29.*not provided'),
        (pyramid, 'timm', r'PyramidNetCIFAR\(depth=29.*not provided'),
        (trained, 'torchvision', 'have the width 64'),
        (trained, 'timm', 'have the width 64'),
        ('in.pth', 'keras', "layout='keras' must be one of mmpretrain, torchvision, timm"),
    ):
        with pytest.raises(UserValueError, match=message):
            export_classifier(source, tmp_path / 'out.pth', layout=layout)


# ----------------------------------------------------------------------------------------------- where it comes from
@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
@pytest.mark.parametrize('export', [export_backbone, export_classifier])
def test_outputs_carry_their_hash_and_origin_and_nothing_else(export, suffix, trained, tmp_path):
    out = tmp_path / f'out{suffix}'
    export(trained, out)
    if suffix == '.safetensors':
        with safe_open(str(out), 'pt') as opened:
            meta = json.loads(opened.metadata()['meta'])
    else:
        meta = torch.load(out, weights_only=True)['meta']
    tensors = tensors_of(out)
    assert meta['sha256'] == tensor_hash(tensors)
    assert meta['origin']['file'] == 'epoch_9.pth' and len(meta['origin']['sha256']) == 64
    assert (meta['origin']['epoch'], meta['origin']['experiment_name']) == (9, 'resnet18_x')
    assert meta['dataset_meta']['classes'] == list('abcde') and 'ResNet(depth=18' in meta['content']
    assert 'mmrm_version' in meta and 'converted_from' not in meta
    # No storage of the checkpoint hangs on to a view.
    assert out.stat().st_size < 1.2 * sum(value.numel() * value.element_size() for value in tensors.values())


@pytest.mark.parametrize('suffix, message', [('.pth', 'is damaged in its part data/'), ('.safetensors', 'changed or')])
def test_a_damaged_file_is_noticed_by_every_reader(suffix, message, trained, tmp_path):
    out = tmp_path / f'out{suffix}'
    export_backbone(trained, out)
    raw = bytearray(out.read_bytes())
    raw[len(raw) // 2] ^= 1  # one bit in the middle of the tensors
    out.write_bytes(raw)
    with pytest.raises(UserFileError, match=rf'out{suffix} .*{message}'):
        load_backbone(backbone('mmdet', **R18), out)


# --------------------------------------------------------------------------------------------------- nothing is lost
@pytest.mark.parametrize('export', [export_backbone, export_classifier])
def test_half_the_size_is_nearly_the_same_and_what_does_not_fit_is_refused(export, resnet, trained, tmp_path):
    export(trained, tmp_path / 'full.safetensors')
    export(trained, tmp_path / 'half.safetensors', half=True)
    full, half = tensors_of(tmp_path / 'full.safetensors'), tensors_of(tmp_path / 'half.safetensors')
    assert full.keys() == half.keys()
    for key, value in full.items():
        assert half[key].dtype == (torch.float16 if value.is_floating_point() else value.dtype)
        assert torch.allclose(half[key].to(value), value, rtol=1e-3, atol=1e-6)
    state = dict(resnet.state_dict(), **{'backbone.bn1.running_var': torch.full((8,), 1e6)})
    torch.save(dict(state_dict=state, meta={}), tmp_path / 'a.pth')
    with pytest.raises(UserFileError, match=r'running_var.*too large for float16'):
        export(tmp_path / 'a.pth', tmp_path / 'b.pth', half=True)
    assert not (tmp_path / 'b.pth').exists()


def test_no_file_is_replaced_unasked_and_the_source_never(trained, resnet, tmp_path):
    out = tmp_path / 'mine.pth'
    out.write_text('precious')
    for export in (export_backbone, export_classifier):
        with pytest.raises(UserFileError, match=r'mine\.pth already exists.*--overwrite'):
            export(trained, out)
    assert out.read_text() == 'precious'
    export_backbone(trained, out, overwrite=True)
    assert 'conv1.weight' in tensors_of(out)
    for name, message in (('a.bin', 'must end in'), ('', 'folder')):  # before the source is looked for
        with pytest.raises(UserError, match=message):
            export_backbone('no such file.pth', tmp_path / name)
    with pytest.raises(UserFileError, match='the file to read'):
        export_backbone(out, out, overwrite=True)
    assert 'conv1.weight' in tensors_of(out)


# ------------------------------------------------------------------------------------------------------ wrong sources
@pytest.mark.parametrize(
    'export, change, message',
    [
        (export_classifier, {'neck.fpn.weight': torch.ones(1)}, r'besides backbone and head it has neck\.fpn\.weight'),
        (export_classifier, {'head.layers.fc1.weight': torch.ones(1)}, 'no linear classifier fc'),
        (
            export_backbone,
            {'backbone.layer4.1.conv2.weight': None},
            r'looks like ResNet\(depth=18.*, but does not fit: 1 of 120 tensors not in the file: layer4\.1\.conv2',
        ),
    ],
)
def test_incomplete_and_other_networks_are_not_exported(export, change, message, resnet, tmp_path):
    tensors = {key: value for key, value in {**resnet.state_dict(), **change}.items() if value is not None}
    torch.save(tensors, tmp_path / 'other.pth')
    with pytest.raises(UserFileError, match=message):
        export(tmp_path / 'other.pth', tmp_path / 'out.pth')


def test_a_backbone_under_a_prefix_is_exported_by_its_prefix_and_not_as_something_else(resnet, tmp_path):
    torch.save({f'model.{key}': value for key, value in resnet.state_dict().items()}, tmp_path / 'other.pth')
    for prefix, message in (
        (None, r"give prefix='model\.backbone\.'"),
        ('model', r"give prefix='model\.backbone\.'"),
        ('encoder.', r"no backbone in it under the prefix 'encoder\.'"),
    ):
        with pytest.raises(UserFileError, match=message):
            export_backbone(tmp_path / 'other.pth', tmp_path / 'out.pth', prefix=prefix)
    export_backbone(tmp_path / 'other.pth', tmp_path / 'out.pth', prefix='model.backbone')
    assert_same(tensors_of(tmp_path / 'out.pth'), resnet.backbone.state_dict())
