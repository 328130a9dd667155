"""A mistake of the user is one line and exit code 2, on the way into training and testing."""

import multiprocessing
import re

import pytest
import torch

from mmrm.cli import preflight, test, train
from mmrm.cli.check import check
from mmrm.utils import processes


@pytest.fixture(autouse=True)
def in_a_folder(environment, monkeypatch, tmp_path):
    monkeypatch.setattr(processes, '_warned', set())
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    'words, message',
    [
        ('--work-dri x', 'did you mean --work-dir'),
        ('--gpus=0', "--gpus: '0' is not a whole number"),
        ('--cfg-options lr', "--cfg-options: 'lr' is not of the form key=value"),
        ('--cfg-options model.x=[1,2', '--cfg-options: model.x='),
        ('--cfg-options train_cfg.max_epochs=0', 'max_epochs=0 must be an integer >= 1'),
        ('--device mps', 'found no mps device.* --device cpu'),
        ('--device tpu', "'tpu'"),
        ('--launcher pytorch', 'dist_train.sh'),
        ('--launcher slurm', 'SLURM_PROCID'),
        ('--amp float16', 'float16 needs a GPU'),
        ('--amp --cfg-options optim_wrapper.type=ApexOptimWrapper', '--amp replaces'),
    ],
)
def test_a_wrong_option_is_named(error, run, words, message):
    assert re.search(message, error(train.main, run[0], '--work-dir', run[1], *words.split()))
    assert not run[1].exists()


@pytest.mark.parametrize(
    'lines, message',
    [
        ('a = dict(\n\nb = 1', r'tiny.py cannot be read.*line \d+'),
        ('b = c', r'tiny.py cannot be read.*line \d+'),
        ("_base_ = 'nowhere.py'", 'tiny.py cannot be read.*nowhere.py'),
        ('train_dataloader = train_cfg = None', 'tiny.py has no train_dataloader, train_cfg'),
        ("optim_wrapper['optimizer']['type'] = 'SDG'", 'optim_wrapper.optimizer.type = .SDG. is not a known'),
        ("default_hooks['checkpoint']['filename_tmpl'] = 'rn_{}.pth'", "filename_tmpl = 'rn_{}.pth'.*'epoch_{}.pth'"),
        ("runner_type = 'FlexibleRunner'\nstrategy = dict(type='DDPStrategy')", 'FlexibleRunner.*not supported.*DDP'),
        ("runner_type = 'mmengine.FlexibleRunner'", 'FlexibleRunner.* is not supported'),
        ("model_wrapper_cfg = dict(type='MMFullyShardedDataParallel')", 'MMFullyShardedDataParallel is not supported'),
        ("optim_wrapper['use_fsdp'] = True", 'use_fsdp is not supported'),
    ],
)
def test_a_mistake_in_the_config_is_named_also_by_check(error, run, monkeypatch, lines, message):
    run[0].write_text(f'{run[0].read_text()}{lines}\n')
    assert re.search(message, error(train.main, run[0], '--work-dir', run[1])) and not run[1].exists()
    if 'tiny.py' not in message:
        monkeypatch.setattr('mmrm.cli.check._check_model', lambda cfg, report: None)
        assert any(re.search(message, problem) for problem in check(run[0]).problems)


@pytest.mark.parametrize(
    'name, value',
    [
        ('NNODES', '0'),
        ('NODE_RANK', '1'),
        ('NODE_RANK', 'a'),
        ('PORT', '70000'),
        ('MAX_RESTARTS', 'often'),
        ('MASTER_ADDR', 'no such host'),
        ('MASTER_ADDR', ''),
        ('MMRM_DEVICE', 'tpu'),
    ],
)
def test_a_wrong_environment_variable_is_named(error, run, monkeypatch, name, value):
    monkeypatch.setenv('NNODES', '2' if name == 'MASTER_ADDR' else '1')
    monkeypatch.setenv(name, value)
    assert name in error(train.main, run[0], '--gpus', 1)


def test_a_missing_config_is_named_with_those_of_a_similar_name(error, tmp_path):
    message = error(train.main, 'configs/rm/resnet50_8xb64_in1.py', '--work-dir', tmp_path / 'work')
    assert 'in1.py does not exist' in message and 'configs/rm/resnet50_8xb64_in1k.py' in message
    assert not (tmp_path / 'work').exists()


@pytest.mark.parametrize(
    'line, warning',
    [
        ('param_scheduler = dict(type="CosineAnnealingLR", T_max=100)', 'is set for 100 epochs, but train_cfg.max_'),
        ('param_scheduler = dict(type="RMCosineLR", epochs=300)', 'is set for 300 epochs'),
        ('param_scheduler = [dict(type="MultiStepLR", milestones=[1, 8])]', 'is set for 8 epochs'),
        ('param_scheduler = dict(type="CosineAnnealingLR", T_max=2)', None),
        ('param_scheduler = dict(type="LinearLR", start_factor=0.1, by_epoch=False, end=500)', None),
        ('param_scheduler = []', None),
        ("load_form = 'a.pth'", 'nothing reads load_form. Did you mean load_from?'),
    ],
)
def test_possibly_intended_settings_warn(run, capsys, line, warning):
    run[0].write_text(run[0].read_text() + f'{line}\n')
    preflight.prepare_train(train.parser().parse_args([str(run[0]), '--work-dir', str(run[1])]))
    told = capsys.readouterr().err
    assert warning in told if warning else not told


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
    assert told.count('4.png is empty (0 bytes). Using the next image instead; 1 skipped so far.') == 1
    (tmp_path / 'again').mkdir()
    (tmp_path / 'whole' / 'epoch_1.pth').rename(tmp_path / 'again' / 'epoch_1.pth')
    train.main([str(run[0]), '--work-dir', 'again', '--resume', 'again/epoch_1.pth', *hooks])
    one, other = (torch.load(f'{name}/epoch_2.pth', weights_only=False)['state_dict'] for name in ('whole', 'again'))
    assert all(torch.equal(one[key], other[key]) for key in one)


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


def test_names_that_are_too_long_are_one_line(error, run):
    long = 'a' * 300
    for argv in ((f'{long}.py',), (run[0], '--work-dir', long), (run[0], '--resume', f'{long}.pth')):
        assert long in error(train.main, *argv)
