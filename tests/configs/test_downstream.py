"""Every cell of the COCO and ADE20K tables: its recipe, its weights, a training step and an evaluation."""

import functools
import importlib
import re
from pathlib import Path

import pytest
import torch
import torchvision
from helpers import without_scope
from mmengine.config import Config

from mmrm.weights import find_checkpoint, read_checkpoint

from downstream import CONFIGS, build, cell, pretrain, small_world, train_and_validate  # isort: skip

COCO = ['atss', 'gfl', 'mask-rcnn', 'htc', 'htc-without-semantic']
ADE = ['pspnet', 'upernet']
BACKBONES = ['r50', 'pvtv2-b1']
REGULARISERS = ['baseline', 'cutmix', 'rm']


CELLS = [(network, backbone) for network in COCO + ADE for backbone in BACKBONES]


def name_of(network, backbone):
    return f'{network}_{backbone}_fpn_1x_coco' if network in COCO else f'{network}_{backbone}_8xb2-80k_ade20k-512x512'


NAMES = [name_of(*pair) for pair in CELLS]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for variable in ('MMRM_BACKBONE', 'MMRM_DATA'):
        monkeypatch.delenv(variable, raising=False)


@functools.lru_cache(None)
def read(network, backbone):
    """RM's cell in an environment without mmrm's variables."""
    return Config.fromfile(CONFIGS / 'rm' / f'{name_of(network, backbone)}.py')


# ---------------------------------------------------------------------------------------------------------- the recipes
def test_there_are_as_many_cells_as_in_the_tables():
    for regulariser in REGULARISERS:
        folder = CONFIGS / regulariser
        found = {file.stem for pattern in ('*coco.py', '*ade20k*.py') for file in folder.glob(pattern)}
        assert found == set(NAMES)


@pytest.mark.parametrize('regulariser', REGULARISERS)
@pytest.mark.parametrize('name', NAMES)
def test_siblings_differ_in_their_weights_only(name, regulariser):
    run = f'work_dirs/{regulariser}/' + ('resnet50_8xb64_in1k' if 'r50' in name else 'pvtv2-b1_8xb64_in1k')
    torchvision = regulariser == 'baseline' and 'r50' in name and 'coco' in name
    weights = 'torchvision://resnet50' if torchvision else run
    text = (CONFIGS / regulariser / f'{name}.py').read_text()
    assert [line for line in text.splitlines() if not line.startswith('#')] == [
        f"_base_ = ['../_base_/downstream/{name}.py']",
        "model = dict(init_cfg=dict(checkpoint='{{$MMRM_BACKBONE:" + weights + "}}'))",
    ]


@pytest.mark.parametrize('network, backbone', CELLS)
def test_settings_of_every_cell(network, backbone):
    config = read(network, backbone)
    assert config.custom_imports == dict(imports=['mmrm.models'], allow_failed_imports=False)
    assert config.model.init_cfg.type == 'StrictPretrained'
    assert config.model.backbone.init_cfg is None and config.model.get('pretrained') is None
    assert config.train_dataloader.batch_size == 2 and config.auto_scale_lr.base_batch_size == 16
    with_masks = network in COCO and network not in ('atss', 'gfl')
    optimizer = dict(type='AdamW', lr=2e-4 if with_masks else 1e-4, weight_decay=1e-4)
    if network in COCO and backbone == 'r50':
        optimizer = dict(type='SGD', lr=0.02 if with_masks else 0.01, momentum=0.9, weight_decay=1e-4)
    assert dict(config.optim_wrapper.optimizer) == optimizer


@pytest.mark.parametrize('network', COCO)
def test_detectors_on_resnet50_are_mmdets_own(network):
    """But for the backbone's weights, the place of the data, the import of mmrm and AP by class in the log."""
    config = read(network, 'r50').to_dict()
    for part in ('val_evaluator', 'test_evaluator'):
        assert config[part].pop('classwise') is True
    folder = {'mask-rcnn': 'mask_rcnn', 'htc-without-semantic': 'htc'}.get(network, network)
    shipped = Path(importlib.import_module('mmdet').__file__).parent / '.mim' / 'configs'
    stock = Config.fromfile(shipped / folder / f'{network}_r50_fpn_1x_coco.py').to_dict()
    for one in (config, stock):
        one['model']['backbone'].pop('init_cfg')
        one['model'].pop('init_cfg', None)
        one.pop('custom_imports', None)
    assert without_scope(config) == without_scope(stock)
    assert config['model']['backbone']['frozen_stages'] == 1 and config['model']['backbone']['norm_eval'] is True
    assert config['model']['backbone']['style'] == 'pytorch'


@pytest.mark.parametrize('network', COCO)
def test_detectors_on_pvt_differ_in_backbone_and_optimizer_only(network):
    stock, config = (read(network, backbone).to_dict() for backbone in BACKBONES)
    net = config['model']['backbone']
    found = net['type'], net['embed_dims'], net['num_layers'], config['model']['neck'].pop('in_channels')
    assert found == ('mmdet.PyramidVisionTransformerV2', 64, [2, 2, 2, 2], [64, 128, 320, 512])
    stock['model']['neck'].pop('in_channels')
    assert config.pop('pvtv2_b1') == net
    for one in (config, stock):
        one['optim_wrapper'].pop('optimizer')
        for part in ('backbone', 'init_cfg'):
            one['model'].pop(part)
    assert without_scope(config) == without_scope(stock)


@pytest.mark.parametrize('backbone', BACKBONES)
@pytest.mark.parametrize('network', ADE)
def test_segmentors_follow_the_authors_logs(network, backbone):
    config = read(network, backbone)
    assert [dict(schedule) for schedule in config.param_scheduler] == [
        dict(type='PolyLR', power=0.9, eta_min=0, begin=0, end=80000, by_epoch=False)
    ]
    assert config.train_cfg.max_iters == 80000
    assert config.model.decode_head.norm_cfg.type == 'SyncBN'
    assert config.model.decode_head.num_classes == config.model.auxiliary_head.num_classes == 150
    crop = next(step for step in config.train_dataloader.dataset.pipeline if step['type'] == 'RandomCrop')
    assert crop['crop_size'] == config.model.data_preprocessor.size == (512, 512)
    for evaluator in (config.val_evaluator, config.test_evaluator):
        assert (evaluator.type, evaluator.iou_metrics) == ('ClasswiseIoUMetric', ['mIoU'])
    assert config.model.auxiliary_head.in_index == 2
    if backbone == 'pvtv2-b1':
        assert config.model.auxiliary_head.in_channels == 320
        assert config.model.decode_head.in_channels == (512 if network == 'pspnet' else [64, 128, 320, 512])
    else:
        assert (config.model.backbone.type, config.model.backbone.norm_cfg.type) == ('ResNet', 'SyncBN')
        dilated = network == 'pspnet'
        assert tuple(config.model.backbone.dilations) == ((1, 1, 2, 4) if dilated else (1, 1, 1, 1))
        assert config.model.backbone.contract_dilation is True


# ------------------------------------------------------------------------------------------------------- the variables
@pytest.mark.parametrize('name', [name_of('htc', 'r50'), name_of('pspnet', 'pvtv2-b1')])
def test_two_variables_move_all_data_and_choose_the_weights(name, monkeypatch):
    monkeypatch.setenv('MMRM_DATA', '/elsewhere')
    monkeypatch.setenv('MMRM_BACKBONE', 'my/run')
    config = Config.fromfile(CONFIGS / 'rm' / f'{name}.py')
    assert not re.search(r'(?<!elsewhere/)\b(data/)?(coco|ade)/', str(config.to_dict()))
    for part in ('train', 'val', 'test'):
        assert config[f'{part}_dataloader'].dataset.data_root.startswith('/elsewhere/')
    assert config.model.init_cfg.checkpoint == 'my/run'


# ------------------------------------------------------------------------------------------------------------ training
@pytest.fixture(scope='module')
def world(tmp_path_factory):
    return small_world(tmp_path_factory.mktemp('data') / 'world')


@pytest.fixture(scope='module')
def pretrained(world, tmp_path_factory):
    """Real, if tiny, pretrainings with RM; each is made when it is first asked for."""
    return functools.lru_cache(None)(lambda network: pretrain(network, world, tmp_path_factory.mktemp(network)))


@pytest.mark.slow  # ATSS on ResNet-50 by default, too: tests/test_end_to_end.py
@pytest.mark.parametrize('network, backbone', CELLS)
def test_a_cell_trains_from_its_pretraining_and_is_evaluated(network, backbone, world, pretrained, tmp_path):
    run = pretrained('pvt' if backbone == 'pvtv2-b1' else 'r50')
    config = cell(CONFIGS / 'rm' / f'{name_of(network, backbone)}.py', world, run)
    # An untrained network is sure of nothing, and COCO's metric leaves no trace without a box.
    test_cfg = config.model.test_cfg.get('rcnn', config.model.test_cfg)
    test_cfg.update(score_thr=-1.0, max_per_img=5) if network in COCO else None
    runner, before = train_and_validate(config, tmp_path)

    weights = read_checkpoint(find_checkpoint(run))['state_dict']
    assert before.keys() == {key[len('backbone.') :] for key in weights if key.startswith('backbone.')}
    assert all(torch.equal(value, weights[f'backbone.{key}']) for key, value in before.items())

    after = runner.model.backbone.state_dict()
    assert any(not torch.equal(after[key], before[key]) for key in before), 'nothing was trained'
    loss = runner.message_hub.get_scalar('train/loss').current()
    assert torch.isfinite(torch.tensor(loss)) and loss > 0
    scalars = set(runner.message_hub.log_scalars)
    if network in ADE:
        assert {'val/mIoU', 'val/mAcc', 'val/aAcc'} <= scalars
        assert {f'val/IoU/{name}' for name in runner.val_dataloader.dataset.metainfo['classes']} <= scalars
    else:
        assert 'val/coco/bbox_mAP' in scalars
        assert {f'val/coco/{name}_precision' for name in runner.val_dataloader.dataset.metainfo['classes']} <= scalars
        assert ('val/coco/segm_mAP' in scalars) == (network not in ('atss', 'gfl'))


def test_detector_config_of_the_documentation(tmp_path):
    """docs/downstream.md gives a RetinaNet, which is in no shipped config."""
    page = Path(__file__).parents[2] / 'docs' / 'downstream.md'
    text = next(block for block in re.findall(r'```python\n(.*?)```', page.read_text(), re.S) if 'retinanet' in block)
    assert len(text.splitlines()) <= 10 and not any(CONFIGS.glob('*/retinanet*'))
    (tmp_path / 'retinanet_r50_fpn_1x_coco.py').write_text(text)
    weights = torchvision.models.resnet50().state_dict()
    torch.save(weights, tmp_path / 'resnet50.pth')
    config = Config.fromfile(tmp_path / 'retinanet_r50_fpn_1x_coco.py')
    config.model.init_cfg.checkpoint = str(tmp_path / 'resnet50.pth')
    model = build(config)
    model.init_weights()
    filled = model.backbone.state_dict()
    assert len(filled) == 318 and all(torch.equal(value, weights[key]) for key, value in filled.items())
