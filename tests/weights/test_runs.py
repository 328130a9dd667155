"""Which of a run's files is its newest, and which its best, whatever a copy, a clock or a kill did to the folder."""

import os

import pytest
import torch

from mmrm.utils.errors import UserFileError
from mmrm.weights.runs import latest_checkpoint, saved_checkpoints, weights_of_run


def save(folder, name, iterations=0, age=0):
    """A checkpoint that is ``age`` seconds old."""
    path = folder / name
    torch.save(dict(meta=dict(iter=iterations), state_dict={}), path)
    os.utime(path, (10_000 - age, 10_000 - age))
    return path


@pytest.fixture
def said():
    return []


def test_the_newest_is_the_highest_and_not_the_youngest(tmp_path):
    for age, step in enumerate((2, 10, 9, 1)):  # the copy of epoch_2 is the youngest
        save(tmp_path, f'epoch_{step}.pth', age=age)
    assert [path.name for path in saved_checkpoints(tmp_path)] == [f'epoch_{step}.pth' for step in (1, 2, 9, 10)]
    assert latest_checkpoint(tmp_path).name == weights_of_run(tmp_path).name == 'epoch_10.pth'


@pytest.mark.parametrize('iterations, newest', [(40, 'epoch_3.pth'), (400, 'iter_400.pth')])
def test_epochs_and_iterations_compare_by_the_iterations_in_the_files(iterations, newest, tmp_path):
    save(tmp_path, 'epoch_3.pth', 300)
    save(tmp_path, f'iter_{iterations}.pth', iterations)
    assert latest_checkpoint(tmp_path).name == newest


def test_other_names_are_no_checkpoints_of_the_run(tmp_path):
    for name in ('epoch_1.pth', 'epoch_2-0123abcd.pth', 'epoch_last.pth', '.epoch_3.pth.part', 'epoch_4.pth.bak'):
        save(tmp_path, name)
    assert saved_checkpoints(tmp_path) == [tmp_path / 'epoch_1.pth']
    assert saved_checkpoints(tmp_path / 'nothing') == saved_checkpoints(None) == []


def test_a_note_that_is_behind_is_not_followed(tmp_path, said):
    """A run killed between a checkpoint and its note."""
    for step in (8, 9):
        save(tmp_path, f'epoch_{step}.pth')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_8.pth'))
    assert latest_checkpoint(tmp_path, said.append).name == 'epoch_9.pth'
    assert len(said) == 1 and 'names epoch_8.pth, but epoch_9.pth is there too' in said[0]


def test_a_higher_one_that_is_not_complete_is_not_taken(tmp_path, said):
    """mmengine by itself writes in place, and the note after that."""
    save(tmp_path, 'epoch_8.pth')
    half = save(tmp_path, 'epoch_9.pth').read_bytes()
    (tmp_path / 'epoch_9.pth').write_bytes(half[: len(half) // 2])
    (tmp_path / 'last_checkpoint').write_text('epoch_8.pth')
    assert latest_checkpoint(tmp_path, said.append).name == 'epoch_8.pth' and not said


def test_a_note_that_names_a_file_that_is_gone(tmp_path, said):
    for step in (1, 2):
        save(tmp_path, f'epoch_{step}.pth')
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/epoch_3.pth')
    assert latest_checkpoint(tmp_path, said.append).name == 'epoch_2.pth'
    assert len(said) == 1 and 'epoch_3.pth, which is not there' in said[0]


def test_a_note_names_a_folder_elsewhere(tmp_path, said):
    (tmp_path / 'work').mkdir()
    (tmp_path / 'out').mkdir()
    note = tmp_path / 'work' / 'last_checkpoint'
    note.write_text(str(save(tmp_path / 'out', 'epoch_1.pth')))
    assert latest_checkpoint(tmp_path / 'work', said.append) == tmp_path / 'out' / 'epoch_1.pth' and not said
    save(tmp_path / 'out', 'epoch_2.pth')
    assert latest_checkpoint(tmp_path / 'work', said.append) == tmp_path / 'out' / 'epoch_2.pth' and said


def test_a_copy_without_its_last_checkpoint_does_not_stand_for_the_original(tmp_path, said):
    for run in ('original', 'copy'):
        (tmp_path / run).mkdir()
        save(tmp_path / run, 'epoch_1.pth')
        (tmp_path / run / 'last_checkpoint').write_text(str(tmp_path / 'original' / 'epoch_2.pth'))
    save(tmp_path / 'original', 'epoch_2.pth')
    assert latest_checkpoint(tmp_path / 'copy', said.append) == tmp_path / 'copy' / 'epoch_1.pth' and said


@pytest.mark.parametrize('content', [b'\x80\x02\xff\xfe', b'epoch\x00_1.pth', bytes(100_000), b'\xff' * 100_000])
def test_a_damaged_note_is_told_and_not_used(content, tmp_path, said, capsys):
    save(tmp_path, 'epoch_1.pth')
    (tmp_path / 'last_checkpoint').write_bytes(content)
    assert latest_checkpoint(tmp_path, said.append).name == 'epoch_1.pth'
    assert said == [f'{tmp_path / "last_checkpoint"} is damaged and not used.']
    assert weights_of_run(tmp_path).name == 'epoch_1.pth'
    assert 'is damaged' in capsys.readouterr().err


def test_of_two_best_ones_that_a_kill_left_the_later_is_the_better(tmp_path):
    for age, step in enumerate((9, 10, 8)):
        save(tmp_path, f'best_accuracy_top1_epoch_{step}.pth', age=age)
    assert weights_of_run(tmp_path).name == 'best_accuracy_top1_epoch_10.pth'


def test_two_metrics_are_a_question_still(tmp_path):
    for name in ('best_bbox_mAP_epoch_2.pth', 'best_bbox_mAP_epoch_1.pth', 'best_segm_mAP_epoch_1.pth'):
        save(tmp_path, name)
    with pytest.raises(UserFileError, match=r'2 best checkpoints.*bbox_mAP_epoch_2.*segm_mAP_epoch_1'):
        weights_of_run(tmp_path)


def test_the_best_is_found_where_the_run_keeps_its_checkpoints(tmp_path):
    """``default_hooks.checkpoint.out_dir``: the work dir has the log and ``last_checkpoint`` only."""
    run, kept = tmp_path / 'work' / 'run', tmp_path / 'kept' / 'run'
    run.mkdir(parents=True)
    kept.mkdir(parents=True)
    last, best = save(kept, 'epoch_3.pth', 30), save(kept, 'best_accuracy_top1_epoch_1.pth', 10)
    (run / 'last_checkpoint').write_text(str(last))
    assert weights_of_run(run) == best
    best.unlink()
    assert weights_of_run(run) == last
