"""What would fail late, or make a result wrong in silence, is named before the first iteration, and by ``check``."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from helpers import classifier
from tiny_run import write_run

from mmrm.cli import check, train
from mmrm.engine.hooks.mixing import check_model_parts
from mmrm.utils.checkpoints import read_checkpoint
from mmrm.utils.errors import UserError

pytestmark = pytest.mark.usefixtures('environment')


def problems(config, **options) -> str:
    """What ``check`` finds."""
    return '\n'.join(check.check(config, options).problems)


# ----------------------------------------------------------------------------------------------------------- load_from
@pytest.fixture
def weights(trained, tmp_path):
    """A file with the trained weights, changed by a function of the state dict."""

    def write(change):
        state = read_checkpoint(trained[1] / 'epoch_2.pth')['state_dict']
        torch.save(dict(state_dict=change(dict(state))), tmp_path / 'weights.pth')
        return str(tmp_path / 'weights.pth')

    return write


@pytest.mark.parametrize(
    'change, named',
    [
        (lambda state: {f'net.{key}': value for key, value in state.items()}, 'backbone.conv1.weight'),
        (lambda state: {key: value for key, value in state.items() if 'layer4' not in key}, 'backbone.layer4.0'),
    ],
)
def test_weights_that_do_not_fill_the_model_are_refused_unless_a_part_is_asked_for(
    error, run, weights, capsys, change, named
):
    assert not problems(run[0], load_from=weights(lambda state: state))
    path = weights(change)
    argv = [str(run[0]), '--work-dir', str(run[1]), '--cfg-options', f'load_from={path}']
    for told in (error(train.main, *argv), problems(run[0], load_from=path)):
        assert 'load_from: checkpoint' in told and named in told and 'allow_partial=True' in told
    assert not list(run[1].glob('*.pth'))
    train.main([*argv, 'allow_partial=True', 'train_cfg.max_epochs=1'])
    told = capsys.readouterr().err
    assert (run[1] / 'epoch_1.pth').is_file() and 'Only what fits is loaded' in told and 'allow_partial:' not in told


# ---------------------------------------------------------------------------------------------------------- settings
@pytest.mark.parametrize(
    'key, near',
    [
        ('default_hooks.checkpoint.max_keep_ckpt', 'max_keep_ckpt is unknown; did you mean max_keep_ckpts?'),
        ('randomness.sed', 'randomness: sed is unknown; did you mean seed?'),
    ],
)
def test_a_setting_that_nothing_knows_is_named_by_check_which_builds_every_hook_and_before_training(
    error, run, key, near
):
    assert "'monitor'" in problems(run[0], custom_hooks=[dict(type='EarlyStoppingHook')])
    assert near in error(train.main, run[0], '--work-dir', run[1], '--cfg-options', f'{key}=3')
    assert near in problems(run[0], **{key: 3})


def test_sync_bn_in_the_hidden_layers_of_the_head_is_refused(tmp_path):
    """In one process, or on the CPU, mmengine makes BN of it."""
    more = "model['head'].update(mid_channels=[8], norm_cfg=dict(type='SyncBN'))\n"
    assert 'hidden layers have SyncBN' in problems(write_run(tmp_path, more=more))
    runner = SimpleNamespace(model=classifier(mid_channels=[8], norm_cfg=dict(type='SyncBN')), cfg={})
    with pytest.raises(UserError, match='hidden layers have SyncBN'):
        check_model_parts(runner)


# -------------------------------------------------------------------------------------------------------------- data
def test_an_empty_validation_set_is_named(error, tmp_path):
    config = write_run(tmp_path, more="val_dataloader['dataset'] = dict(dataset, ann_file='none.txt')\n")
    (tmp_path / 'data/none.txt').touch()
    told = error(train.main, config, '--work-dir', tmp_path / 'work')
    assert 'CustomDataset is empty' in told and 'none.txt' in told


@pytest.mark.parametrize('batch, images, fails', [(4, 13, True), (4, 14, False), (12, 13, True)])
def test_a_last_batch_of_one_image_on_a_map_of_one_cell_is_known_at_the_start(error, tmp_path, batch, images, fails):
    """Images of 32 x 32 leave a map of 1 x 1."""
    config, work = write_run(tmp_path, epochs=1, images=images), tmp_path / 'work'
    argv = (config, '--work-dir', work, '--cfg-options', f'train_dataloader.batch_size={batch}')
    if fails:
        assert 'the last batch of an epoch is one image (13 in' in error(train.main, *argv)
        argv = (*argv, 'train_dataloader.drop_last=True')
    train.main([str(word) for word in argv])
    assert (work / 'epoch_1.pth').is_file()


def test_a_resume_on_other_data_or_with_another_metric_is_refused(error, trained, tmp_path):
    config, work = trained[0], tmp_path / 'work'
    shutil.copytree(trained[1], work)
    assert json.loads((work / 'data.json').read_text())['train']['samples'] == 12
    argv = (config, '--work-dir', work, '--resume', '--cfg-options', 'train_cfg.max_epochs=3')
    told = error(train.main, *argv, 'train_dataloader.dataset.indices=10')
    assert 'train: 12 samples (hash ' in told and ' in the checkpoint, 10 samples (hash ' in told
    told = error(train.main, *argv, 'val_evaluator.thrs=0.5')
    assert "val_evaluator: {'type': 'Accuracy', 'topk': [1]} in the checkpoint" in told
    # The same pictures somewhere else are the same data; one with another label is not.
    moved = tmp_path / 'moved'
    shutil.copytree(config.parent / 'data', moved)
    (moved / 'class0/0.png').rename(moved / 'class1/0.png')
    places = [f'{part}_dataloader.dataset.data_root={moved}' for part in ('train', 'val')]
    assert 'train: 12 samples' in error(train.main, *argv, *places)
    (moved / 'class1/0.png').rename(moved / 'class0/0.png')
    train.main([str(word) for word in (*argv, *places)])
    data = read_checkpoint(work / 'epoch_3.pth')['meta']['mmrm_run']['data']
    assert data == json.loads((work / 'data.json').read_text()) and set(data) == {'train', 'val', 'val_evaluator'}


# ---------------------------------------------------------------------------------------------- a resume that differs
def resumed(trained, work, *options) -> str:
    """The log of a run that resumes for a third epoch."""
    shutil.copytree(trained[1], work)
    argv = (trained[0], '--work-dir', work, '--resume', '--cfg-options', 'train_cfg.max_epochs=3', *options)
    train.main([str(word) for word in argv])
    return max(work.glob('*/*.log'), key=lambda path: path.stat().st_mtime).read_text()


def test_resume_with_other_settings_logs_them_and_continues(trained, tmp_path):
    options = (
        'train_dataloader.batch_size=4',
        'optim_wrapper.optimizer.lr=0.7',
        'model.head.omega=0.1',
        'train_dataloader.num_workers=0',
        'default_hooks.logger.interval=2',
    )
    log = resumed(trained, tmp_path / 'work', *options)
    listed = log.partition('was trained with other settings')[2].partition('Training continues')[0]
    assert re.findall(r'^  (\S+: \S+ -> \S+)', listed, re.M) == [
        'model.head.omega: 0.5 -> 0.1',
        'train_dataloader.batch_size: 2 -> 4',
        'optim_wrapper.optimizer.lr: 0.01 -> 0.7',
    ]
    # What is said to have no effect has none, and the other settings have theirs: 12 images, 4 at a time.
    assert 'lr: 0.01 -> 0.7 (no effect' in listed
    steps = re.findall(r'Epoch\(train\) +\[3\]\[ *\d+/(\d+)\] +lr: (\S+)', log)
    assert steps and {(number, float(lr)) for number, lr in steps} == {('3', 0.01)}


def test_a_longer_run_with_the_same_settings_is_not_warned_of(trained, tmp_path):
    assert 'other settings' not in resumed(trained, tmp_path / 'work')
    remembered = read_checkpoint(tmp_path / 'work' / 'epoch_3.pth')['meta']['mmrm_run']
    assert remembered['processes'] == 1 and remembered['settings']['train_dataloader']['batch_size'] == 2
