"""Files of results: what one person's runs write, another one's tables read."""

import json
from pathlib import Path

import pytest
from run_logs import epochs, write_session

from mmrm.cli.tables import main
from mmrm.report.results import read_results
from mmrm.utils.config import read_config
from mmrm.utils.errors import UserFileError

RESULTS = Path(__file__).resolve().parents[2] / 'results'
R18 = 'resnet18_2xb64_cifar100'


@pytest.fixture
def saved(tmp_path, capsys):
    """A file of two runs of the shipped config with another batch size, and the table that was printed with it."""
    cfg = read_config(f'configs/rm/{R18}.py', {'train_dataloader.batch_size': 128})
    for seed, best in enumerate((81.0, 82.0)):
        records = [dict(record, step=200 if 'loss' not in record else record['step']) for record in epochs(200, [best])]
        write_session(tmp_path / 'runs' / 'rm' / R18 / f'seed{seed}', '20260101_000000', records, cfg.pretty_text)
    main(['cifar100', '--work-dir', str(tmp_path / 'runs'), '--save', str(tmp_path / 'mine.json')])
    return tmp_path / 'mine.json', capsys.readouterr().out


def numbers(printed):
    """The table itself, without what stands below it."""
    return printed.partition('Behind the numbers:')[0]


def test_a_table_of_results_is_that_of_the_runs(saved, capsys):
    path, printed = saved
    main(['cifar100', '--results', str(path)])
    again = capsys.readouterr().out
    assert numbers(again) == numbers(printed)
    assert '18.50 ± 0.71 (n=2)' in again and '2 runs finished, other settings' in again
    assert 'train_dataloader.batch_size=128 instead of 64' in again  # and nothing else
    assert again.count('instead of') == 2 and 'mine.json/rm/seed0 (checkpoint not kept)' in again
    (config,) = read_results(path)
    assert config == f'configs/rm/{R18}.py'
    assert read_results(path)[config][0].training['hours'] == pytest.approx(0.5 * 2000 / 3600, abs=1e-3)


def test_results_hold_no_folder_and_those_on_other_data_are_left_out(saved, tmp_path, capsys):
    assert str(tmp_path) not in saved[0].read_text() and '/data' not in saved[0].read_text()
    content = json.loads(saved[0].read_text())
    content['runs'][0]['data'] = dict(train=dict(samples=500))
    saved[0].write_text(json.dumps(content))
    main(['cifar100', '--results', str(saved[0])])
    assert '500 train samples instead of 50000' in capsys.readouterr().out


def test_results_of_a_config_that_is_not_in_the_tables_are_named(saved, capsys):
    content, other = json.loads(saved[0].read_text()), 'configs/rm/resnet18_2xb64_cifar10.py'
    content['runs'][1].update(config=other)
    saved[0].write_text(json.dumps(content))
    main(['cifar100', '--results', str(saved[0])])
    printed = capsys.readouterr()
    assert printed.err == f'note: {other} has no row in cifar100: it is left out.\n'
    assert 'mine.json/rm/seed0' in printed.out and 'seed1' not in numbers(printed.out)
    main(['imagenet', '--results', str(saved[0])])
    assert f'note: configs/rm/{R18}.py has no row in imagenet: it is left out.' in capsys.readouterr().err


@pytest.mark.parametrize(
    'change, words',
    [
        (dict(format=2), 'format 2 instead of 1'),
        (dict(runs=None), 'runs must be of type list, but is None'),
        (dict(config='configs/rm/x.py'), "run 2: config 'configs/rm/x.py' is not a shipped one"),
        (dict(seed=None), 'run 2: seed must be of type int, but is None'),
        (dict(seed=1.5), 'run 2: seed must be of type int, but is 1.5'),
        (dict(validations={}), r'run 2: max\(\)'),
        (dict(validations=[90.0]), 'run 2: validations must be of type dict'),
        (dict(data=3), 'run 2: '),
        (dict(data=dict(train=50000)), 'run 2: '),
        (dict(settings=dict(model='resnet')), "run 2: model must be of type dict, but is 'resnet'"),
        (dict(settings=dict(custom_hooks=1)), 'run 2: custom_hooks must be of type list, but is 1'),
        (dict(hours='long'), 'run 2: could not convert'),
    ],
)
def test_a_file_of_another_kind_is_refused(saved, tmp_path, change, words):
    content, other = json.loads(saved[0].read_text()), tmp_path / 'other.json'
    (content if set(change) & {'format', 'runs'} else content['runs'][1]).update(change)
    other.write_text(json.dumps(content))
    with pytest.raises(UserFileError, match=words):
        read_results(other)


def test_a_file_of_results_cannot_name_a_script_to_run(saved, tmp_path):
    script = tmp_path / 'script.py'
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    content = json.loads(saved[0].read_text())
    content['runs'][0]['config'] = str(script)
    saved[0].write_text(json.dumps(content))
    with pytest.raises(UserFileError, match='is not a shipped one'):
        read_results(saved[0])
    assert not (tmp_path / 'ran').exists()


def test_without_runs_nothing_is_saved(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('mmrm.utils.paths.home', lambda: tmp_path)
    with pytest.raises(SystemExit):
        main(['cifar100', '--save', 'mine.json'])
    assert 'no run to write' in capsys.readouterr().err and not Path('mine.json').exists()


def problems(path):
    """Runs of a file that do not belong into results/: unfinished, or of another length than their config's."""
    found = []
    for config, runs in read_results(path).items():
        train = read_config(config).train_cfg
        length = (train.max_iters, 'iterations') if 'max_iters' in train else (train.max_epochs, 'epochs')
        for run in (run for run in runs if not run.finished or (run.length, run.unit) != length):
            found.append(f'{config} seed {run.seed}: {run.state}, {run.length} {run.unit} instead of {length[0]}')
    return found


def test_every_file_of_the_project_holds_runs_of_full_length():
    """results/ starts empty; each file that is sent in holds finished runs of shipped configs."""
    for path in RESULTS.glob('*.json'):
        assert not problems(path), path


@pytest.mark.parametrize(
    'change, state',
    [
        (dict(length=2, validations={'1': {}, '2': {}}), 'finished, 2 epochs instead of 200'),
        (dict(length=400, validations={'400': {}}), 'finished, 400 epochs instead of 200'),
        (dict(unit='iterations'), 'finished, 200 iterations instead of 200'),
        (dict(validations={'199': {}}), '199 of 200 epochs, 200 epochs instead of 200'),
    ],
)
def test_a_run_of_another_length_does_not_belong_into_results(saved, change, state):
    path, _ = saved
    assert not problems(path)
    content = json.loads(path.read_text())
    content['runs'][1].update(change)
    path.write_text(json.dumps(content))
    assert problems(path) == [f'configs/rm/{R18}.py seed 1: {state}']
