"""What a kill, a resume from an older checkpoint and ``by_epoch=False`` leave in a run's folder."""

import os
import shutil

import pytest
import torch
from exact_run import no_programs_asked, runner  # noqa: F401 (a fixture)
from mmengine.evaluator import BaseMetric
from mmengine.logging import MessageHub
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop

from mmrm.engine.runner import Runner
from mmrm.utils.checkpoints import read_checkpoint
from mmrm.utils.errors import UserFileError
from mmrm.weights.runs import weights_of_run


class Scores(BaseMetric):
    """Metrics with a given score in each epoch."""

    def __init__(self, names, scores):
        super().__init__()
        self.names, self.scores = names, scores

    def process(self, data_batch, data_samples):
        self.results.append(1)

    def compute_metrics(self, results):
        epoch = MessageHub.get_current_instance().get_info('epoch')
        return {name: self.scores[epoch] + place for place, name in enumerate(self.names)}


def train(work, epochs=2, best='score', every=1, scores=(1, 2, 3), **kwargs):
    runner(
        work,
        every=every,
        by_epoch=True,
        loop=dict(by_epoch=True, max_epochs=epochs),
        evaluator=[Scores([best] if isinstance(best, str) else best, scores)],
        checkpoint=dict(save_best=best, rule='greater'),
        **kwargs,
    ).train()


def names(folder, pattern='*.pth'):
    return sorted(path.name for path in folder.glob(pattern))


def runtime_info(path):
    return read_checkpoint(path)['message_hub']['runtime_info']


class Killed(BaseException):
    """A kill: nothing of the run's own comes after it."""


def kill_after(monkeypatch, name):
    """End a run after it has saved a checkpoint."""
    save = Runner.save_checkpoint

    def save_and_die(self, out_dir, filename, *args, **kwargs):
        save(self, out_dir, filename, *args, **kwargs)
        if filename == name:
            raise Killed

    monkeypatch.setattr(Runner, 'save_checkpoint', save_and_die)


# ---------------------------------------------------------------------------------------------------------------- best
@pytest.mark.parametrize('best', ['score', ['a', 'b']])
def test_a_kill_between_the_best_checkpoints_and_the_last_one_leaves_one_of_each_at_the_next_start(
    best, tmp_path, monkeypatch
):
    """The validation that made the new ones comes again, since the checkpoint that is resumed from does not know it."""
    metrics = [best] if isinstance(best, str) else best
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, f'best_{metrics[-1]}_epoch_2.pth')
        train(tmp_path, best=best)
    assert len(names(tmp_path, 'best*')) == 2 * len(metrics)
    train(tmp_path, 3, best=best, scores=(1, 2, 0), resume=True)
    assert names(tmp_path, 'best*') == [f'best_{metric}_epoch_2.pth' for metric in metrics]
    info = runtime_info(tmp_path / 'epoch_3.pth')
    endings = [''] if isinstance(best, str) else ['_a', '_b']
    assert [info[f'best_score{ending}'] for ending in endings] == [2, 3][: len(metrics)]
    assert info[f'best_ckpt{endings[-1]}'] == str(tmp_path / f'best_{metrics[-1]}_epoch_2.pth')


def test_a_best_checkpoint_that_a_kill_left_beside_a_better_one_is_moved_aside(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, 'remove', lambda path: (_ for _ in ()).throw(Killed()))
        train(tmp_path)
    assert len(names(tmp_path, 'best*')) == 2 and runtime_info(tmp_path / 'epoch_2.pth')['best_score'] == 2
    assert weights_of_run(tmp_path).name == 'best_score_epoch_2.pth'
    train(tmp_path, 3, scores=(1, 2, 0), resume=True)
    assert names(tmp_path, 'best*') == ['best_score_epoch_2.pth']
    assert names(tmp_path, 'replaced-*/*') == ['best_score_epoch_1.pth']


# ---------------------------------------------------------------------------------------------------------------- later
def test_a_resume_from_an_older_checkpoint_moves_the_later_ones_aside(tmp_path):
    train(tmp_path, 3)
    later = {name: (tmp_path / name).read_bytes() for name in ('epoch_2.pth', 'epoch_3.pth', 'best_score_epoch_3.pth')}
    train(tmp_path, 2, resume=True, load_from=str(tmp_path / 'epoch_1.pth'))
    (aside,) = tmp_path.glob('replaced-*')
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == later
    assert names(tmp_path) == ['best_score_epoch_2.pth', 'epoch_1.pth', 'epoch_2.pth']
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'epoch_2.pth')


def test_best_checkpoint_of_an_older_run_is_not_the_next_runs(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 'best_score_epoch_1.pth')
        train(tmp_path, every=2)
    assert names(tmp_path) == ['best_score_epoch_1.pth']
    train(tmp_path, resume=True)
    assert names(tmp_path) == ['best_score_epoch_2.pth', 'epoch_1.pth', 'epoch_2.pth']
    assert names(tmp_path, 'replaced-*/*') == ['best_score_epoch_1.pth']


# --------------------------------------------------------------------------------------------------------------- .part
def test_half_written_files_are_removed_at_the_start_and_links_are_not_followed(tmp_path):
    work, mine = tmp_path / 'work', tmp_path / 'mine.txt'
    work.mkdir()
    mine.write_text('mine')
    (work / '.epoch_7.pth.part').write_bytes(b'half')
    (work / '.best_score_epoch_1.pth.part').symlink_to(mine)
    (work / '.epoch_1.pth.a1b2').write_bytes(b'half')
    (work / 'epoch_1.pth').symlink_to(mine)
    train(work, 1)
    assert mine.read_text() == 'mine' and not list(work.glob('.*.pth.*')) and not (work / 'epoch_1.pth').is_symlink()
    assert names(work) == ['best_score_epoch_1.pth', 'epoch_1.pth']
    assert read_checkpoint(work / 'epoch_1.pth')['meta']['epoch'] == 1


# -------------------------------------------------------------------------------------------------------- mid-epoch
@pytest.fixture(scope='module')
def by_iteration(tmp_path_factory):
    """A run of two epochs of four iterations with a checkpoint every two."""
    folder = tmp_path_factory.mktemp('by_iteration')
    train_by_iteration(folder, level='INFO')
    assert names(folder) == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth', 'iter_8.pth']
    return folder


def train_by_iteration(work, loop=None, **kwargs):
    runner(work, every=2, validate=False, loop=loop or dict(by_epoch=True, max_epochs=2), **kwargs).train()


@pytest.mark.parametrize('step', [4, 6])
def test_a_checkpoint_by_iteration_is_resumed_from_also_at_an_epochs_end(step, by_iteration, tmp_path):
    work = tmp_path / 'work'
    shutil.copytree(by_iteration, work)
    train_by_iteration(work, resume=True, load_from=str(work / f'iter_{step}.pth'))
    ours, theirs = (read_checkpoint(folder / 'iter_8.pth') for folder in (work, by_iteration))
    assert [(each['meta']['epoch'], each['meta']['iter']) for each in (ours, theirs)] == [(2, 8)] * 2
    assert all(torch.equal(ours['state_dict'][name], value) for name, value in theirs['state_dict'].items())


def test_checkpoint_at_an_epochs_end_is_written_once(by_iteration):
    """Written before that as well, a kill in between would leave one whose schedulers are an epoch behind."""
    (log,) = by_iteration.glob('*/*.log')
    assert log.read_text().count('Saving checkpoint at 4 iterations') == 1
    assert read_checkpoint(by_iteration / 'iter_4.pth')['meta']['epoch'] == 1


def test_mid_epoch_checkpoint_is_refused_by_a_loop_that_cannot_resume_it(by_iteration, tmp_path):
    LOOPS.register_module(name='OtherEpochs', module=type('OtherEpochs', (EpochBasedTrainLoop,), {}), force=True)
    loop = dict(type='OtherEpochs', max_epochs=1)
    with pytest.raises(UserFileError, match='in the middle of epoch 2, at iteration 6'):
        train_by_iteration(tmp_path / 'work', loop=loop, resume=True, load_from=str(by_iteration / 'iter_6.pth'))
