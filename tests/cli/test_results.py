"""results.csv: a row per checkpoint with what the log and the file say."""

import csv
import functools
import hashlib
import shutil

import pytest
from zoo_run import call_main, write_run

from mmrm.cli.results import main

call = functools.partial(call_main, main)


def test_a_row_per_checkpoint_the_best_first(tmp_path, capsys):
    run = write_run(tmp_path / 'rm' / 'river')
    best = next(run.glob('best_*.pth'))
    shutil.copy(best, run / 'epoch_3.pth')
    shutil.copy(best, run / 'epoch_9.pth')  # nobody validated it
    code, out, _ = call(capsys, tmp_path / 'results.csv', tmp_path / 'rm')
    assert code == 0 and '2 checkpoints' in out
    with open(tmp_path / 'results.csv') as stream:
        rows = list(csv.DictReader(stream))
    assert [(row['top1'], row['top1_err'], row['step']) for row in rows] == [
        ('80.00', '20.00', '2'),
        ('75.00', '25.00', '3'),
    ]
    row = rows[0]
    assert row['model'] == 'river' and row['img_size'] == '64' and row['state'] == 'finished'
    assert row['sha256'] == hashlib.sha256(best.read_bytes()).hexdigest()
    assert row['command'].startswith('mmrm test ') and row['command'].endswith(str(best))
    from mmpretrain.registry import MODELS
    from zoo_run import BACKBONES

    backbone = sum(tensor.numel() for tensor in MODELS.build(BACKBONES['narrow'][0]).parameters())
    assert float(row['param_count']) == pytest.approx((backbone + 64 * 3 + 3) / 1e6, abs=0.005)


def test_a_checkpoint_that_cannot_be_read_is_told_and_left_out(tmp_path, capsys):
    run = write_run(tmp_path / 'river')
    (run / 'epoch_3.pth').write_bytes(b'torn')
    code, out, err = call(capsys, tmp_path / 'results.csv', run)
    assert code == 0 and '1 checkpoints' in out and 'epoch_3.pth is left out' in err


def test_a_run_of_a_shipped_config_has_its_name(tmp_path):
    from mmrm.weights.results import model_name

    folder = tmp_path / 'rm' / 'resnet50_8xb64_in1k'
    assert model_name(folder / 'seed1' / 'epoch_3.pth') == 'rm/resnet50_8xb64_in1k'
    assert model_name(folder / 'epoch_3.pth') == 'rm/resnet50_8xb64_in1k'
    mine = tmp_path / 'work'
    mine.mkdir()
    (mine / 'otters.py').touch()  # as mmengine keeps the config of a run
    assert model_name(mine / 'epoch_3.pth') == 'otters'


@pytest.mark.parametrize('argv, message', [(('a.txt', '.'), 'must end in .csv'), (('a.csv', '.'), 'holds no run')])
def test_mistakes(argv, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, *argv)
    assert code == 2 and message in err


def test_iterations_are_not_taken_for_epochs(tmp_path):
    """A checkpoint of iteration 3 in a run that was validated after epoch 3."""
    from mmrm.weights.results import checkpoints_of, measured

    run = write_run(tmp_path / 'river')
    shutil.copy(next(run.glob('best_*.pth')), run / 'iter_3.pth')
    assert measured(run / 'iter_3.pth') is None
    assert [path.name for path in checkpoints_of(run)] == ['best_accuracy_top1_epoch_2.pth']
