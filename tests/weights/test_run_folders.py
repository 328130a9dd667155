"""Which of a run's files is its newest, and which its best, whatever a copy, a clock or a kill did to the folder."""

import os

import pytest
import torch

from mmrm.utils.errors import UserFileError
from mmrm.weights.runs import find_checkpoint, latest_checkpoint, saved_checkpoints, weights_of_run


def save(folder, name, iterations=0, age=0):
    """A checkpoint that is ``age`` seconds old."""
    path = folder / name
    torch.save(dict(meta=dict(iter=iterations), state_dict={}), path)
    os.utime(path, (10_000 - age, 10_000 - age))
    return path


@pytest.fixture
def logged():
    return []


def test_newest_checkpoint_has_the_highest_step(tmp_path):
    for age, step in enumerate((2, 10, 9, 1)):  # the copy of epoch_2 is the youngest
        save(tmp_path, f'epoch_{step}.pth', age=age)
    for name in ('epoch_12-0123abcd.pth', 'epoch_last.pth', '.epoch_13.pth.part', 'epoch_14.pth.bak'):
        save(tmp_path, name)
    assert [path.name for path in saved_checkpoints(tmp_path)] == [f'epoch_{step}.pth' for step in (1, 2, 9, 10)]
    assert latest_checkpoint(tmp_path).name == weights_of_run(tmp_path).name == 'epoch_10.pth'
    assert saved_checkpoints(tmp_path / 'nothing') == saved_checkpoints(None) == []
    for age, step in enumerate((9, 10, 8)):  # a kill may leave more than one
        save(tmp_path, f'best_accuracy_top1_epoch_{step}.pth', age=age)
    assert weights_of_run(tmp_path).name == 'best_accuracy_top1_epoch_10.pth'


@pytest.mark.parametrize('iterations, newest', [(40, 'epoch_3.pth'), (400, 'iter_400.pth')])
def test_epochs_and_iterations_compare_by_the_iterations_in_the_files(iterations, newest, tmp_path):
    save(tmp_path, 'epoch_3.pth', 300)
    save(tmp_path, f'iter_{iterations}.pth', iterations)
    assert latest_checkpoint(tmp_path).name == newest


@pytest.mark.parametrize(
    'note, half, newest, message',
    [
        ('epoch_8.pth', False, 'epoch_9.pth', 'names epoch_8.pth, but epoch_9.pth is newer'),  # killed before it
        ('epoch_8.pth', True, 'epoch_8.pth', ''),  # mmengine by itself writes in place, and the note after that
        ('/elsewhere/epoch_10.pth', False, 'epoch_9.pth', 'epoch_10.pth, which does not exist'),
    ],
)
def test_last_checkpoint_is_followed_unless_a_newer_one_is_complete(note, half, newest, message, tmp_path, logged):
    for step in (8, 9):
        last = save(tmp_path, f'epoch_{step}.pth')
    if half:
        last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    (tmp_path / 'last_checkpoint').write_text(note)
    assert latest_checkpoint(tmp_path, logged.append).name == newest
    assert len(logged) == bool(message) and all(message in line for line in logged)


def test_copied_run_resumes_from_its_own_checkpoints(tmp_path, logged):
    for run in ('original', 'copy'):
        (tmp_path / run).mkdir()
        save(tmp_path / run, 'epoch_1.pth')
        (tmp_path / run / 'last_checkpoint').write_text(str(tmp_path / 'original' / 'epoch_2.pth'))
    save(tmp_path / 'original', 'epoch_2.pth')
    assert latest_checkpoint(tmp_path / 'copy', logged.append) == tmp_path / 'copy' / 'epoch_1.pth' and logged


@pytest.mark.parametrize('content', [b'epoch\x00_1.pth', b'\xff' * 100_000, b'x' * 300 + b'.pth'])
def test_a_damaged_note_is_logged_and_not_used(content, tmp_path, logged, capsys):
    save(tmp_path, 'epoch_1.pth')
    (tmp_path / 'last_checkpoint').write_bytes(content)
    assert latest_checkpoint(tmp_path, logged.append).name == 'epoch_1.pth'
    assert logged == [f'{tmp_path / "last_checkpoint"} is damaged and not used.']
    assert weights_of_run(tmp_path).name == 'epoch_1.pth'
    assert 'is damaged' in capsys.readouterr().err


@pytest.mark.parametrize(
    'files, message',
    [
        (
            ['best_bbox_mAP_epoch_2.pth', 'best_bbox_mAP_epoch_1.pth', 'best_segm_mAP_epoch_1.pth'],
            r'2 best checkpoints, name one: .*bbox_mAP_epoch_2.*segm_mAP_epoch_1',
        ),
        (['seed0/best_a_epoch_1.pth', 'seed1/best_a_epoch_1.pth'], 'several runs, name one: seed0, seed1'),
        (['seed0/epoch_1.pth', 'seed1/epoch_1.pth', 'seed2/notes.txt'], r'several runs, name one: seed0, seed1\.'),
        (['notes.txt'], 'folder without a checkpoint'),
        (['last_checkpoint'], r'names epoch_9\.pth, which does not exist'),
    ],
)
def test_a_folder_without_one_clear_checkpoint_is_refused(files, message, tmp_path):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('epoch_9.pth')
    with pytest.raises(UserFileError, match=message):
        find_checkpoint(tmp_path)


def test_best_and_latest_are_found_where_the_run_keeps_its_checkpoints(tmp_path, logged):
    """``default_hooks.checkpoint.out_dir``: the work dir has the log and ``last_checkpoint`` only."""
    run, kept = tmp_path / 'work', tmp_path / 'kept'
    run.mkdir()
    kept.mkdir()
    last, best = save(kept, 'epoch_3.pth', 30), save(kept, 'best_accuracy_top1_epoch_1.pth', 10)
    (run / 'last_checkpoint').write_text(str(last))
    assert weights_of_run(run) == best and latest_checkpoint(run, logged.append) == last and not logged
    best.unlink()
    assert weights_of_run(run) == last
    assert latest_checkpoint(run, logged.append) == last
    save(kept, 'epoch_4.pth')
    assert latest_checkpoint(run, logged.append) == kept / 'epoch_4.pth' and logged


def test_a_relative_path_is_found_from_the_home_folder(tmp_path, monkeypatch):
    (tmp_path / 'home' / 'work_dirs').mkdir(parents=True)
    (tmp_path / 'home' / 'work_dirs' / 'x.pth').touch()
    monkeypatch.setattr('mmrm.utils.paths.home', lambda: tmp_path / 'home')
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint('work_dirs/x.pth') == tmp_path / 'home' / 'work_dirs' / 'x.pth'
