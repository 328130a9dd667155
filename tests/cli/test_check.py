"""A config is checked without training: what would fail after days, or silently give a wrong result, is listed."""

import pytest
import torch
import torchvision
from tiny_run import in_pure_python, write_run
from world import make_world

from mmrm import cli
from mmrm.cli.check import check
from mmrm.utils.config import read_config
from mmrm.utils.errors import UserFileError
from mmrm.utils.options import misspelt_keys
from mmrm.utils.paths import find_config, shipped

from networks import shake  # isort: skip

CELL = 'rm/atss_r50_fpn_1x_coco.py'


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp('data') / 'world', classification=(8, 8), scenes=(2, 2))


@pytest.fixture(scope='module')
def resnet50(tmp_path_factory):
    file = tmp_path_factory.mktemp('weights') / 'resnet50.pth'
    torch.save(shake(torchvision.models.resnet50()).state_dict(), file)
    return file


@pytest.fixture
def ready(world, resnet50, monkeypatch):
    """The environment of a user who has data and weights."""
    monkeypatch.setenv('MMRM_DATA', str(world))
    monkeypatch.setenv('MMRM_BACKBONE', str(resnet50))


def write_config(tmp_path, base, model):
    config = tmp_path / 'own.py'
    imports = "custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)"
    config.write_text(f"_base_ = ['{base}']\n{imports}\nmodel = dict({model})\n")
    return config


# ----------------------------------------------------------------------------------------------------------- the model
def test_check_ends_with_ready(ready, resnet50, capsys):
    cli.main(['check', CELL])
    out = capsys.readouterr().out
    assert out.endswith(f'ready\nnext        mmrm train {CELL} --device cpu\n')
    for part in (
        'ATSS',
        str(resnet50),
        '318 tensors of the backbone equal',
        'classes     80',
        'instances_train2017.json',
    ):
        assert part in out


def test_weights_of_another_network_are_exit_code_2(ready, resnet50, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(['check', 'rm/atss_pvtv2-b1_fpn_1x_coco.py', '--cfg-options', f'model.init_cfg.checkpoint={resnet50}'])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and 'error: 1 problem(s)' in error
    assert 'looks like ResNet(depth=50' in error and 'backbone is mmdet.PyramidVisionTransformerV2(' in error


def test_all_problems_are_listed_at_once(ready, monkeypatch, tmp_path):
    monkeypatch.setenv('MMRM_DATA', str(tmp_path))
    report = check(CELL, {'model.init_cfg.checkpoint': str(tmp_path / 'none.pth'), 'model.bbox_head.num_classes': 3})
    text = '\n'.join(report.problems)
    assert 'none.pth do not exist' in text
    assert 'has 80 classes, the model has model.bbox_head.num_classes=3' in text
    assert 'train data: missing:' in text and 'annotations/instances_train2017.json' in text


@pytest.mark.parametrize('kind', ['StrictPretrained', 'Pretrained'])
def test_weights_in_the_backbones_own_init_cfg_are_loaded_strictly_or_a_problem(ready, tmp_path, resnet50, kind):
    model = f"init_cfg=None, backbone=dict(init_cfg=dict(_delete_=True, type='{kind}', checkpoint='{resnet50}'))"
    config = write_config(tmp_path, shipped() / 'configs' / CELL, model)
    report = check(config)
    if kind == 'StrictPretrained':
        assert report.problems == [] and '318 tensors of the backbone equal' in '\n'.join(report.facts)
        assert 'none.pth do not exist' in check(config, {'model.backbone.init_cfg.checkpoint': 'none.pth'}).problems[0]
    else:  # it is not loaded, let alone fetched
        assert 'backbone loads leniently' in report.problems[0]
        address = {'model.backbone.init_cfg.checkpoint': 'https://nowhere.invalid/r.pth'}
        assert check(config, address).problems == report.problems


@pytest.mark.parametrize(
    'base, message',
    [
        ('mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', "the backbone has style='caffe'"),
        ('mmseg::fcn/fcn_r50-d8_4xb4-20k_voc12aug-512x512.py', 'model.pretrained=None'),
    ],
)
def test_bases_that_need_another_setting_for_strict_weights(tmp_path, resnet50, base, message):
    """Configs of one's own, as docs/downstream.md writes them."""
    model = f"init_cfg=dict(type='StrictPretrained', checkpoint='{resnet50}'), backbone=dict(init_cfg=None)"
    problems = [each for each in check(write_config(tmp_path, base, model)).problems if ' data: ' not in each]
    assert len(problems) == 1 and message in problems[0]


@pytest.mark.parametrize(
    'base, head',
    [
        ('mmdet::panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py', 'model.roi_head.bbox_head.num_classes'),
        ('mmseg::stdc/stdc1_4xb12-80k_cityscapes-512x1024.py', 'model.decode_head.num_classes'),
    ],
)
def test_heads_that_rightly_have_fewer_classes_are_not_a_problem(base, head, tmp_path):
    config = write_config(tmp_path, base, '')
    assert not any('classes' in problem for problem in check(config).problems)
    assert f'{head}=7' in '\n'.join(check(config, {head: 7}).problems)


def test_a_config_in_pure_python_is_checked(tmp_path):
    report = check(in_pure_python(write_run(tmp_path, images=2, more='default_scope = None\n')))
    assert report.problems == [] and any('from scratch' in fact for fact in report.facts)


def test_an_empty_variable_is_not_a_path(ready, monkeypatch):
    monkeypatch.setenv('MMRM_BACKBONE', '')
    with pytest.raises(UserFileError, match='MMRM_BACKBONE'):
        check(CELL)


@pytest.mark.parametrize(
    'line, problem',
    [
        ("load_form = 'a.pth'", 'nothing reads load_form: did you mean load_from?'),
        ('custom_hook = [1]', 'nothing reads custom_hook: did you mean custom_hooks?'),
        ('param_schedulers = []', 'nothing reads param_schedulers: did you mean param_scheduler?'),
        ('loader = test_pipeline = classes = train = val_evaluator_small = 1', None),
    ],
)
def test_settings_that_nothing_reads_are_problems(tmp_path, line, problem):
    problems = check(write_run(tmp_path, images=2, more=f'{line}\n')).problems
    assert problems == ([problem] if problem else [])


@pytest.mark.parametrize(
    'name',
    [
        'mmdet::htc/htc_r50_fpn_1x_coco.py',
        'mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py',
        'mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py',
        'rm/resnet50_8xb64_in1k.py',
    ],
)
def test_configs_of_the_toolboxes_have_no_misspelt_key(name):
    assert list(misspelt_keys(read_config(find_config(name)))) == []


# ------------------------------------------------------------------------------------------------------------ the data
def test_files_of_a_folder_that_are_not_read_are_counted_by_their_ending(tmp_path, without_model):
    config = write_run(tmp_path, images=4)
    folder = tmp_path / 'data' / 'class0'
    for index in range(3):
        (folder / f'{index}.webp').write_bytes(b'')
    (folder / 'notes.txt').touch()
    report = check(config, images=True)
    names = 'class0/0.webp, class0/1.webp, class0/2.webp'
    assert report.problems == [f'{tmp_path}/data: CustomDataset skips 3 .webp files: {names}']
    assert any('skips 1 .txt files' in fact for fact in report.facts)
    config.write_text(config.read_text().replace('CustomDataset', 'RMImageFolder'))
    assert not any('skips' in problem for problem in check(config, images=True).problems)


@pytest.fixture
def without_model(monkeypatch):
    """Building a detector takes seconds, and its data does not depend on it."""
    monkeypatch.setattr('mmrm.cli.check._check_model', lambda cfg, report: None)


def test_stuff_maps_are_needed_only_where_they_are_used(ready, without_model, world, tmp_path, monkeypatch):
    (tmp_path / 'coco').mkdir()
    for name in ('annotations', 'train2017', 'val2017'):
        (tmp_path / 'coco' / name).symlink_to(world / 'coco' / name)
    monkeypatch.setenv('MMRM_DATA', str(tmp_path))
    assert check('rm/htc-without-semantic_r50_fpn_1x_coco.py').problems == []
    with_maps = check('rm/htc_r50_fpn_1x_coco.py')
    assert len(with_maps.problems) == 1 and 'stuffthingmaps' in with_maps.problems[0]


@pytest.mark.parametrize(
    'config, folder, part',
    [
        ('resnet18_2xb64_cifar10', 'cifar10/cifar-10-batches-py', 'test'),
        ('resnet18_2xb64_cifar100', 'cifar100/cifar-100-python', 'train'),
        ('resnet50_8xb64_in1k', 'imagenet/val', 'val'),
    ],
)
def test_missing_data_is_named_by_the_folder_that_its_class_reads(
    tmp_path, without_model, monkeypatch, config, folder, part
):
    monkeypatch.setenv('MMRM_DATA', str(tmp_path))
    missing = f'{part} data: missing: {tmp_path / folder}'
    assert missing in check(f'rm/{config}.py').problems
    (tmp_path / folder).mkdir(parents=True)
    assert missing not in check(f'rm/{config}.py').problems


def test_cifar_with_another_checksum_is_not_ready(without_model, tmp_path, monkeypatch):
    monkeypatch.setenv('MMRM_DATA', str(tmp_path))
    folder = tmp_path / 'cifar10/cifar-10-batches-py'
    folder.mkdir(parents=True)
    for name in (*(f'data_batch_{number}' for number in range(1, 6)), 'test_batch', 'batches.meta'):
        (folder / name).write_text('damaged')
    problems = check('rm/resnet18_2xb64_cifar10.py', images=True).problems
    assert f'{folder} is not complete: ' in problems[0] and 'test_batch has another checksum' in problems[0]


def test_data_at_an_address_is_not_checked(ready, without_model):
    options = {f'{part}_dataloader.dataset.data_root': 's3://bucket/coco/' for part in ('train', 'val', 'test')}
    assert check(CELL, options).problems == []
