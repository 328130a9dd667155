"""What a kill, a resume from an older checkpoint and ``by_epoch=False`` leave in a run's folder."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop
from tiny_run import write_run

from mmrm.cli.train import main
from mmrm.engine.runner import Runner, check_epoch_is_complete
from mmrm.utils.checkpoints import read_checkpoint
from mmrm.utils.errors import UserFileError
from mmrm.weights.runs import weights_of_run

# A metric that is better every time: epochs have the scores 1, 2, 3 ...
BETTER = """
custom_imports['imports'].append('better_metric')
val_evaluator = dict(type='Better')
default_hooks['checkpoint'].update(save_best='score', rule='greater', max_keep_ckpts=-1)
"""
METRIC = """
from mmengine.evaluator import BaseMetric
from mmengine.logging import MessageHub
from mmengine.registry import METRICS

@METRICS.register_module(force=True)
class Better(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(1)

    def compute_metrics(self, results):
        return dict(score=MessageHub.get_current_instance().get_info('epoch') + 1)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    (tmp_path / 'better_metric.py').write_text(METRIC)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv('MMRM_DEVICE', 'cpu')
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.setattr('logging.raiseExceptions', True)


@pytest.fixture(scope='module')
def by_iteration(tmp_path_factory):
    """A run of two epochs of six iterations with a checkpoint every three: (config, work dir)."""
    folder = tmp_path_factory.mktemp('by_iteration')
    settings = 'by_epoch=False, interval=3, max_keep_ckpts=-1'
    config = write_run(folder, more=f"default_hooks['checkpoint'].update({settings})\n")
    main([str(config), '--work-dir', str(folder / 'work'), '--device', 'cpu', '--no-validate'])
    return config, folder / 'work'


def train(config, work, *more):
    main([str(word) for word in (config, '--work-dir', work, *more)])


def names(folder, pattern='*.pth'):
    return sorted(path.name for path in folder.glob(pattern))


class Killed(BaseException):
    """A kill: nothing of the run's own comes after it."""


def kill_at(monkeypatch, when, name):
    """End a run before or after it saves a checkpoint."""
    save = Runner.save_checkpoint

    def save_and_die(self, out_dir, filename, *args, **kwargs):
        if when == 'before' and filename == name:
            raise Killed
        save(self, out_dir, filename, *args, **kwargs)
        if when == 'after' and filename == name:
            raise Killed

    monkeypatch.setattr(Runner, 'save_checkpoint', save_and_die)


# ---------------------------------------------------------------------------------------------------------------- best
@pytest.mark.parametrize('moment', ['the older is known', 'the newer is known'])
def test_two_best_checkpoints_that_a_kill_left_become_one_with_its_score(moment, tmp_path, monkeypatch):
    config, work = write_run(tmp_path, epochs=2, images=4, more=BETTER), tmp_path / 'work'
    with monkeypatch.context() as patch, pytest.raises(Killed):
        if moment.startswith('the older'):
            kill_at(patch, 'after', 'best_score_epoch_2.pth')
        else:
            patch.setattr(os, 'remove', lambda path: (_ for _ in ()).throw(Killed()))
        train(config, work)
    assert names(work, 'best*') == ['best_score_epoch_1.pth', 'best_score_epoch_2.pth']
    assert weights_of_run(work).name == 'best_score_epoch_2.pth'
    known = read_checkpoint(work / 'epoch_2.pth')['message_hub']['runtime_info']['best_score']
    assert known == (1 if moment.startswith('the older') else 2)
    # The next start puts it right, also if no epoch is better any more.
    monkeypatch.setattr('better_metric.Better.compute_metrics', lambda self, results: dict(score=1.5))
    train(config, work, '--resume', '--cfg-options', 'train_cfg.max_epochs=3')
    assert names(work, 'best*') == ['best_score_epoch_2.pth']
    info = read_checkpoint(work / 'epoch_3.pth')['message_hub']['runtime_info']
    assert info['best_score'] == 2 and info['best_ckpt'] == str(work / 'best_score_epoch_2.pth')


def test_the_best_one_that_was_found_after_a_kill_gives_way_to_a_better_one(tmp_path, monkeypatch):
    config, work = write_run(tmp_path, epochs=2, images=4, more=BETTER), tmp_path / 'work'
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, 'after', 'best_score_epoch_2.pth')
        train(config, work)
    train(config, work, '--resume', '--cfg-options', 'train_cfg.max_epochs=3')
    assert names(work, 'best*') == ['best_score_epoch_3.pth']


def test_a_best_one_that_cannot_be_read_removes_no_other(tmp_path, monkeypatch):
    config, work = write_run(tmp_path, epochs=2, images=4, more=BETTER), tmp_path / 'work'
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, 'after', 'best_score_epoch_2.pth')
        train(config, work)
    (work / 'best_score_epoch_2.pth').write_bytes(b'damaged')
    monkeypatch.setattr('better_metric.Better.compute_metrics', lambda self, results: dict(score=0))
    train(config, work, '--resume', '--cfg-options', 'train_cfg.max_epochs=3')
    assert names(work, 'best*') == ['best_score_epoch_1.pth', 'best_score_epoch_2.pth']


def test_several_metrics_keep_one_best_each(tmp_path, monkeypatch):
    scores = list(range(4))
    monkeypatch.setattr(
        'better_metric.Better.compute_metrics',
        lambda self, results: {name: scores.pop(0) if scores else 0 for name in 'ab'},
    )
    more = BETTER.replace("save_best='score'", "save_best=['a', 'b']")
    config, work = write_run(tmp_path, epochs=2, images=4, more=more), tmp_path / 'work'
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, 'after', 'best_b_epoch_2.pth')
        train(config, work)
    assert len(names(work, 'best*')) == 4
    train(config, work, '--resume', '--cfg-options', 'train_cfg.max_epochs=3')
    assert names(work, 'best*') == ['best_a_epoch_2.pth', 'best_b_epoch_2.pth']
    info = read_checkpoint(work / 'epoch_3.pth')['message_hub']['runtime_info']
    assert (info['best_score_a'], info['best_score_b']) == (2, 3)


# ---------------------------------------------------------------------------------------------------------------- later
def test_a_resume_from_an_older_checkpoint_moves_the_later_ones_aside(tmp_path):
    config, work = write_run(tmp_path, epochs=3, images=4, more=BETTER), tmp_path / 'work'
    train(config, work)
    later = {name: (work / name).read_bytes() for name in ('epoch_2.pth', 'epoch_3.pth', 'best_score_epoch_3.pth')}
    train(config, work, '--resume', work / 'epoch_1.pth', '--cfg-options', 'train_cfg.max_epochs=2')
    (aside,) = work.glob('replaced-*')
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == later
    assert names(work) == ['best_score_epoch_2.pth', 'epoch_1.pth', 'epoch_2.pth']
    assert (work / 'last_checkpoint').read_text() == str(work / 'epoch_2.pth')


def test_a_best_one_of_a_run_without_another_checkpoint_is_not_the_next_run_s(tmp_path, monkeypatch):
    config, work = write_run(tmp_path, epochs=2, images=4, more=BETTER), tmp_path / 'work'
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, 'after', 'best_score_epoch_1.pth')
        train(config, work, '--cfg-options', 'default_hooks.checkpoint.interval=2')
    assert names(work) == ['best_score_epoch_1.pth']
    train(config, work, '--resume')
    assert names(work) == ['best_score_epoch_2.pth', 'epoch_1.pth', 'epoch_2.pth']
    assert names(work, 'replaced-*/*') == ['best_score_epoch_1.pth']


# --------------------------------------------------------------------------------------------------------------- .part
def test_half_written_files_are_removed_at_the_start_and_links_are_not_followed(tmp_path):
    config, work, mine = write_run(tmp_path, epochs=1, images=4), tmp_path / 'work', tmp_path / 'mine.txt'
    work.mkdir()
    mine.write_text('mine')
    (work / '.epoch_7.pth.part').write_bytes(b'half')
    (work / '.best_accuracy_top1_epoch_1.pth.part').symlink_to(mine)
    train(config, work)
    assert mine.read_text() == 'mine' and not list(work.glob('.*.part'))
    assert names(work) == ['best_accuracy_top1_epoch_1.pth', 'epoch_1.pth']


def test_a_link_that_appears_while_the_run_is_under_way_is_not_followed(tmp_path, monkeypatch):
    config, work, mine = write_run(tmp_path, epochs=1, images=4), tmp_path / 'work', tmp_path / 'mine.txt'
    mine.write_text('mine')
    save = Runner.save_checkpoint

    def link_and_save(self, out_dir, filename, *args, **kwargs):
        (Path(out_dir) / f'.{filename}.part').symlink_to(mine)
        save(self, out_dir, filename, *args, **kwargs)

    monkeypatch.setattr(Runner, 'save_checkpoint', link_and_save)
    train(config, work)
    assert mine.read_text() == 'mine' and not (work / 'epoch_1.pth').is_symlink()
    assert read_checkpoint(work / 'epoch_1.pth')['meta']['epoch'] == 1


# -------------------------------------------------------------------------------------------------------- mid-epoch
def test_a_checkpoint_from_the_middle_of_an_epoch_is_resumed_from(by_iteration, tmp_path):
    config, work = by_iteration[0], tmp_path / 'work'
    shutil.copytree(by_iteration[1], work)
    assert names(work) == ['iter_12.pth', 'iter_3.pth', 'iter_6.pth', 'iter_9.pth']
    (work / 'iter_12.pth').unlink()
    train(config, work, '--no-validate', '--resume')
    ours, theirs = (read_checkpoint(folder / 'iter_12.pth') for folder in (work, by_iteration[1]))
    assert all(torch.equal(ours['state_dict'][name], value) for name, value in theirs['state_dict'].items())


def test_the_one_at_the_end_of_an_epoch_is_written_once_when_the_epoch_counts_as_done(by_iteration):
    """Written before that as well, a kill in between would leave one whose schedulers are an epoch behind."""
    (log,) = by_iteration[1].glob('*/*.log')
    assert log.read_text().count('Saving checkpoint at 6 iterations') == 1
    assert read_checkpoint(by_iteration[1] / 'iter_6.pth')['meta']['epoch'] == 1


def test_one_at_the_end_of_an_epoch_is_and_the_run_is_the_one_that_was_never_stopped(by_iteration, tmp_path):
    config, work = by_iteration[0], tmp_path / 'work'
    shutil.copytree(by_iteration[1], work)
    train(config, work, '--no-validate', '--resume', work / 'iter_6.pth')
    ours, theirs = (read_checkpoint(folder / 'iter_12.pth') for folder in (work, by_iteration[1]))
    assert [(each['meta']['epoch'], each['meta']['iter']) for each in (ours, theirs)] == [(2, 12)] * 2
    assert all(torch.equal(ours['state_dict'][name], value) for name, value in theirs['state_dict'].items())


@pytest.fixture
def whole_epochs(by_iteration):
    """The config of :func:`by_iteration` with a loop that cannot go on in mid-epoch."""
    LOOPS.register_module(name='WholeEpochs', module=type('WholeEpochs', (EpochBasedTrainLoop,), {}), force=True)
    config = by_iteration[0].with_name('whole_epochs.py')
    config.write_text(by_iteration[0].read_text() + "train_cfg = dict(type='WholeEpochs', max_epochs=2)\n")
    return config


def test_a_run_that_cannot_go_on_in_mid_epoch_is_told_so_at_the_start(whole_epochs, tmp_path):
    train(whole_epochs, tmp_path, '--no-validate')
    (log,) = tmp_path.glob('*/*.log')
    before, told, _ = log.read_text().partition('training cannot be resumed in the middle of an epoch')
    assert told and 'Epoch(train)' not in before and 'iter_<a multiple of 6>.pth' in log.read_text()


def test_it_does_not_resume_from_there(by_iteration, whole_epochs, tmp_path, capsys):
    work = tmp_path / 'work'
    shutil.copytree(by_iteration[1], work)
    (work / 'iter_12.pth').unlink()
    for resume in ((), (work / 'iter_9.pth',)):
        with pytest.raises(SystemExit) as stopped:
            train(whole_epochs, work, '--no-validate', '--resume', *resume)
        message = capsys.readouterr().err
        assert stopped.value.code == 2 and f'{work / "iter_9.pth"} was written in the middle of epoch 2' in message
        assert 'default_hooks.checkpoint.by_epoch=True' in message and f'load_from={work / "iter_9.pth"}' in message
        assert resume or f'--resume {work / "iter_6.pth"}' in message
    assert names(work) == ['iter_3.pth', 'iter_6.pth', 'iter_9.pth']


def test_its_runner_refuses_it_by_itself(by_iteration, whole_epochs, tmp_path):
    from mmengine.config import Config

    cfg = Config.fromfile(whole_epochs)
    cfg.update(work_dir=str(tmp_path / 'work'), load_from=str(by_iteration[1] / 'iter_9.pth'), resume=True)
    with pytest.raises(UserFileError, match='in the middle of epoch 2, at iteration 9'):
        Runner.from_cfg(cfg).train()


@pytest.mark.parametrize(
    'epoch, iteration, begun, complete',
    [
        (2, 12, 1, True),
        (2, 15, 1, True),  # epochs of other lengths before
        (1, 9, 1, False),
        (0, 6, 0, False),  # mmengine's own at the last iteration of an epoch: its schedulers are an epoch behind
        (0, 0, 0, True),
        (2, 12, None, True),
    ],
)
def test_an_epoch_is_complete_if_it_is_counted(epoch, iteration, begun, complete):
    info = {} if begun is None else dict(epoch=begun)
    if complete:
        check_epoch_is_complete('x.pth', epoch, iteration, info)
    else:
        with pytest.raises(UserFileError, match=r'x\.pth was written in the middle'):
            check_epoch_is_complete('x.pth', epoch, iteration, info)
