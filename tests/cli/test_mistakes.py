"""A mistake of the user is one line and exit code 2, on the way into training and testing."""

import multiprocessing

import pytest
import torch
from mmengine.device import utils as device_utils

from mmrm.cli import preflight, test, train
from mmrm.utils import processes


@pytest.fixture(autouse=True)
def in_a_folder(environment, monkeypatch, tmp_path):
    monkeypatch.setattr(processes, '_warned', set())
    monkeypatch.chdir(tmp_path)


# -------------------------------------------------------------------------------------------------------------- images
@pytest.mark.parametrize('workers', [0, 1])
def test_training_names_a_broken_image(error, run, tmp_path, workers):
    """Also where a data-loader worker meets it, and torch puts a traceback before the message."""
    broken = tmp_path / 'data' / 'class0' / '0.png'
    broken.write_bytes(broken.read_bytes()[:200])
    run[0].write_text(run[0].read_text().replace('CustomDataset', 'RMImageFolder'))
    told = error(train.main, run[0], '--work-dir', run[1], '--cfg-options', f'train_dataloader.num_workers={workers}')
    assert told.startswith(f'error: image {broken} is cut short: a PNG without its end.')


@pytest.mark.slow
def test_training_past_broken_images_is_resumed_exactly(run, tmp_path, capfd):
    (tmp_path / 'data' / 'class0' / '4.png').write_bytes(b'')
    text = run[0].read_text().replace('CustomDataset', 'RMImageFolder')
    run[0].write_text(text + 'train_dataloader["dataset"] = dict(dataset, skip_broken=True)\nval_dataloader = None\n')
    run[0].write_text(run[0].read_text() + 'val_cfg = val_evaluator = None\n')
    hooks = '--cfg-options', 'default_hooks.checkpoint.save_best=None', 'default_hooks.checkpoint.max_keep_ckpts=3'
    train.main([str(run[0]), '--work-dir', 'whole', *hooks])
    told = ''.join(capfd.readouterr())
    assert told.count('4.png is empty (0 bytes). The next one takes its place; 1 so far.') == 1
    (tmp_path / 'again').mkdir()
    (tmp_path / 'whole' / 'epoch_1.pth').rename(tmp_path / 'again' / 'epoch_1.pth')
    train.main([str(run[0]), '--work-dir', 'again', '--resume', 'again/epoch_1.pth', *hooks])
    one, other = (torch.load(f'{name}/epoch_2.pth', weights_only=False)['state_dict'] for name in ('whole', 'again'))
    assert all(torch.equal(one[key], other[key]) for key in one)


# ------------------------------------------------------------------------------------------------------------- schedule
def test_checkpoints_of_names_that_nothing_finds_again(error, run):
    run[0].write_text(run[0].read_text() + 'default_hooks = dict(checkpoint=dict(filename_tmpl="rn_{}.pth"))\n')
    told = error(train.main, run[0], '--work-dir', run[1])
    assert "filename_tmpl = 'rn_{}.pth'" in told and "'epoch_{}.pth'" in told


@pytest.mark.parametrize(
    'scheduler, length',
    [
        ('dict(type="CosineAnnealingLR", T_max=100)', 100),
        ('dict(type="RMCosineLR", epochs=300)', 300),
        ('[dict(type="LinearLR", end=5), dict(type="MultiStepLR", milestones=[1, 8])]', 8),
        ('dict(type="CosineAnnealingLR", T_max=2)', None),
        ('dict(type="LinearLR", start_factor=0.1, by_epoch=False, end=500)', None),
        ('[]', None),
    ],
)
def test_a_schedule_that_training_does_not_finish_is_a_warning(run, capsys, scheduler, length):
    run[0].write_text(run[0].read_text() + f'param_scheduler = {scheduler}\n')
    preflight.prepare_train(train.parser().parse_args([str(run[0]), '--work-dir', str(run[1])]))
    told = capsys.readouterr().err
    assert f'is meant for {length} epochs, and train_cfg.max_epochs is 2' in told if length else not told


# -------------------------------------------------------------------------------------------------------------- devices
def test_a_device_that_is_not_there_or_not_known(error, run, monkeypatch):
    told = error(train.main, run[0], '--work-dir', run[1], '--device', 'mps')
    assert 'found no mps device' in told and '--device cpu' in told
    assert "'tpu'" in error(train.main, run[0], '--device', 'tpu')
    monkeypatch.setenv('MMRM_DEVICE', 'tpu')
    assert 'MMRM_DEVICE=tpu' in error(train.main, run[0])
    monkeypatch.setattr(device_utils, 'DEVICE', 'mps')
    assert preflight.choose_device('mps') == 'mps'


# ----------------------------------------------------------------------------------------------------------- work dirs
def test_a_runs_folder_stands_for_its_best_checkpoint_and_to_resume_for_its_last(error, trained, tmp_path, capsys):
    config, work = trained
    best = next(work.glob('best_*.pth'))
    test.main([str(config), str(work), '--work-dir', str(tmp_path / 'a')])
    of_folder = capsys.readouterr().out
    test.main([str(config), str(best), '--work-dir', str(tmp_path / 'b')])
    of_file = capsys.readouterr().out
    assert preflight.check_checkpoint(work, to_resume=True).endswith('epoch_2.pth')
    (tmp_path / 'empty').mkdir()
    assert 'is a folder without a checkpoint' in error(test.main, config, tmp_path / 'empty')
    score = [line for line in of_folder.splitlines() if line.startswith('accuracy/top1')]
    assert score and score == [line for line in of_file.splitlines() if line.startswith('accuracy/top1')]
    assert best.name in of_folder


# --------------------------------------------------------------------------------------------------- names, and the end
def test_a_key_of_a_config_that_nothing_reads_is_warned_of_at_the_start(run, capsys):
    run[0].write_text(run[0].read_text() + "load_form = 'a.pth'\n")
    preflight.prepare_train(train.parser().parse_args([str(run[0]), '--work-dir', str(run[1])]))
    assert 'nothing reads load_form. Did you mean load_from?' in capsys.readouterr().err


def test_names_that_are_too_long_are_one_line(error, run):
    long = 'a' * 300
    for argv in ((f'{long}.py',), (run[0], '--work-dir', long), (run[0], '--resume', f'{long}.pth')):
        assert long in error(train.main, *argv)


def test_blanks_in_an_option_stay(run, tmp_path):
    moved = tmp_path / 'my own data'
    (tmp_path / 'data').rename(moved)
    options = [f'{part}_dataloader.dataset.data_root={moved}' for part in ('train', 'val')]
    argv = [str(run[0]), '--work-dir', str(run[1]), '--cfg-options', *options, 'custom_hooks.0.x=[1, 2]']
    cfg = preflight.prepare_train(train.parser().parse_args(argv))
    assert cfg.train_dataloader.dataset.data_root == str(moved) and cfg.custom_hooks[0].x == [1, 2]


def test_a_resume_of_a_finished_run_says_so(trained, capsys):
    argv = [str(trained[0]), '--work-dir', str(trained[1]), '--resume']
    preflight.prepare_train(train.parser().parse_args(argv))
    told = capsys.readouterr().out
    assert 'epoch_2.pth is the last checkpoint of a finished run' in told and 'train_cfg.max_epochs=4' in told
    preflight.prepare_train(train.parser().parse_args([*argv, '--cfg-options', 'train_cfg.max_epochs=3']))
    assert 'finished' not in capsys.readouterr().out


def test_the_workers_of_a_test_have_ended_before_it_exits(trained, tmp_path, monkeypatch):
    alive, before = [], multiprocessing.active_children()  # of other tests
    monkeypatch.setattr(test, 'leave', lambda: alive.extend({*multiprocessing.active_children()} - {*before}))
    options = ('test_dataloader.num_workers=1', 'test_dataloader.persistent_workers=True')
    test.main([str(trained[0]), str(trained[1]), '--work-dir', str(tmp_path), '--cfg-options', *options])
    assert not alive
