"""The main job as a user does it: pretrain with RM, export, fine-tune a detector, evaluate, resume.

Networks and recipes are the shipped ones, the images few and small. Segmentors: tests/configs/test_downstream.py.
"""

import importlib
import json

import pytest
import torch
from downstream import CONFIGS, small_world, write_pretraining

from mmrm.weights import find_checkpoint, read_checkpoint


def tool(name, *args, cwd, **env):
    """Run a command from a folder that is not the checkout's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        for key, value in dict(MMRM_DEVICE='cpu', **env).items():
            patch.setenv(key, value)
        importlib.import_module(f'mmrm.cli.{name}').main([str(each) for each in args])


@pytest.fixture(scope='module')
def job(tmp_path_factory):
    """Data in the layout of the documentation, a pretraining, and its exported backbone."""
    root = tmp_path_factory.mktemp('job')
    world = small_world(root / 'world')
    (root / 'data').mkdir()
    (root / 'data' / 'coco').symlink_to(world / 'coco')
    config = write_pretraining('r50', world, root / 'pretraining.py', epochs=1)
    tool('train', config, '--work-dir', root / 'pretraining', cwd=root)
    tool('export', 'backbone', root / 'pretraining', root / 'backbone.pth', cwd=root)
    return root


NAME = 'atss_r50_fpn_1x_coco'
OPTIONS = [
    'train_dataloader.dataset.pipeline.2.scale=(96,96)',
    'train_cfg.max_epochs=1',
    'model.test_cfg.score_thr=-1.0',
    'model.test_cfg.max_per_img=10',
    *(f'{part}_dataloader.num_workers=0' for part in ('train', 'val', 'test')),
    *(f'{part}_dataloader.dataset.pipeline.1.scale=(96,96)' for part in ('val', 'test')),
]


def test_pretrained_weights_reach_the_first_step_and_the_result_is_evaluated(job):
    config, work_dir = job / f'{NAME}.py', job / NAME
    config.write_text(
        f"_base_ = ['{CONFIGS / 'rm' / NAME}.py']\n"
        "custom_imports = dict(imports=['mmrm.models', 'downstream'], allow_failed_imports=False)\n"
        "custom_hooks = [dict(type='RememberBackbone')]\n"
    )
    env = dict(cwd=job, MMRM_DATA='data', MMRM_BACKBONE='backbone.pth')
    options = ['--cfg-options', *OPTIONS]
    tool('train', config, '--work-dir', work_dir, *options, **env)
    (log,) = work_dir.glob('*/*.log')
    assert log.read_text().count('StrictPretrained: backbone <- ') == 1

    pretrained = read_checkpoint(find_checkpoint(job / 'pretraining'))['state_dict']
    first = read_checkpoint(work_dir / 'first.pth')
    assert len(first) == 318
    assert all(torch.equal(value, pretrained[f'backbone.{key}']) for key, value in first.items())
    trained = read_checkpoint(work_dir / 'epoch_1.pth')['state_dict']
    assert any(not torch.equal(trained[f'backbone.{key}'], value) for key, value in first.items())

    # Testing needs the trained file only.
    env['MMRM_BACKBONE'] = 'gone.pth'
    out = job / 'found.json'
    tool('test', config, work_dir / 'epoch_1.pth', '--out', out, '--work-dir', work_dir / 'test', *options, **env)
    found = json.loads(out.read_text())
    assert 0 <= found['coco/bbox_mAP'] <= found['coco/bbox_mAP_50'] <= 100

    # So does resuming: the file that the run started from may be gone.
    tool('train', config, '--work-dir', work_dir, '--resume', *options, **env)
