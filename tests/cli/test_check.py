"""A config is checked without training: what would go wrong after days, or silently, is said at once."""

import runpy
import subprocess
import sys

import pytest
import torch
import torchvision
from tiny_run import in_pure_python, write_run

import mmrm
from mmrm.cli.checks import check
from mmrm.demo.world import make_world
from mmrm.utils.errors import UserFileError

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
    """The environment of a user who has all there is."""
    monkeypatch.setenv('MMRM_DATA', str(world))
    monkeypatch.setenv('MMRM_BACKBONE', str(resnet50))


def test_a_cell_that_is_ready(ready, resnet50):
    report = check(CELL)
    text = '\n'.join(report.facts)
    assert report.problems == []
    for part in (
        'ATSS',
        str(resnet50),
        '318 tensors of the backbone equal',
        'classes     80',
        'SGD: lr 0.01',
        '12 epochs',
        '2 a process; the learning rate is meant for 16 in all',
        'instances_train2017.json',
    ):
        assert part in text


def test_the_option_replaces_the_weights(ready, tmp_path):
    torch.save(torchvision.models.resnet101().state_dict(), tmp_path / 'deeper.pth')
    report = check(CELL, {'model.init_cfg.checkpoint': str(tmp_path / 'deeper.pth')})
    assert len(report.problems) == 1
    assert 'looks like a ResNet-101' in report.problems[0] and 'backbone is a ResNet-50' in report.problems[0]


def test_all_problems_are_told_at_once(ready, monkeypatch, tmp_path):
    monkeypatch.setenv('MMRM_DATA', str(tmp_path))
    report = check(CELL, {'model.init_cfg.checkpoint': str(tmp_path / 'none.pth'), 'model.bbox_head.num_classes': 3})
    text = '\n'.join(report.problems)
    assert 'none.pth do not exist' in text
    assert 'have 80 classes, the model has model.bbox_head.num_classes=3' in text
    assert 'train data: not there' in text and 'annotations/instances_train2017.json' in text


def test_stuff_maps_are_looked_for_only_where_they_are_used(ready, world, tmp_path, monkeypatch):
    (tmp_path / 'coco').mkdir()
    for name in ('annotations', 'train2017', 'val2017'):
        (tmp_path / 'coco' / name).symlink_to(world / 'coco' / name)
    monkeypatch.setenv('MMRM_DATA', str(tmp_path))
    without = check('rm/htc-without-semantic_r50_fpn_1x_coco.py')
    assert without.problems == []
    with_maps = check('rm/htc_r50_fpn_1x_coco.py')
    assert len(with_maps.problems) == 1 and 'stuffthingmaps' in with_maps.problems[0]


def test_data_that_is_not_there_is_told_by_the_folder_its_class_reads(tmp_path, monkeypatch):
    monkeypatch.setenv('MMRM_DATA', str(tmp_path))
    for data, folder, part in (
        ('cifar10', 'cifar10/cifar-10-batches-py', 'test data'),
        ('cifar100', 'cifar100/cifar-100-python', 'train data'),
        ('in1k', 'imagenet/val', 'val data'),
    ):
        name = f'rm/resnet18_2xb64_{data}.py' if 'cifar' in data else 'rm/resnet50_8xb64_in1k.py'
        missing = f'{part}: not there: {tmp_path / folder}'
        assert missing in check(name).problems
        (tmp_path / folder).mkdir(parents=True)
        assert missing not in check(name).problems


@pytest.mark.parametrize('kind', ['RMCIFAR10', 'CIFAR10'])
def test_cifar_with_another_checksum_is_not_ready(kind, tmp_path, monkeypatch):
    monkeypatch.setenv('MMRM_DATA', str(tmp_path))
    options = {f'{part}_dataloader.dataset.type': kind for part in ('train', 'val', 'test')}
    if kind == 'CIFAR10':
        options.update({f'{part}_dataloader.dataset.download': False for part in ('train', 'val', 'test')})
    folder = tmp_path / 'cifar10/cifar-10-batches-py'
    folder.mkdir(parents=True)
    for name in (*(f'data_batch_{number}' for number in range(1, 6)), 'test_batch', 'batches.meta'):
        (folder / name).write_text('damaged')
    report = check('rm/resnet18_2xb64_cifar10.py', options)
    assert len(report.problems) == 1 and f'{folder} is not complete' in report.problems[0]
    assert kind == 'CIFAR10' or 'test_batch has another checksum' in report.problems[0]
    # What is right is right: the same bytes under sums of their own.
    monkeypatch.setattr('mmpretrain.datasets.CIFAR10._check_integrity', lambda self: True)
    monkeypatch.setattr('mmrm.datasets.cifar.find_faults', lambda folder, known: [])
    assert check('rm/resnet18_2xb64_cifar10.py', options).problems == []


def test_strict_weights_in_the_backbone_s_own_init_cfg_are_checked_too(ready, tmp_path, resnet50):
    config = tmp_path / 'mine.py'
    config.write_text(
        f"_base_ = ['{mmrm.utils.paths.shipped() / 'configs' / CELL}']\n"
        f'model = dict(init_cfg=None, backbone=dict(init_cfg=dict('
        f"_delete_=True, type='StrictPretrained', checkpoint='{resnet50}')))\n"
    )
    report = check(config)
    assert report.problems == [] and '318 tensors of the backbone equal' in '\n'.join(report.facts)
    assert 'none.pth do not exist' in check(config, {'model.backbone.init_cfg.checkpoint': 'none.pth'}).problems[0]


def test_the_lenient_way_is_a_problem(ready, tmp_path, resnet50):
    config = tmp_path / 'mine.py'
    config.write_text(
        f"_base_ = ['{mmrm.utils.paths.shipped() / 'configs' / CELL}']\n"
        f"model = dict(init_cfg=None, backbone=dict(init_cfg=dict(_delete_=True, type='Pretrained', "
        f"checkpoint='{resnet50}')))\n"
    )
    assert 'backbone loads leniently' in check(config).problems[0]
    # It is not loaded, let alone fetched.
    problems = check(config, {'model.backbone.init_cfg.checkpoint': 'https://nowhere.invalid/r.pth'}).problems
    assert len(problems) == 1 and 'backbone loads leniently' in problems[0]


def own(tmp_path, base, checkpoint):
    """A config of one's own on a base of mmdet's or mmseg's, as docs/downstream.md writes it."""
    config = tmp_path / 'own.py'
    config.write_text(
        f"_base_ = ['{base}']\ncustom_imports = dict(imports=['mmrm'], allow_failed_imports=False)\n"
        f"model = dict(init_cfg=dict(type='StrictPretrained', checkpoint='{checkpoint}'), "
        'backbone=dict(init_cfg=None))\n'
    )
    return config


def test_the_caffe_style_is_another_network(tmp_path, resnet50):
    base = 'mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py'
    config = own(tmp_path, base, resnet50)
    assert "the backbone has style='caffe'" in '\n'.join(check(config).problems)
    assert 'caffe' not in '\n'.join(check(config, {'model.backbone.style': 'pytorch'}).problems)


def test_what_mmseg_puts_into_the_backbone_is_named(tmp_path, resnet50):
    base = 'mmseg::fcn/fcn_r50-d8_4xb4-20k_voc12aug-512x512.py'
    problems = [each for each in check(own(tmp_path, base, resnet50)).problems if ' data' not in each]
    assert len(problems) == 1 and 'model.pretrained=None' in problems[0]


@pytest.mark.parametrize(
    'base',
    ['mmdet::panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py', 'mmseg::stdc/stdc1_4xb12-80k_cityscapes-512x1024.py'],
)
def test_heads_that_rightly_have_fewer_classes_are_no_problem(base, tmp_path):
    config = tmp_path / 'own.py'
    config.write_text(f"_base_ = ['{base}']\n")
    assert not any('classes' in problem for problem in check(config).problems)
    head = 'model.roi_head.bbox_head.num_classes' if 'panoptic' in base else 'model.decode_head.num_classes'
    assert f'{head}=7' in '\n'.join(check(config, {head: 7}).problems)


def test_data_at_an_address_is_left_alone(ready):
    options = {f'{part}_dataloader.dataset.data_root': 's3://bucket/coco/' for part in ('train', 'val', 'test')}
    assert check(CELL, options).problems == []


def test_a_config_in_pure_python_is_checked(tmp_path):
    report = check(in_pure_python(write_run(tmp_path, images=2, more='default_scope = None\n')))
    assert report.problems == [] and any('optimizer   SGD: lr 0.01' in fact for fact in report.facts)


def test_a_pretraining_starts_from_scratch(ready):
    report = check('rm/resnet18_2xb64_cifar100.py')
    assert any('from scratch' in fact for fact in report.facts)
    assert not any('model' in problem for problem in report.problems)


def test_an_empty_variable_is_no_path(ready, monkeypatch):
    monkeypatch.setenv('MMRM_BACKBONE', '')
    with pytest.raises(UserFileError, match='MMRM_BACKBONE'):
        check(CELL)


@pytest.fixture
def tool(monkeypatch, capsys):
    """Run a tool in this process: exit code, stdout, stderr."""

    def run(name, *args):
        capsys.readouterr()
        monkeypatch.setattr(sys, 'path', list(sys.path))
        monkeypatch.setattr(sys, 'argv', [f'{name}.py', *map(str, args)])
        try:
            runpy.run_path(str(mmrm.utils.paths.shipped() / 'tools' / f'{name}.py'), run_name='__main__')
            code = 0
        except SystemExit as left:
            code = left.code
        return (code, *capsys.readouterr())

    return run


def test_export_and_check(ready, resnet50, tool, tmp_path, monkeypatch):
    out = tmp_path / 'backbone.safetensors'
    code, told, _ = tool('export', 'backbone', resnet50, out)
    assert code == 0 and 'backbone, ResNet-50, sha256' in told
    code, _, error = tool('export', 'classifier', resnet50, out, '--layout', 'timm')
    assert code == 2 and error.startswith('error: ') and '--overwrite' in error
    code, _, error = tool('export', 'backbone', resnet50, out, '--layout', 'timm', '--overwrite')
    assert code == 2 and '--layout is for classifier, not for backbone' in error
    monkeypatch.setenv('MMRM_BACKBONE', str(out))
    code, told, _ = tool('check', CELL)
    assert code == 0 and told.splitlines()[-1] == 'ready' and 'backbone.safetensors' in told


def test_convert_command(tool, tmp_path):
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / 'theirs.pth')
    code, told, _ = tool('convert', tmp_path / 'theirs.pth', tmp_path / 'ours.pth')
    assert code == 0 and 'classifier, ResNet-18' in told
    code, _, error = tool('convert', tmp_path / 'none.pth', tmp_path / 'ours2.pth')
    assert code == 2 and 'do not exist' in error


def test_problems_are_exit_code_2_in_a_process_of_its_own_from_any_folder(ready, resnet50, tmp_path):
    command = [
        sys.executable,
        str(mmrm.utils.paths.shipped() / 'tools' / 'check.py'),
        'rm/atss_pvtv2-b1_fpn_1x_coco.py',
        '--cfg-options',
        f'model.init_cfg.checkpoint={resnet50}',
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 2 and 'error: 1 problem(s)' in done.stderr and 'Traceback' not in done.stderr
    assert 'looks like a ResNet-50' in done.stderr and 'backbone is a PVTv2-B1' in done.stderr
