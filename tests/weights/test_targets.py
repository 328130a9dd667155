"""The table of docs/weights.md cell by cell: each network, exported, has the same logits in the library's own class."""

import pytest
import torch

from mmrm.utils.errors import UserFileError, UserValueError
from mmrm.weights import export_classifier, read_checkpoint
from mmrm.weights.export import facts_of
from mmrm.weights.provenance import read_weights
from mmrm.weights.targets import CELLS, check_target, make_target

from networks import classifier, logits, shake  # isort: skip

DEPTHS, CHANNELS = [1, 2, 1, 1], [8, 16, 24, 32]
SWIN = dict(embed_dims=8, depths=DEPTHS, num_heads=[1, 2, 4, 8])
NETWORKS = {
    'ResNet': (dict(type='ResNet', depth=18), 512),
    'ResNet with bottlenecks': (dict(type='ResNet', depth=50), 2048),
    'narrow ResNet': (dict(type='ResNet', depth=18, stem_channels=8, base_channels=8), 64),
    'ConvNeXt': (dict(type='ConvNeXt', arch=dict(depths=DEPTHS, channels=CHANNELS), gap_before_final_norm=False), 32),
    'ConvNeXt that pools first': (dict(type='ConvNeXt', arch=dict(depths=DEPTHS, channels=CHANNELS)), 32),
    'SwinTransformer': (dict(type='SwinTransformer', arch=SWIN, img_size=64, window_size=2), 64),
    'PVTv2': (dict(type='mmdet.PyramidVisionTransformerV2', embed_dims=64, num_layers=[1, 1, 1, 1]), 512),
    'timm ResNet': (dict(type='TIMMBackbone', model_name='resnet18'), 512),
    'timm ConvNeXt': (dict(type='TIMMBackbone', model_name='convnext_atto'), 320),
    'timm EfficientNet': (dict(type='TIMMBackbone', model_name='efficientnet_lite0'), 1280),
}


def train(name, folder, known=True):
    """A checkpoint of a network as RM trains it (and mmpretrain, where RM cannot), and the network."""
    if NETWORKS[name][0]['type'] == 'TIMMBackbone':
        pytest.importorskip('timm')
    torch.manual_seed(1)
    model = shake(network(name))
    file = folder / 'epoch_2.pth'
    meta = dict(epoch=2, cfg=f'model = dict(backbone={NETWORKS[name][0]!r})') if known else {}
    torch.save(dict(meta=meta, state_dict=model.state_dict()), file)
    return file, model


def network(name):
    pooled = 'pools first' in name
    return classifier(*NETWORKS[name], 'LinearClsHead' if pooled else 'RMConsistencyHead', pooled)


# Every cell of the table that says yes.
TABLE = {
    'ResNet': ('torchvision', 'timm', 'transformers'),
    'ResNet with bottlenecks': ('torchvision', 'transformers'),
    'narrow ResNet': ('transformers',),
    'ConvNeXt': ('timm',),
    'ConvNeXt that pools first': ('torchvision', 'timm', 'transformers'),
    'SwinTransformer': ('torchvision', 'timm', 'transformers'),
    'PVTv2': ('timm',),
    'timm ResNet': ('timm',),
    'timm ConvNeXt': ('timm',),
    'timm EfficientNet': ('timm',),
}
CELLS_OF_TABLE = [(layout, name) for name, layouts in TABLE.items() for layout in layouts]
SLOW = ('timm ResNet', 'timm EfficientNet', 'ResNet with bottlenecks')  # as their like


@pytest.mark.parametrize(
    'layout, name',
    [pytest.param(*cell, marks=pytest.mark.slow if cell[1] in SLOW else ()) for cell in CELLS_OF_TABLE],
    ids=lambda part: part,
)
def test_the_librarys_own_class_takes_every_tensor_and_has_the_same_logits(layout, name, tmp_path):
    library = pytest.importorskip(layout)
    file, ours = train(name, tmp_path)
    meta = export_classifier(file, tmp_path / 'out.safetensors', layout=layout)
    assert meta['logits_compared'] is True
    if layout == 'timm':  # the call that the note names
        theirs = eval(meta['loads_into'][:-1] + ', num_classes=5)', dict(timm=library))
    else:
        theirs = make_target(layout, facts_of(read_weights(file))).build()
    theirs.eval().load_state_dict(read_checkpoint(tmp_path / 'out.safetensors'), strict=True)
    images = torch.randn(2, 3, 64, 64)
    expected = logits(ours, images)
    with torch.no_grad():
        found = theirs(images)
    found = getattr(found, 'logits', found)
    assert expected.std() > 1e-2
    tolerance = 1e-3 if name == 'PVTv2' else 2e-5  # timm's PVTv2 has another epsilon in some norms
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * expected.abs().max().item())


def test_every_cell_of_the_code_is_in_the_table():
    kinds = {'PVTv2': 'mmdet.PyramidVisionTransformerV2'}
    tested = {(layout, kinds.get(name, NETWORKS[name][0]['type'])) for layout, name in CELLS_OF_TABLE}
    assert tested == set(CELLS)


@pytest.mark.parametrize('known', [True, False])
def test_a_convnext_of_rm_goes_to_timm_alone(known, tmp_path):
    """RM's ConvNeXt normalises before it pools: the others' class would load it and compute something else."""
    file, _ = train('ConvNeXt', tmp_path, known)
    for layout in ('torchvision', 'transformers'):
        with pytest.raises(UserValueError, match=r'pools first and would give other logits. Use --layout timm'):
            export_classifier(file, tmp_path / 'out.pth', layout=layout)
    assert not (tmp_path / 'out.pth').exists()


def test_other_logits_are_not_written(tmp_path):
    """The file claims to pool first, and its weights were trained so; the check does not rely on it."""
    pytest.importorskip('timm')

    file, _ = train('ConvNeXt', tmp_path)
    facts = facts_of(read_weights(file))
    wrong = make_target('timm', facts._replace(norm_first=False))
    with pytest.raises(UserFileError, match=r'has other logits in timm.create_model.*Nothing was written'):
        check_target('timm', wrong, facts)


def test_a_backbone_of_timm_must_be_known_by_name(tmp_path):
    pytest.importorskip('timm')
    file, _ = train('timm ConvNeXt', tmp_path, known=False)
    with pytest.raises(UserValueError, match='its name is unknown'):
        export_classifier(file, tmp_path / 'out.pth', layout='timm')


def test_a_stacked_head_is_exported_for_mmpretrain_only(tmp_path):
    narrow = NETWORKS['narrow ResNet']
    model = shake(classifier(*narrow, 'RMConsistencyHead', mid_channels=[8]))
    torch.save(model.state_dict(), tmp_path / 'run.pth')
    export_classifier(tmp_path / 'run.pth', tmp_path / 'out.pth')
    stock = classifier(*narrow, 'StackedLinearClsHead', mid_channels=[8])
    stock.load_state_dict(read_checkpoint(tmp_path / 'out.pth')['state_dict'], strict=True)
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(logits(stock, images), logits(model, images), rtol=0, atol=1e-6)
    with pytest.raises(UserFileError, match='no linear classifier fc'):
        export_classifier(tmp_path / 'run.pth', tmp_path / 'timm.pth', layout='timm')
