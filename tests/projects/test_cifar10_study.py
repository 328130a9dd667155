"""The matrix of the CIFAR-10 experiment, its file of results, and the command that fills it."""

import functools
import json
import multiprocessing
import signal

import pytest
from mmengine.config import Config
from stand_in import use_stand_in
from zoo_run import call_main

from mmrm.cli import train
from mmrm.engine import optim_wrapper
from mmrm.utils.errors import UserError
from mmrm.utils.paths import shipped
from projects.cifar10 import run as experiment


def load(run):
    """The config that train.py gets, through its own command line."""
    args = train.parser().parse_args(run.command()[2:])
    assert args.seed == run.seed
    cfg = Config.fromfile(run.config)
    cfg.merge_from_dict(args.cfg_options)
    return cfg


# ----------------------------------------------------------------------------------------------------------- the matrix
def test_the_matrix_has_five_methods_and_the_seeds_of_the_protocol(tmp_path):
    runs = experiment.plan(root=tmp_path)
    assert {method: [run.seed for run in runs if run.method == method] for method in experiment.METHODS} == {
        'baseline': [0, 1, 2, 3, 4],
        'cutmix': [0, 1, 2, 3, 4],
        'rm': [0, 1, 2, 3, 4],
        'mixup': [0, 1, 2],
        'rm-omega0': [0, 1, 2],
    }
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)  # whole seeds first
    assert len({run.work_dir for run in runs}) == len({run.fingerprint for run in runs}) == 21


def test_runs_differ_in_the_method_and_the_images_of_their_seed_only(tmp_path):
    runs = experiment.plan(root=tmp_path)
    seen = {}
    for run in runs:
        cfg = load(run)
        part = tuple(cfg.train_dataloader.dataset.pop('per_class'))
        assert seen.setdefault(run.seed, part) == part
        shared = {key: value for key, value in cfg.to_dict().items() if key not in ('model', 'custom_hooks')}
        assert shared == seen.setdefault('shared', shared)
        assert cfg.model.backbone == seen.setdefault('backbone', cfg.model.backbone)
        assert cfg.train_dataloader.dataset.split == 'train' and cfg.val_dataloader.dataset.split == 'test'
        assert 'per_class' not in cfg.val_dataloader.dataset  # all test images
        augments = (cfg.model.data_preprocessor.get('batch_augments') or {}).get('augments') or {}
        kinds = dict(mixup='Mixup', cutmix='CutMix', baseline=None)
        assert augments.get('type') == kinds.get(run.method, 'RecursiveMix')
        assert cfg.model.head.get('omega') == {'rm': 0.1, 'rm-omega0': 0.0}.get(run.method)
    parts = [seen[seed] for seed in range(5)]
    assert all(one[1] == other[0] for one, other in zip(parts, parts[1:]))  # side by side, none twice


@pytest.mark.parametrize(
    'arguments, told',
    [
        (dict(seeds=[99]), 'seed 99: every seed has its own .* allowed: 0 to'),
        (dict(seeds=[-1]), 'seed -1'),
        (dict(options={'model.head.omega': 1.0}), 'cannot set model.head.omega: rm-omega0 sets it'),
    ],
)
def test_wrong_arguments_are_named(arguments, told, tmp_path):
    with pytest.raises(UserError, match=told):
        experiment.plan(root=tmp_path, **arguments)


# ---------------------------------------------------------------------------------------------------------- the results
RESULT = dict(method='rm', seed=0, fingerprint='f', epochs=2, test={'2': 60.0}, train={'loss': [2.0, 1.0]}, hours=0.1)


def result(**other):
    return {**RESULT, **other}


def test_a_result_under_other_settings_is_not_put_beside_the_first(tmp_path):
    path = tmp_path / 'r.jsonl'
    experiment.add_result(path, result())
    with pytest.raises(UserError, match='holds a result of rm seed 0 under other settings'):
        experiment.add_result(path, result(fingerprint='g'))
    assert [each['fingerprint'] for each in experiment.read_results(path)] == ['f']


def test_results_of_several_processes_are_all_kept(tmp_path):
    path = tmp_path / 'r.jsonl'
    context = multiprocessing.get_context('fork')
    writers = [context.Process(target=experiment.add_result, args=(path, result(seed=seed))) for seed in range(12)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(each['seed'] for each in experiment.read_results(path)) == list(range(12))


@pytest.mark.parametrize(
    'lines, told',
    [
        (['{"method": "rm"}'], 'line 1 is not a result'),
        ([json.dumps(result()), '{"method'], 'line 2 is not a result'),
        ([json.dumps(result(test={'1': 3.0}))], 'no test of the last epoch'),
        ([json.dumps(result()), json.dumps(result(fingerprint='g'))], 'line 2 repeats rm seed 0'),
        ([json.dumps(result(method='cutout'))], "unknown method 'cutout'; allowed: baseline"),
    ],
)
def test_broken_results_file_is_named_with_its_line(lines, told, tmp_path):
    (tmp_path / 'r.jsonl').write_text('\n'.join(lines))
    with pytest.raises(UserError, match=told):
        experiment.read_results(tmp_path / 'r.jsonl')


def test_the_published_results_are_the_whole_matrix():
    published = shipped() / 'projects' / 'cifar10' / 'experiment.jsonl'
    done = {(result['method'], result['seed']) for result in experiment.read_results(published)}
    assert done == {(run.method, run.seed) for run in experiment.plan()}


# ---------------------------------------------------------------------------------------------------------- the command
@pytest.fixture
def tool(tmp_path, monkeypatch, capsys):
    """The command with a stand-in for train.py; returns exit code, output and errors."""
    use_stand_in(tmp_path, monkeypatch, interval=10)
    monkeypatch.setattr(optim_wrapper, 'bfloat16_is_fast', lambda: True)
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    before = signal.getsignal(signal.SIGTERM)
    yield functools.partial(call_main, experiment.main, capsys, '--work-dir', tmp_path / 'w')
    signal.signal(signal.SIGTERM, before)


def test_command_runs_missing_results_and_writes_each(tool, tmp_path):
    few = ('--methods', 'baseline', 'rm', '--seeds', 0, 1, '--jobs', 2)
    code, printed, _ = tool(*few)
    assert code == 0 and '4 runs, 0 of them finished' in printed, printed
    assert 'report.html' in printed and (tmp_path / 'w' / 'report.html').is_file()
    results = experiment.read_results(tmp_path / 'w' / 'results.jsonl')
    assert sorted((r['method'], r['seed']) for r in results) == [('baseline', 0), ('baseline', 1), ('rm', 0), ('rm', 1)]
    for found in results:
        epochs = found['epochs']
        assert found['test'] == {epoch: 10.0 * epoch for epoch in range(10, epochs + 1, 10)}
        assert found['train']['loss'][:2] == [1.0, 0.5] and len(found['train']['loss']) == epochs
        assert found['hours'] == pytest.approx(39 * epochs * 9 / 3600, abs=1e-3)
        assert ('kl' in found['train']) == (found['method'] == 'rm')
    code, printed, _ = tool(*few)
    assert code == 0 and '4 runs, 4 of them finished' in printed
    assert (tmp_path / 'w' / 'rm' / 'seed0' / 'starts').read_text().split() == ['0']


def test_cpu_without_bfloat16_suggests_float32(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(optim_wrapper, 'bfloat16_is_fast', lambda: False)
    code, _, error = tool('--methods', 'rm', '--seeds', 0)
    assert code == 2 and '--float32' in error and not (tmp_path / 'w').exists()
    assert tool('--methods', 'rm', '--seeds', 0, '--float32')[0] == 0
    (found,) = experiment.read_results(tmp_path / 'w' / 'results.jsonl')
    assert found['settings'] == experiment.FLOAT32
