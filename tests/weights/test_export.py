"""What is exported says the same elsewhere, tells where it comes from, and never replaces a file unasked."""

import json
import os

import pytest
import torch
import torchvision
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint
from safetensors import safe_open

from mmrm.utils.errors import UserFileError, UserValueError
from mmrm.weights import convert, export_backbone, export_classifier, load_backbone, read_checkpoint
from mmrm.weights.export import facts_of
from mmrm.weights.provenance import read_weights, tensor_hash

from networks import PyramidNet, backbone, classifier, logits, release, shake  # isort: skip

R18 = dict(type='ResNet', depth=18)
PVT = dict(type='mmdet.PyramidVisionTransformerV2', embed_dims=64, num_layers=[2, 2, 2, 2])


def rm_classifier(config, in_channels, num_classes=5):
    """A classifier as RM trains it, with its RoI layer."""
    init_default_scope('mmpretrain')
    return shake(
        MODELS.build(
            dict(
                type='ImageClassifier',
                data_preprocessor=dict(type='RMDataPreprocessor', num_classes=num_classes),
                backbone=dict(config),
                head=dict(type='RMConsistencyHead', num_classes=num_classes, in_channels=in_channels),
            )
        )
    )


@pytest.fixture(scope='module')
def resnet():
    torch.manual_seed(3)
    return rm_classifier(R18, 512)


@pytest.fixture(scope='module')
def pvt():
    torch.manual_seed(4)
    return rm_classifier(PVT, 512)


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


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_an_exported_backbone_arrives_in_a_detector(suffix, resnet, trained, tmp_path):
    export_backbone(trained, tmp_path / f'backbone{suffix}')
    module = backbone('mmdet', **R18)
    load_backbone(module, tmp_path / f'backbone{suffix}')
    found = module.state_dict()
    assert all(torch.equal(found[key], value) for key, value in resnet.backbone.state_dict().items())


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_stock_mmdet_and_mmseg_load_it_completely(scope, resnet, trained, tmp_path):
    """Without mmrm at the other end: mmengine's own Pretrained finds every name."""
    export_backbone(trained, tmp_path / 'backbone.pth')
    module = backbone(scope, **R18, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'backbone.pth')))
    module.init_weights()
    found = module.state_dict()
    assert all(torch.equal(found[key], value) for key, value in resnet.backbone.state_dict().items())


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_stock_mmpretrain_takes_the_classifier(suffix, resnet, trained, tmp_path):
    out = tmp_path / f'classifier{suffix}'
    export_classifier(trained, out)
    stock = classifier(R18, in_channels=512)
    stock.load_state_dict(tensors_of(out), strict=True)
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(logits(stock, images), logits(resnet, images), rtol=0, atol=1e-6)


@pytest.mark.parametrize('layout', ['torchvision', 'timm'])
@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_torchvision_takes_the_classifier(suffix, layout, resnet, trained, tmp_path):
    out = tmp_path / f'classifier{suffix}'
    export_classifier(trained, out, layout=layout)
    model = torchvision.models.resnet18(num_classes=5)
    model.load_state_dict(read_checkpoint(out), strict=True)
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(logits(model.eval(), images), logits(resnet, images), rtol=0, atol=1e-6)


def test_a_network_that_torchvision_computes_otherwise_is_refused(tmp_path):
    """Caffe's stride shows in no tensor, but in the config that the checkpoint carries."""
    torch.manual_seed(5)
    config = dict(type='ResNet', depth=50, style='caffe')
    model = classifier(config, in_channels=2048)
    meta = dict(cfg=f'model = dict(backbone={config!r})')
    torch.save(dict(state_dict=shake(model).state_dict(), meta=meta), tmp_path / 'caffe.pth')
    with pytest.raises(UserFileError, match='says something else'):
        export_classifier(tmp_path / 'caffe.pth', tmp_path / 'out.pth', layout='torchvision')
    assert not (tmp_path / 'out.pth').exists()


def test_a_convnext_of_rm_keeps_its_order_of_norm_and_pooling_from_file_to_file(tmp_path):
    """The layer of RM, which tells it, is not in the classifier that is deployed."""
    arch = dict(depths=[1, 1, 1, 1], channels=[96, 192, 384, 768])
    model = rm_classifier(dict(type='ConvNeXt', arch=arch, gap_before_final_norm=False), 768)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'rm.pth')
    export_classifier(tmp_path / 'rm.pth', tmp_path / 'plain.pth')
    for source in ('rm.pth', 'plain.pth'):
        facts = facts_of(read_weights(tmp_path / source))
        assert facts.norm_first, source


def test_there_and_back_is_exact(trained, resnet, tmp_path):
    """mmpretrain to torchvision to mmpretrain to safetensors: the same bits."""
    export_classifier(trained, tmp_path / 'a.pth', layout='torchvision')
    export_classifier(tmp_path / 'a.pth', tmp_path / 'b.pth')
    export_classifier(tmp_path / 'b.pth', tmp_path / 'c.safetensors')
    found = tensors_of(tmp_path / 'c.safetensors')
    expected = {key: value for key, value in resnet.state_dict().items() if 'fc_roi' not in key}
    assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)


def test_resnet50_of_torchvision(tmp_path):
    """The paper's network, through the authors' layout, fc included."""
    model = shake(torchvision.models.resnet50())
    model.fc_roi = torch.nn.Linear(2048, 1000)
    export_classifier(release(model, tmp_path / 'release.pth'), tmp_path / 'deploy.pth', layout='torchvision')
    fresh = torchvision.models.resnet50()
    fresh.load_state_dict(torch.load(tmp_path / 'deploy.pth', weights_only=True), strict=True)
    assert sum(parameter.numel() for parameter in fresh.parameters()) == 25_557_032
    images = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(logits(fresh.eval(), images), logits(model, images), rtol=0, atol=1e-6)


def test_pvt_in_timms_names_comes_back_exactly(pvt, tmp_path):
    torch.save(pvt.state_dict(), tmp_path / 'pvt.pth')
    export_classifier(tmp_path / 'pvt.pth', tmp_path / 'timm.pth', layout='timm')
    names = set(read_checkpoint(tmp_path / 'timm.pth'))
    assert {
        'patch_embed.proj.weight',
        'stages.0.blocks.1.mlp.dwconv.weight',
        'stages.1.downsample.norm.bias',
        'stages.3.norm.weight',
        'stages.2.blocks.0.attn.kv.bias',
        'head.weight',
    } <= names
    export_classifier(tmp_path / 'timm.pth', tmp_path / 'back.pth')
    found = tensors_of(tmp_path / 'back.pth')
    assert all(torch.equal(found[key], value) for key, value in pvt.state_dict().items() if 'fc_roi' not in key)


@pytest.mark.parametrize('name', ['resnet18', 'pvt_v2_b1'])
def test_timm_itself_takes_the_classifier(name, resnet, pvt, tmp_path):
    timm = pytest.importorskip('timm')
    source = resnet if name == 'resnet18' else pvt
    torch.save(source.state_dict(), tmp_path / 'source.pth')
    export_classifier(tmp_path / 'source.pth', tmp_path / 'timm.pth', layout='timm')
    model = timm.create_model(name, num_classes=5)
    model.load_state_dict(read_checkpoint(tmp_path / 'timm.pth'), strict=True)
    images = torch.randn(2, 3, 64, 64)
    # timm's PVT adds 1e-5 in some of its norms, mmdet's 1e-6.
    tolerance = 1e-6 if name == 'resnet18' else 1e-3
    torch.testing.assert_close(logits(model.eval(), images), logits(source, images), rtol=0, atol=tolerance)


@pytest.mark.parametrize('layout', ['torchvision', 'timm'])
def test_layouts_that_a_network_has_not(layout, tmp_path):
    with pytest.raises(UserValueError, match=r'PyramidNet-29.*not provided'):
        export_classifier(release(PyramidNet(), tmp_path / 'pyramid.pth'), tmp_path / 'out.pth', layout=layout)


def test_torchvision_has_no_narrow_resnets(tmp_path):
    narrow = rm_classifier(dict(type='ResNet', depth=18, stem_channels=8, base_channels=8), 64)
    torch.save(narrow.state_dict(), tmp_path / 'narrow.pth')
    with pytest.raises(UserValueError, match='of width 8'):
        export_classifier(tmp_path / 'narrow.pth', tmp_path / 'out.pth', layout='torchvision')
    export_classifier(tmp_path / 'narrow.pth', tmp_path / 'out.pth')


def test_layout_is_checked():
    with pytest.raises(UserValueError, match="layout='keras' must be one of mmpretrain, torchvision, timm"):
        export_classifier('in.pth', 'out.pth', layout='keras')


# ----------------------------------------------------------------------------------------------- where it comes from
@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
@pytest.mark.parametrize('layout', ['backbone', 'mmpretrain', 'torchvision'])
def test_outputs_carry_their_hash_and_origin(layout, suffix, trained, tmp_path):
    out = tmp_path / f'out{suffix}'
    if layout == 'backbone':
        export_backbone(trained, out)
    else:
        export_classifier(trained, out, layout=layout)
    if suffix == '.safetensors':
        with safe_open(str(out), 'pt') as opened:
            meta = json.loads(opened.metadata()['meta'])
    else:
        read = torch.load(out, weights_only=True)
        meta = read.meta if layout == 'torchvision' else read['meta']
    assert meta['sha256'] == tensor_hash(tensors_of(out))
    assert meta['origin']['file'] == 'epoch_9.pth' and len(meta['origin']['sha256']) == 64
    assert (meta['origin']['epoch'], meta['origin']['experiment_name']) == (9, 'resnet18_x')
    assert meta['dataset_meta']['classes'] == list('abcde') and 'ResNet-18' in meta['content']
    assert 'mmrm_version' in meta


@pytest.mark.parametrize('suffix, told', [('.pth', 'is damaged in its part data/'), ('.safetensors', 'changed or')])
def test_a_damaged_file_is_noticed_by_every_reader(suffix, told, trained, tmp_path):
    out = tmp_path / f'out{suffix}'
    export_backbone(trained, out)
    raw = bytearray(out.read_bytes())
    raw[len(raw) // 2] ^= 1  # one bit in the middle of the tensors
    out.write_bytes(raw)
    with pytest.raises(UserFileError, match=rf'out{suffix} .*{told}'):
        load_backbone(backbone('mmdet', **R18), out)
    with pytest.raises(UserFileError, match=rf'out{suffix} .*{told}'):
        load_checkpoint(backbone('mmdet', **R18), str(out))  # mmengine's


@pytest.mark.parametrize('layout', ['backbone', 'torchvision'])
def test_a_file_that_was_changed_and_saved_again_is_noticed(layout, trained, tmp_path):
    """Its checksums are right, but the note in it is of other tensors."""
    out = tmp_path / 'out.pth'
    export_backbone(trained, out) if layout == 'backbone' else export_classifier(trained, out, layout=layout)
    changed = torch.load(out, weights_only=True)
    (changed['state_dict'] if layout == 'backbone' else changed)['conv1.weight'][0, 0, 0, 0] += 1
    torch.save(changed, out)
    for read in (lambda: read_checkpoint(out), lambda: load_checkpoint(backbone('mmdet', **R18), str(out))):
        with pytest.raises(UserFileError, match='was changed or damaged after it was written'):
            read()


def test_a_tensor_of_terabytes_is_not_asked_for(resnet, tmp_path):
    big = {**resnet.state_dict(), 'head.fc.weight': torch.zeros(1).expand(2 * 10**9, 512)}
    torch.save(big, tmp_path / 'bomb.pth')
    for export in (export_backbone, export_classifier, convert):
        with pytest.raises(UserFileError, match=r'bomb.pth is refused: .*head\.fc\.weight alone 4\.1 TB'):
            export(tmp_path / 'bomb.pth', tmp_path / 'out.pth')
    assert [path.name for path in tmp_path.iterdir()] == ['bomb.pth']


def test_an_export_holds_no_more_than_its_tensors(trained, tmp_path):
    """No storage of the checkpoint hangs on behind a view."""
    export_backbone(trained, tmp_path / 'out.pth')
    values = sum(value.numel() * value.element_size() for value in tensors_of(tmp_path / 'out.pth').values())
    assert (tmp_path / 'out.pth').stat().st_size < 1.02 * values


# --------------------------------------------------------------------------------------------------- nothing is lost
@pytest.mark.parametrize('export', [export_backbone, export_classifier])
def test_half_the_size_says_nearly_the_same(export, resnet, trained, tmp_path):
    export(trained, tmp_path / 'whole.safetensors')
    export(trained, tmp_path / 'half.safetensors', half=True)
    whole, half = tensors_of(tmp_path / 'whole.safetensors'), tensors_of(tmp_path / 'half.safetensors')
    assert whole.keys() == half.keys()
    for key, value in whole.items():
        assert half[key].dtype == (torch.float16 if value.is_floating_point() else value.dtype)
        assert torch.allclose(half[key].to(value), value, rtol=1e-3, atol=1e-6)
    sizes = [(tmp_path / f'{name}.safetensors').stat().st_size for name in ('half', 'whole')]
    assert sizes[0] < 0.51 * sizes[1]
    # A network takes them as it takes others, in its own precision.
    detector = MODELS.build(dict(type='mmdet.ResNet', depth=18))
    load_backbone(detector, tmp_path / 'half.safetensors')
    assert torch.allclose(detector.conv1.weight, resnet.backbone.conv1.weight, rtol=1e-3)


def test_half_refuses_what_does_not_fit(resnet, tmp_path):
    state = dict(resnet.state_dict())
    state['backbone.bn1.running_var'] = torch.full((64,), 1e6)
    torch.save(dict(state_dict=state, meta={}), tmp_path / 'a.pth')
    with pytest.raises(UserFileError, match=r'running_var.*too large for float16'):
        export_backbone(tmp_path / 'a.pth', tmp_path / 'b.pth', half=True)
    assert not (tmp_path / 'b.pth').exists()


def test_an_existing_file_is_left_alone_unless_asked(trained, tmp_path):
    out = tmp_path / 'mine.pth'
    out.write_text('precious')
    for export in (export_backbone, export_classifier):
        with pytest.raises(UserFileError, match=r'mine\.pth exists.*--overwrite'):
            export(trained, out)
    assert out.read_text() == 'precious'
    export_backbone(trained, out, overwrite=True)
    assert 'conv1.weight' in tensors_of(out)


def test_the_source_is_never_replaced(trained, resnet, tmp_path):
    torch.save(resnet.state_dict(), tmp_path / 'source.pth')
    size = (tmp_path / 'source.pth').stat().st_size
    with pytest.raises(UserFileError, match='the file to read'):
        export_backbone(tmp_path / 'source.pth', tmp_path / 'source.pth', overwrite=True)
    assert (tmp_path / 'source.pth').stat().st_size == size


def test_a_failure_while_writing_leaves_nothing_behind(trained, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(torch, 'save', full)
    with pytest.raises(UserFileError, match=r'could not be written.*No space left'):
        export_backbone(trained, tmp_path / 'new' / 'out.pth')
    assert list((tmp_path / 'new').iterdir()) == []


@pytest.mark.parametrize(
    'out, error, message', [('a.bin', UserValueError, 'must end in'), ('', UserFileError, 'folder')]
)
def test_the_name_of_the_output_is_checked_first(out, error, message, tmp_path):
    with pytest.raises(error, match=message):
        export_backbone('no such file.pth', tmp_path / out)


@pytest.mark.skipif(os.name != 'posix', reason='permissions of POSIX')
def test_the_output_may_be_read_by_whom_the_umask_allows(trained, tmp_path):
    before = os.umask(0o022)
    try:
        export_backbone(trained, tmp_path / 'out.pth')
    finally:
        os.umask(before)
    assert (tmp_path / 'out.pth').stat().st_mode & 0o777 == 0o644


# ------------------------------------------------------------------------------------------------------ wrong sources
@pytest.mark.parametrize(
    'extra, message',
    [
        ({'neck.fpn.weight': torch.ones(1)}, r'no classifier: besides backbone and head it has neck\.fpn\.weight'),
        ({'head.layers.fc1.weight': torch.ones(1)}, 'no linear classifier fc'),
    ],
)
def test_only_classifiers_are_exported_as_classifiers(extra, message, resnet, tmp_path):
    torch.save({**resnet.state_dict(), **extra}, tmp_path / 'other.pth')
    with pytest.raises(UserFileError, match=message):
        export_classifier(tmp_path / 'other.pth', tmp_path / 'out.pth')


def test_a_backbone_behind_a_prefix_is_exported_by_its_prefix_and_not_as_something_else(resnet, tmp_path):
    torch.save({f'model.{key}': value for key, value in resnet.state_dict().items()}, tmp_path / 'other.pth')
    with pytest.raises(UserFileError, match=r"give prefix='model\.backbone\.'"):
        export_backbone(tmp_path / 'other.pth', tmp_path / 'out.pth')
    with pytest.raises(UserFileError, match=r"no backbone in it behind the prefix 'encoder\.'"):
        export_backbone(tmp_path / 'other.pth', tmp_path / 'out.pth', prefix='encoder.')
    with pytest.raises(UserFileError, match=r"give prefix='model\.backbone\.'"):
        export_backbone(tmp_path / 'other.pth', tmp_path / 'out.pth', prefix='model')
    export_backbone(tmp_path / 'other.pth', tmp_path / 'out.pth', prefix='model.backbone')
    expected = resnet.backbone.state_dict()
    found = tensors_of(tmp_path / 'out.pth')
    assert list(found) == list(expected) and all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize('prefix', ['module.encoder_q.', 'encoder_q'])
def test_a_network_behind_any_prefix_is_seen_and_the_prefix_may_be_as_in_the_file(prefix, resnet, tmp_path):
    """As in MoCo's files: two encoders, each with its fc, in DataParallel."""
    expected = resnet.backbone.state_dict()
    torch.save(
        dict(
            state_dict={
                f'module.encoder_{which}.{key}': value
                for which in 'qk'
                for key, value in {**expected, 'fc.weight': torch.zeros(4, 512)}.items()
            },
            epoch=200,
        ),
        tmp_path / 'moco.pth',
    )
    with pytest.raises(UserFileError, match=r"give prefix='encoder_k\.' .*others: encoder_q\."):
        export_backbone(tmp_path / 'moco.pth', tmp_path / 'out.pth')
    assert not (tmp_path / 'out.pth').exists()
    export_backbone(tmp_path / 'moco.pth', tmp_path / 'out.pth', prefix=prefix)
    found = tensors_of(tmp_path / 'out.pth')
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_another_program_s_note_in_a_safetensors_file_is_no_hindrance(resnet, tmp_path):
    from safetensors.torch import save_file

    save_file(dict(resnet.state_dict()), tmp_path / 'other.safetensors', metadata=dict(meta='no JSON'))
    export_backbone(tmp_path / 'other.safetensors', tmp_path / 'out.pth')
    assert len(tensors_of(tmp_path / 'out.pth')) == len(resnet.backbone.state_dict())


def test_half_a_backbone_is_not_exported(resnet, tmp_path):
    tensors = {key: value for key, value in resnet.state_dict().items() if key != 'backbone.layer4.1.conv2.weight'}
    torch.save(tensors, tmp_path / 'half.pth')
    with pytest.raises(UserFileError, match=r'looks like a ResNet-18, but lacks 1 tensors: layer4\.1\.conv2\.weight'):
        export_backbone(tmp_path / 'half.pth', tmp_path / 'out.pth')


def test_a_file_without_a_backbone(tmp_path):
    torch.save({'head.fc.weight': torch.ones(2, 2)}, tmp_path / 'head.pth')
    with pytest.raises(UserFileError, match='no backbone'):
        export_backbone(tmp_path / 'head.pth', tmp_path / 'out.pth')
