"""The launchers in one process: options, checks before a run, messages, and a run on a disk that fills up."""

import errno
import json
import os
import pickle
import re
import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.device import utils as device_utils
from mmengine.fileio import LocalBackend
from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from tiny_run import in_pure_python, write_run

from mmrm import weights
from mmrm.cli import preflight, test, train
from mmrm.datasets.locate import find_data
from mmrm.engine import launch
from mmrm.engine.runner import Runner
from mmrm.utils import files, paths
from mmrm.utils.config import datasets
from mmrm.utils.errors import UserError, cli

pytestmark = pytest.mark.usefixtures('environment')


def args_of(config, *more):
    return train.parser().parse_args([str(config), *map(str, more)])


def fit(config, work, *more):
    train.main([str(config), '--work-dir', str(work), *map(str, more)])


def content(folder: Path) -> dict:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob('*')) if path.is_file()}


# --------------------------------------------------------------------------------------------------------- the console
def test_the_console_has_few_lines_before_the_first_loss_and_the_result_last(run, capsys):
    fit(*run, '--cfg-options', 'train_cfg.max_epochs=1')
    before, _, after = capsys.readouterr().out.partition('  loss: ')
    assert before.count('\n') <= 10 and re.search(r'^data +12 training samples, 2 per process', before, re.M)
    assert ' eta: ' in before  # the line of that loss
    best = run[1] / 'best_accuracy_top1_epoch_1.pth'
    result, weights, following = after.splitlines()[-3:]
    (score,) = re.fullmatch(r'result +accuracy/top1 ([\d.]+) \(last validation\)', result).groups()
    assert weights.split(maxsplit=1) == ['weights', f'{best} (best validation, {score})']
    assert following.split()[:4] == ['next', 'mmrm', 'test', str(run[0])]
    (log,) = run[1].glob('*/*.log')
    assert all(words in log.read_text() for words in ('System environment', 'Config:', 'Hooks will be executed'))


# ------------------------------------------------------------------------------------------------ devices, processes
def test_gpus_are_counted_and_the_cpu_is_used_only_if_it_is_asked_for(error, run, monkeypatch, started):
    monkeypatch.delenv('MMRM_DEVICE')
    monkeypatch.setattr(device_utils, 'DEVICE', 'cpu')
    for more in ((), ('--gpus', 1)):
        message = error(train.main, run[0], *more, '--work-dir', run[1])
        assert '--device cpu' in message and 'MMRM_DEVICE=cpu' in message and not run[1].exists()
    monkeypatch.setattr(device_utils, 'DEVICE', 'cuda')
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    assert '3 processes' in error(train.main, run[0], '--gpus', 3)
    train.main([str(run[0]), '--gpus', '2', '--work-dir', str(run[1])])
    # Started by something else, each process looks for itself.
    for name, value in dict(LOCAL_WORLD_SIZE='3', RANK='0', WORLD_SIZE='0').items():
        monkeypatch.setenv(name, value)
    assert '3 processes' in error(train.main, run[0], '--launcher', 'pytorch') and len(started) == 1
    assert preflight.choose_device('cpu') == 'cpu' == device_utils.get_device()
    assert os.environ['CUDA_VISIBLE_DEVICES'] == ''


@pytest.fixture
def started(monkeypatch):
    """What the launcher would have started: (script, arguments, processes)."""
    calls = []
    monkeypatch.setattr(launch, 'run', lambda script, argv, processes, saves: calls.append((script, argv, processes)))
    return calls


def test_busy_port_matters_to_node_0_only(error, run, monkeypatch, started):
    with socket.socket() as other:
        other.bind(('', 0))
        other.listen()
        for name, value in dict(PORT=str(other.getsockname()[1]), NNODES='2', MASTER_ADDR='127.0.0.1').items():
            monkeypatch.setenv(name, value)
        message = error(train.main, run[0], '--gpus', 1, '--work-dir', run[1])
        assert f'PORT={os.environ["PORT"]} cannot be used' in message and not started and not run[1].exists()
        monkeypatch.setenv('NODE_RANK', '1')
        assert any('is_host=0' in option for option in launch.torchrun_options(1))
        train.main([str(run[0]), '--gpus', '1', '--work-dir', str(run[1])])
        monkeypatch.setenv('NNODES', '1')  # one node alone uses no fixed port
        monkeypatch.setenv('NODE_RANK', '0')
        train.main([str(run[0]), '--gpus', '1', '--work-dir', str(run[1])])
    assert len(started) == 2


def test_checks_run_in_the_launcher_and_the_options_are_passed_on_to_its_processes(run, started, monkeypatch):
    """Under another launcher, in the first process of each node."""
    seen = []
    for name in ('check_schedule', 'compare_classes', 'check_unused', 'check_work_dir'):
        monkeypatch.setattr(preflight, name, lambda *args, name=name: seen.append(name))
    monkeypatch.setenv('OMP_NUM_THREADS', '3')
    monkeypatch.delenv('MKL_NUM_THREADS')
    train.main([str(run[0]), '--gpus', '2', '--work-dir', str(run[1]), '--cfg-options', 'train_cfg.max_epochs=1'])
    assert len(seen) == 4
    assert os.environ['MKL_NUM_THREADS'] == '3'  # torch would prefer it to the user's own number
    ((script, argv, processes),) = started
    assert script.samefile(paths.shipped() / 'tools' / 'train.py') and processes == 2
    args = train.parser().parse_args(argv)
    assert (args.config, args.launcher, args.work_dir) == (str(run[0]), 'pytorch', str(run[1]))
    assert args.cfg_options == {'train_cfg.max_epochs': 1}
    for name, value in dict(RANK='0', WORLD_SIZE='2', TORCHELASTIC_RUN_ID='x', MMRM_STATUS='x').items():
        monkeypatch.setenv(name, value)
    rank = args_of(run[0], '--work-dir', run[1], '--launcher', 'pytorch')
    preflight.prepare_train(rank)
    assert len(seen) == 4
    monkeypatch.delenv('MMRM_STATUS')
    preflight.prepare_train(rank)
    assert len(seen) == 8
    monkeypatch.setenv('LOCAL_RANK', '1')
    preflight.prepare_train(rank)
    assert len(seen) == 8


# ------------------------------------------------------------------------------------------------------------ options
def test_options_reach_the_config(run, tmp_path):
    """Blanks in a path stay; a loader without workers does not keep them; data that is not read may be missing."""
    moved = tmp_path / 'my own data'
    (tmp_path / 'data').rename(moved)
    run[0].write_text(run[0].read_text() + 'train_dataloader.update(persistent_workers=True, prefetch_factor=2)\n')
    options = (
        'train_dataloader.batch_size=8',
        f'train_dataloader.dataset.data_root={moved}',
        'custom_hooks.0.x=[1, 2]',
    )
    argv = ('--work-dir', run[1], '--seed', 3, '--auto-scale-lr', '--no-validate', '--cfg-options', *options)
    cfg = preflight.prepare_train(args_of(run[0], *argv))
    assert cfg.randomness.seed == 3 and cfg.auto_scale_lr.enable and cfg.custom_hooks[0].x == [1, 2]
    assert cfg.val_cfg is cfg.val_dataloader is cfg.val_evaluator is None
    loader = cfg.train_dataloader
    assert loader.batch_size == 8 and loader.dataset.data_root == str(moved)
    assert not loader.persistent_workers and 'prefetch_factor' not in loader


def test_amp_is_bfloat16_where_the_device_has_it_and_float16_elsewhere(error, run, monkeypatch):
    monkeypatch.setattr(preflight, 'bfloat16_is_fast', lambda device: False)
    assert 'no kernels for bfloat16' in error(train.main, run[0], '--amp', '--work-dir', run[1])

    def wrapper(*options):
        return preflight.prepare_train(args_of(run[0], '--work-dir', run[1], '--amp', *options)).optim_wrapper

    monkeypatch.setattr(preflight, 'bfloat16_is_fast', lambda device: True)
    assert wrapper().type == 'BFloat16OptimWrapper'
    monkeypatch.delenv('MMRM_DEVICE')
    monkeypatch.setattr(device_utils, 'DEVICE', 'cuda')
    assert wrapper().type == wrapper('bfloat16').type == 'BFloat16OptimWrapper'
    assert wrapper('float16').loss_scale == 'dynamic'
    assert wrapper('--cfg-options', 'optim_wrapper.type=AmpOptimWrapper').type == 'AmpOptimWrapper'
    monkeypatch.setattr(preflight, 'bfloat16_is_fast', lambda device: False)
    assert (wrapper().type, wrapper().loss_scale) == ('AmpOptimWrapper', 'dynamic')


def test_a_run_with_amp_validates_and_saves_in_float32_and_is_resumed_in_its_precision(run, monkeypatch):
    from mmpretrain.models import ImageClassifier

    seen, predict = set(), ImageClassifier.predict
    monkeypatch.setattr(preflight, 'bfloat16_is_fast', lambda device: True)
    monkeypatch.setattr(
        ImageClassifier,
        'predict',
        lambda self, inputs, samples: seen.add(self.backbone(inputs)[-1].dtype) or predict(self, inputs, samples),
    )
    fit(*run, '--amp', '--cfg-options', 'train_cfg.max_epochs=1')
    saved = run[1] / 'epoch_1.pth'
    checkpoint = torch.load(saved, weights_only=True)
    momenta = [state['momentum_buffer'] for state in checkpoint['optimizer']['state'].values()]
    kept = [*checkpoint['state_dict'].values(), *momenta]
    assert seen == {value.dtype for value in kept if value.is_floating_point()} == {torch.float32}
    monkeypatch.delenv('MMRM_DEVICE')
    monkeypatch.setattr(device_utils, 'DEVICE', 'cuda')
    resume = args_of(run[0], '--work-dir', run[1], '--resume', '--amp')
    for kind in ('BFloat16OptimWrapper', 'AmpOptimWrapper'):
        checkpoint['meta']['mmrm_run']['settings']['optim_wrapper']['type'] = kind
        torch.save(checkpoint, saved)
        for fast in (True, False):
            monkeypatch.setattr(preflight, 'bfloat16_is_fast', lambda device, fast=fast: fast)
            assert preflight.prepare_train(resume).optim_wrapper.type == kind


def test_work_dir_is_the_option_then_the_config_then_the_table_cell(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, 'home', lambda: tmp_path)
    shipped = tmp_path / 'configs' / 'rm' / 'tiny.py'
    shipped.parent.mkdir(parents=True)
    shutil.copy(run[0], shipped)
    assert preflight.prepare_train(args_of(shipped)).work_dir == str(tmp_path / 'work_dirs/rm/tiny')
    assert preflight.prepare_train(args_of(shipped, '--seed', 2)).work_dir == str(tmp_path / 'work_dirs/rm/tiny/seed2')
    shipped.write_text(shipped.read_text() + 'work_dir = "own"\n')
    assert preflight.prepare_train(args_of(shipped)).work_dir == str(tmp_path / 'own')
    assert preflight.prepare_train(args_of(shipped, '--work-dir', 'here')).work_dir == str(tmp_path / 'here')


# --------------------------------------------------------------------------------------------------------------- data
def wrapped(dataset):
    inner = dict(type='ConcatDataset', datasets=[dataset, dict(dataset)])
    return dict(type='RepeatDataset', times=2, dataset=inner)


def test_relative_data_is_found_from_here_then_from_home(tmp_path, monkeypatch):
    here, home = tmp_path / 'here', tmp_path / 'home'
    for folder in (here / 'data/a', home / 'data/a', home / 'data/b', home / 'data/coco'):
        folder.mkdir(parents=True)
    (home / 'data/coco/val.json').write_text('{}')
    monkeypatch.chdir(here)
    monkeypatch.setattr(paths, 'home', lambda: home)
    cfg = Config(
        dict(
            train_dataloader=dict(dataset=wrapped(dict(type='CustomDataset', data_root='data/a'))),
            val_dataloader=dict(dataset=wrapped(dict(type='CustomDataset', data_root='data/b/'))),
            val_evaluator=[dict(type='CocoMetric', ann_file='data/coco/val.json')],
            default_scope='mmpretrain',
        )
    )
    find_data(cfg, ('train', 'val'))
    assert [dataset.data_root for dataset, _ in datasets(cfg.train_dataloader)] == ['data/a'] * 2
    assert [dataset.data_root for dataset, _ in datasets(cfg.val_dataloader)] == [str(home / 'data/b')] * 2
    assert cfg.val_evaluator[0].ann_file == str(home / 'data/coco/val.json')


def test_missing_data_is_named_with_its_field(error, run, tmp_path, monkeypatch):
    field = 'train_dataloader.dataset.data_root'
    message = error(train.main, run[0], '--cfg-options', f'{field}=data/nowhere')
    places = ' and '.join(sorted([os.getcwd(), str(tmp_path)]))
    assert f"{field} = 'data/nowhere' does not exist in {places}." in message
    monkeypatch.chdir(tmp_path)  # the home folder: one place to look in
    assert f'does not exist in {tmp_path}.' in error(train.main, run[0], '--cfg-options', f'{field}=data/nowhere')
    other = "dict(type='ConcatDataset', datasets=[dict(dataset, data_root='/nowhere')])"
    run[0].write_text(f"{run[0].read_text()}train_dataloader['dataset'] = {other}\n")
    assert "train_dataloader.dataset.datasets.0.data_root = '/nowhere'" in error(train.main, run[0])
    assert not run[1].exists()


def test_data_that_downloads_itself_may_be_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, 'home', lambda: tmp_path / 'home')
    dataset = dict(type='CIFAR10', data_root='data/cifar10', split='train')
    cfg = Config(dict(train_dataloader=dict(dataset=dataset), default_scope='mmpretrain'))
    find_data(cfg, ('train',))
    assert cfg.train_dataloader.dataset.data_root == str(tmp_path / 'home/data/cifar10')
    cfg = Config(dict(train_dataloader=dict(dataset=dict(dataset, download=False)), default_scope='mmpretrain'))
    with pytest.raises(UserError, match='data/cifar10'):
        find_data(cfg, ('train',))


# ------------------------------------------------------------------------------------------------------ config mistakes


def test_traceback_of_a_mistake_is_shown_on_demand_and_that_of_a_librarys_error_always(capsys, run, monkeypatch):
    with pytest.raises(KeyError, match='ResNett'):
        train.main([str(run[0]), '--work-dir', str(run[1]), '--cfg-options', 'model.backbone.type=ResNett'])
    run[0].write_text('a = b\n')
    for option, variable in (('--traceback', ''), ('--no-validate', '1')):
        monkeypatch.setenv('MMRM_TRACEBACK', variable)
        with pytest.raises(SystemExit):
            train.main([str(run[0]), option])
        assert 'Traceback' in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------- work dirs
def test_file_in_place_of_the_work_dir_stays(error, run):
    run[1].write_text('mine')
    assert 'is a file' in error(train.main, run[0], '--work-dir', run[1])
    assert 'Not a directory' in error(train.main, run[0], '--work-dir', run[1] / 'below')
    assert run[1].read_text() == 'mine'


needs_locks = pytest.mark.skipif(files.fcntl is None, reason='no file locks here')


@needs_locks
@pytest.mark.parametrize('options', [(), ('--resume',), ('--overwrite', '--gpus', '1')])
def test_a_second_run_in_a_work_dir_stops_and_names_the_first(error, trained, tmp_path, started, options):
    work = tmp_path / 'work'
    shutil.copytree(trained[1], work)
    with files.locked(work / files.RUN_LOCK):
        before = content(work)
        message = error(train.main, trained[0], '--work-dir', work, *options)
        assert f'work dir {work} is in use: process {os.getpid()} on {socket.gethostname()}, since' in message
        assert 'another --work-dir' in message and content(work) == before and not started


@needs_locks
def test_only_the_first_process_takes_the_lock(run, monkeypatch, started):
    run[1].mkdir()
    with files.locked(run[1] / files.RUN_LOCK):  # held by the first process, on another node
        for name, value in dict(NNODES='2', MASTER_ADDR='127.0.0.1', NODE_RANK='1').items():
            monkeypatch.setenv(name, value)
        train.main([str(run[0]), '--gpus', '1', '--work-dir', str(run[1])])
        for name, value in dict(RANK='1', LOCAL_RANK='0', WORLD_SIZE='2').items():
            monkeypatch.setenv(name, value)
        cfg = preflight.prepare_train(args_of(run[0], '--work-dir', run[1], '--launcher', 'pytorch'))
        with preflight.claimed(cfg, args_of(run[0], '--launcher', 'pytorch')):
            pass
        with pytest.raises(UserError, match='is in use'):  # NODE_RANK is of no concern to train.py alone
            preflight.prepare_train(args_of(run[0], '--work-dir', run[1]))


@pytest.mark.parametrize(
    'failing, named', [('fsync', 'No space left'), ('disk_usage', 'a checkpoint takes about 2 MiB')]
)
def test_full_disk_is_found_before_training(error, run, monkeypatch, failing, named):
    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if failing == 'fsync':
        monkeypatch.setattr(os, 'fsync', full)
    else:
        monkeypatch.setattr(shutil, 'disk_usage', lambda folder: SimpleNamespace(free=1 << 20))
    assert named in error(train.main, run[0], '--work-dir', run[1]) and not list(run[1].glob('*.pth'))


# --------------------------------------------------------------------------------------------------------- checkpoints
def test_write_error_in_mid_checkpoint_keeps_the_older_one(error, run, monkeypatch):
    """As a full disk does, with the half-written file that it leaves. Until then the run holds its lock."""
    put, seen = LocalBackend.put, []

    def put_half(self, data, path):
        if 'epoch_2' in str(path):
            seen.append(files.lock_holder(run[1] / files.RUN_LOCK))
            put(self, data[: len(data) // 2], path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(self, data, path)

    monkeypatch.setattr(LocalBackend, 'put', put_half)
    assert 'epoch_2.pth could not be written: No space left' in error(train.main, run[0], '--work-dir', run[1])
    assert preflight.latest_checkpoint(run[1]) == run[1] / 'epoch_1.pth'
    preflight.check_checkpoint(run[1] / 'epoch_1.pth', to_resume=True)
    assert sorted(path.name for path in run[1].glob('*.pth')) == ['best_accuracy_top1_epoch_1.pth', 'epoch_1.pth']
    assert not list(run[1].glob('.*.pth.*'))
    assert files.fcntl is None or seen[0].startswith(f'process {os.getpid()} on ')
    assert not (run[1] / files.RUN_LOCK).exists()


def test_checkpoints_of_a_run_are_replaced_on_demand_and_are_not_mistaken_for_the_new_ones(
    error, trained, tmp_path, monkeypatch
):
    config, work = trained[0], tmp_path / 'work'
    shutil.copytree(trained[1], work)
    before, old = content(work), {path.name: path.read_bytes() for path in work.glob('*.pth')}
    assert 'epoch_2.pth' in error(train.main, config, '--work-dir', work) and content(work) == before
    argv = [str(config), '--work-dir', str(work), '--overwrite', '--cfg-options', 'train_cfg.max_epochs=1']
    with monkeypatch.context() as patch:
        patch.setattr(Runner, 'train', lambda self: sys.exit(9))  # killed before its first checkpoint
        with pytest.raises(SystemExit):
            train.main(argv)
    (aside,) = work.glob('replaced-*')
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == old and len(old) == 3
    assert preflight.latest_checkpoint(work) is None and not list(work.glob('*.pth'))
    train.main(argv)
    assert sorted(path.name for path in work.glob('*.pth')) == ['best_accuracy_top1_epoch_1.pth', 'epoch_1.pth']
    assert preflight.latest_checkpoint(work) == work / 'epoch_1.pth'


def test_weights_of_the_run_that_is_replaced_can_be_the_start(trained, tmp_path):
    work = tmp_path / 'work'
    shutil.copytree(trained[1], work)
    runner = SimpleNamespace(cfg=Config(dict(work_dir=str(work))), work_dir=str(work), rank=0, timestamp='now')
    runner.logger = MMLogger.get_current_instance()
    runner._load_from = str(work / '..' / 'work' / 'epoch_1.pth')  # the same file by another name
    preflight.set_aside(runner)
    assert runner._load_from == str(work / 'replaced-now' / 'epoch_1.pth') and Path(runner._load_from).is_file()


def test_checkpoints_in_another_folder_and_its_lock_are_seen(error, trained, tmp_path):
    config, folder = trained[0], tmp_path / 'scratch' / 'work'
    shutil.copytree(trained[1], folder)
    before = content(folder)
    argv = ('--work-dir', tmp_path / 'work', '--cfg-options', f'default_hooks.checkpoint.out_dir={folder.parent}')
    assert f'{folder} holds checkpoints' in error(train.main, config, *argv) and content(folder) == before
    cfg = preflight.prepare_train(args_of(config, '--resume', *argv))
    assert cfg.resume and cfg.load_from == str(folder / 'epoch_2.pth')
    if files.fcntl is not None:
        with files.locked(folder / files.RUN_LOCK):
            assert f'work dir {folder} is in use' in error(train.main, config, *argv)


@pytest.mark.slow
def test_resume_in_another_folder_keeps_the_best_checkpoint_of_the_first(trained, tmp_path):
    old = tmp_path / 'old'
    shutil.copytree(trained[1], old)
    (best,) = old.glob('best_*.pth')
    checkpoint = torch.load(old / 'epoch_1.pth', weights_only=True)
    checkpoint['message_hub']['runtime_info'].update(best_score=-1.0, best_ckpt=str(best))
    torch.save(checkpoint, old / 'epoch_1.pth')
    train.main([str(trained[0]), '--work-dir', str(tmp_path / 'new'), '--resume', str(old / 'epoch_1.pth')])
    assert best.is_file() and len(list((tmp_path / 'new').glob('best_*.pth'))) == 1
    # Where no epoch is better there is none: the path of the first run's is not taken for its own.
    checkpoint['message_hub']['runtime_info'].update(best_score=1000.0)
    torch.save(checkpoint, old / 'epoch_1.pth')
    fit(
        trained[0],
        tmp_path / 'worse',
        '--resume',
        old / 'epoch_1.pth',
        '--cfg-options',
        "default_hooks.checkpoint.published_keys=['meta','state_dict']",
    )
    assert best.is_file() and not list((tmp_path / 'worse').glob('best_*.pth'))
    checkpoint['message_hub']['runtime_info'].update(best_score=-1.0)
    # In a copy the best one is the copy's, and a better one takes its place.
    copy = tmp_path / 'copy'
    shutil.copytree(old, copy)
    (copy / best.name).rename(copy / 'best_accuracy_top1_epoch_0.pth')
    checkpoint['message_hub']['runtime_info']['best_ckpt'] = str(old / 'best_accuracy_top1_epoch_0.pth')
    torch.save(checkpoint, copy / 'epoch_1.pth')
    train.main([str(trained[0]), '--work-dir', str(copy), '--resume', str(copy / 'epoch_1.pth')])
    assert best.is_file() and [path.name for path in copy.glob('best_*.pth')] == ['best_accuracy_top1_epoch_2.pth']


def test_a_resume_does_not_ask_for_the_weights_that_the_run_started_from():
    def part(init_cfg=None):
        return BaseModule(init_cfg)

    model = part(dict(type='StrictPretrained', checkpoint='gone.pth'))
    model.backbone = part(dict(type='Pretrained', checkpoint='/gone/r50.pth'))
    model.head = part([dict(type='Normal', layer='Linear', std=0.01), dict(type='Pretrained', checkpoint='gone.pth')])
    model.head.fc = torch.nn.Linear(4, 4)
    preflight.forget_weights(model)
    model.init_weights()
    assert model.init_cfg is None and model.backbone.init_cfg is None
    assert model.head.init_cfg == [dict(type='Normal', layer='Linear', std=0.01)] and not model.head.fc.bias.any()
    untouched = part(dict(type='TruncNormal', layer='Linear'))  # some classes read it as a dict
    preflight.forget_weights(untouched)
    assert untouched.init_cfg == dict(type='TruncNormal', layer='Linear')


def test_a_config_in_pure_python_trains_resumes_and_is_tested(tmp_path):
    config, work = in_pure_python(write_run(tmp_path, images=4)), tmp_path / 'work'
    train.main([str(config), '--work-dir', str(work), '--cfg-options', 'train_cfg.max_epochs=1'])
    train.main([str(config), '--work-dir', str(work), '--resume'])
    test.main([str(config), str(work / 'epoch_2.pth'), '--work-dir', str(tmp_path / 'test')])
    logged = [json.loads(line) for line in next(work.glob('*/vis_data/scalars.json')).read_text().splitlines()]
    assert max(entry.get('rm_lambda', 0) for entry in logged) > 0


def test_resume_auto_finds_the_newest_also_in_a_folder_that_was_moved(run, trained, tmp_path, capsys):
    cfg = preflight.prepare_train(args_of(run[0], '--work-dir', run[1], '--resume'))
    assert not cfg.resume and cfg.load_from is None and 'no checkpoint' in capsys.readouterr().out
    moved = tmp_path / 'moved'
    shutil.copytree(trained[1], moved)
    for note, told in ((b'/elsewhere/epoch_2.pth', 'resuming from'), (b'\x80\xff\x00', 'last_checkpoint is damaged')):
        (moved / 'last_checkpoint').write_bytes(note)
        cfg = preflight.prepare_train(args_of(trained[0], '--work-dir', moved, '--resume'))
        assert cfg.load_from == str(moved / 'epoch_2.pth') and told in capsys.readouterr().out


def test_a_damaged_checkpoint_is_named_wherever_it_is_read_and_so_is_the_older_one(error, trained, tmp_path):
    """64 bytes in the middle are flipped, which torch alone reads over."""
    work = tmp_path / 'work'
    shutil.copytree(trained[1], work)
    newest, older = work / 'epoch_2.pth', work / 'epoch_1.pth'
    data = bytearray(newest.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
    newest.write_bytes(data)
    (work / 'last_checkpoint').write_text(str(newest))
    before = content(work)

    def told(function, *argv):
        message = error(function, *argv)
        assert f'checkpoint {newest} is damaged in its part data/' in message and str(older) in message
        return message

    told(train.main, trained[0], '--work-dir', work, '--resume')
    told(test.main, trained[0], newest)
    strict = f"model['init_cfg'] = dict(type='StrictPretrained', checkpoint={str(newest)!r})\n"
    told(train.main, write_run(tmp_path, more=strict), '--work-dir', tmp_path / 'fine')
    told(cli(lambda argv: weights.export_backbone(*argv)), newest, tmp_path / 'out.pth')
    assert not (tmp_path / 'out.pth').exists() and content(work) == before


def test_a_checkpoint_that_cannot_be_used_is_named(error, trained, tmp_path):
    (best,) = trained[1].glob('best_*.pth')
    message = error(train.main, trained[0], '--work-dir', trained[1], '--resume', best)
    assert 'optimizer' in message and 'load_from' in message
    torch.save(torch.zeros(3), tmp_path / 'tensor.pth')
    assert 'holds a Tensor' in error(test.main, trained[0], tmp_path / 'tensor.pth')
    for function, argv in ((train.main, ('--resume', 'no.pth')), (test.main, ('no.pth',))):
        assert 'no.pth' in error(function, trained[0], *argv)
    other, last = write_run(tmp_path, more='model["backbone"]["depth"] = 34\n'), trained[1] / 'epoch_2.pth'
    assert 'does not fit the config' in error(test.main, other, last, '--work-dir', tmp_path / 'test')
    assert 'does not fit the config' in error(train.main, other, '--resume', last, '--work-dir', tmp_path / 'work')


@pytest.mark.slow
def test_missed_validation_is_not_repeated(trained, tmp_path):
    work = tmp_path / 'work'
    fit(trained[0], work, '--resume', trained[1] / 'epoch_1.pth')
    (log,) = work.glob('*/vis_data/scalars.json')
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line['step'] for line in lines if 'accuracy/top1' in line] == [2]


def test_a_checkpoint_with_code_for_a_resume_to_execute_is_refused(error, trained, tmp_path):
    config, work = trained
    checkpoint = preflight.read_checkpoint(preflight.latest_checkpoint(work))
    proof = tmp_path / 'executed'
    checkpoint['meta']['config'] = f"open({str(proof)!r}, 'w')\nmodel = dict()\n"
    torch.save(checkpoint, tmp_path / 'epoch_1.pth')
    told = error(train.main, config, '--resume', tmp_path / 'epoch_1.pth', '--work-dir', tmp_path / 'work')
    assert "has code in meta['config']" in told and not proof.exists()


# --------------------------------------------------------------------------------------------------------------- tests
def test_metrics_are_printed_and_written_and_nothing_is_overwritten(error, trained, tmp_path, capsys):
    config, work = trained
    before = content(work)
    out = tmp_path / 'new' / 'metrics.json'
    argv = [str(config), str(work / 'epoch_2.pth'), '--work-dir', str(work), '--out', str(out)]
    test.main(argv)
    metrics = json.loads(out.read_text())
    assert f'accuracy/top1: {metrics["accuracy/top1"]}' in capsys.readouterr().out
    assert {path: data for path, data in content(work).items() if path in before} == before
    out.write_text('mine')
    assert '--overwrite' in error(test.main, *argv)
    assert out.read_text() == 'mine'
    test.main([*argv, '--overwrite'])
    assert json.loads(out.read_text()) == metrics
    (tmp_path / 'folder.json').mkdir()
    for name in ('metrics.txt', 'folder.json'):
        assert name in error(test.main, *argv[:-1], tmp_path / name)


def test_predictions_of_weights_without_the_roi_layer_are_written(trained, tmp_path):
    checkpoint = torch.load(trained[1] / 'epoch_2.pth', weights_only=True)
    state = {name: value for name, value in checkpoint['state_dict'].items() if 'fc_roi' not in name}
    assert len(state) < len(checkpoint['state_dict'])
    torch.save(dict(state_dict=state), tmp_path / 'deployed.pth')
    argv = (trained[0], tmp_path / 'deployed.pth', '--work-dir', tmp_path / 'work', '--out', tmp_path / 'out.pkl')
    test.main([str(word) for word in argv])
    predictions = pickle.loads((tmp_path / 'out.pkl').read_bytes())
    assert len(predictions) == 12 and predictions[0]['pred_score'].shape == (2,)


def test_masks_are_dumped_as_run_lengths_whatever_the_scope():
    from mmdet.evaluation import DumpDetResults
    from mmdet.models import MaskRCNN
    from mmengine.evaluator import DumpResults

    own = type('Own', (MaskRCNN,), {})
    detector = own.__new__(own)
    torch.nn.Module.__init__(detector)
    model = torch.nn.Module()
    model.module = detector
    for each, kind in ((model, DumpDetResults), (detector, DumpDetResults), (torch.nn.Linear(1, 1), DumpResults)):
        assert type(test.dump_results(each, 'a.pkl')) is kind


def test_tta_averages_over_the_augmentations_of_the_config(error, trained, tmp_path):
    config = write_run(
        tmp_path,
        more="""
tta_model = dict(type='AverageClsScoreTTA')
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='TestTimeAug', transforms=[
        [dict(type='RandomFlip', prob=1.), dict(type='RandomFlip', prob=0.)], [dict(type='PackInputs')]])]
""",
    )
    out = tmp_path / 'metrics.json'
    test.main([str(config), str(trained[1] / 'epoch_2.pth'), '--work-dir', str(tmp_path), '--tta', '--out', str(out)])
    assert 'accuracy/top1' in json.loads(out.read_text())
    assert 'tta_model, tta_pipeline' in error(test.main, trained[0], trained[1] / 'epoch_2.pth', '--tta')
