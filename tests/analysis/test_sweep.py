import importlib.util
import os
import stat
import sys
from pathlib import Path

import pytest
from mmengine.config import Config
from mmpretrain.registry import MODELS
from stand_in import starts, use_stand_in
from tiny_run import BESIDE, write_run

import mmrm
from mmrm.cli import jobs, train
from mmrm.utils.config import read_config
from mmrm.utils.errors import UserError
from tools.analysis import sweep

ROOT = Path(__file__).parents[2]
TOOL = ROOT / 'tools' / 'analysis' / 'sweep.py'


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs of three epochs whose trainer is a stand-in; a file beside them makes it wait or fail."""
    use_stand_in(tmp_path, monkeypatch)
    return sweep.plan('fc', ['cifar10-resnet18-w16'], [0], root=tmp_path / 'runs', options={'train_cfg.max_epochs': 3})


# ------------------------------------------------------------------------------------------------------------- planning
def model_of(run):
    """The preprocessor's augment and the head of a run, through train.py's own command line."""
    args = train.parser().parse_args(run.command()[2:])
    cfg = Config.fromfile(run.config)
    cfg.merge_from_dict(args.cfg_options)
    assert args.seed == run.seed and args.work_dir == str(run.work_dir) and args.resume == 'auto'
    return MODELS.build(cfg.model.data_preprocessor).batch_augments, MODELS.build(cfg.model.head)


@pytest.mark.parametrize(
    'name, attribute',
    [
        ('alpha', lambda augments, head: f'{augments.augments[0].alpha:g}'),
        ('omega', lambda augments, head: f'{head.omega:g}'),
        ('fc', lambda augments, head: 'shared' if head.share_fc else 'unshared'),
        ('interpolation', lambda augments, head: augments.augments[0].interpolation),
    ],
)
def test_a_value_reaches_the_model_and_nothing_else_changes(name, attribute, tmp_path):
    def state(augments, head):
        augment = augments.augments[0]
        return dict(
            kind=type(augment),
            alpha=augment.alpha,
            interpolation=augment.interpolation,
            probs=augments.probs,
            omega=head.omega,
            share_fc=head.share_fc,
        )

    base = dict(kind=mmrm.RecursiveMix, alpha=0.5, interpolation='nearest', probs=None, omega=0.1, share_fc=False)
    runs = sweep.plan(name, ['cifar10-resnet18-w16'], seeds=[7], root=tmp_path)
    for run in runs:
        model = model_of(run)
        assert attribute(*model) == run.value
        assert len([key for key, value in state(*model).items() if value != base[key]]) <= 1
    assert [run.value for run in runs] == list(sweep.SWEEPS[name].values)


def test_a_plan_has_a_folder_a_run_and_as_many_gpus_as_the_recipe(tmp_path):
    runs = sweep.plan('alpha', seeds=[0, 1, 2], root=tmp_path)
    assert len({run.work_dir for run in runs}) == len(runs) == 9 * 3 * 2
    assert {(run.setting, run.gpus, run.epochs) for run in runs} == {
        ('cifar10-pyramidnet200', 1, 300),
        ('cifar100-resnet18', 2, 200),
    }
    assert runs[0].work_dir == tmp_path / 'alpha' / 'cifar10-pyramidnet200' / '0.1' / 'seed0'
    assert {run.gpus for run in sweep.plan('fc', ['in1k-resnet50'], root=tmp_path)} == {8}
    assert {run.gpus for run in sweep.plan('fc', ['in1k-resnet50'], root=tmp_path, cpu=True)} == {1}


@pytest.mark.parametrize(
    'arguments, told',
    [
        (dict(sweep='beta'), "unknown sweep 'beta'; allowed: alpha, omega, components, fc, interpolation"),
        (dict(settings=['mnist']), "unknown setting 'mnist'; allowed: cifar10-pyramidnet200, cifar100-resnet18"),
        (dict(settings=['configs/rm/nothing.py']), 'does not exist'),
        (dict(settings=['configs/baseline/resnet18_2xb64_cifar100.py']), 'is not one of RecursiveMix'),
        (dict(values=['0.55']), r"unknown value of alpha '0.55'; allowed: 0.1, 0.2"),
        (dict(seeds=[-1]), 'seed -1'),
        (dict(gpus=0), 'gpus=0'),
        (
            dict(options={'model.data_preprocessor.batch_augments.augments.alpha': 0.5}),
            'cannot set .*alpha: the sweep alpha sets it',
        ),
    ],
)
def test_a_wrong_request_lists_what_is_allowed(arguments, told, tmp_path):
    with pytest.raises(UserError, match=told):
        sweep.plan(**{'sweep': 'alpha', 'root': tmp_path, **arguments})
    assert not any(tmp_path.iterdir())


def test_a_config_of_ones_own_may_have_its_preprocessor_beside_the_model(tmp_path):
    config = write_run(tmp_path, more=BESIDE)
    for run in sweep.plan('alpha', [str(config)], [0], ['0.1', '0.9'], tmp_path / 'runs'):
        args = train.parser().parse_args(run.command()[2:])
        cfg = read_config(run.config, args.cfg_options)
        assert 'data_preprocessor' not in cfg.model
        assert f'{cfg.data_preprocessor.batch_augments.augments["alpha"]:g}' == run.value
    with pytest.raises(UserError, match=r'cannot set data_preprocessor\..*alpha: the sweep alpha sets it'):
        sweep.plan(
            'alpha',
            [str(config)],
            [0],
            root=tmp_path / 'runs',
            options={'data_preprocessor.batch_augments.augments.alpha': 0.5},
        )


# -------------------------------------------------------------------------------------------------------------- running
def test_other_settings_in_the_same_folder_are_an_error_and_nothing_is_lost(runs, tmp_path):
    jobs.train(runs[0])
    before = sorted(tmp_path.rglob('*'))
    with pytest.raises(UserError, match=r'holds a run with other settings.*epochs 3 there, 200 here'):
        sweep.plan('fc', ['cifar10-resnet18-w16'], [0], root=tmp_path / 'runs')
    assert sorted(tmp_path.rglob('*')) == before
    same = sweep.plan('fc', ['cifar10-resnet18-w16'], [0], root=tmp_path / 'runs', options={'train_cfg.max_epochs': 3})
    assert same[0].finished()


# ---------------------------------------------------------------------------------------------------------------- Slurm
def test_slurm_without_submitit_says_what_to_install(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, 'submitit', None)
    with pytest.raises(UserError, match='pip install submitit'):
        sweep.run_on_slurm(runs)


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """An ``sbatch`` that takes jobs and runs none."""
    pytest.importorskip('submitit')
    for name in ('sbatch', 'srun', 'sacct'):
        path = tmp_path / 'bin' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('#!/bin/sh\necho Submitted batch job 1234\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv('PATH', f'{tmp_path / "bin"}{os.pathsep}{os.environ["PATH"]}')
    monkeypatch.setenv('PYTHONPATH', os.environ.get('PYTHONPATH', ''))


def test_unfinished_runs_become_one_job_array(runs, sbatch):
    more = sweep.plan(
        'fc', ['cifar10-resnet18-w16'], [1], root=runs[0].work_dir.parents[3], options={'train_cfg.max_epochs': 3}
    )
    jobs.train(runs[0])
    submitted = sweep.run_on_slurm(runs + more, jobs=2, parameters=dict(partition='gpu', timeout_min=90))
    assert [run for run, _ in submitted] == [runs[1], *more]
    assert [job for _, job in submitted] == ['1234_0', '1234_1', '1234_2']
    (script,) = (runs[0].work_dir.parents[2] / 'slurm').glob('*_submission.sh')
    for line in ('--array=0-2%2', '--partition=gpu', '--time=90', '--gpus-per-node=2', '--nodes=1'):
        assert f'#SBATCH {line}\n' in script.read_text()


def test_a_job_trains_its_run_and_a_second_one_finds_it_done(runs, monkeypatch):
    monkeypatch.setenv('SLURM_JOB_ID', '77')
    assert sweep.SlurmJob(runs[0])() == 'finished' == sweep.SlurmJob(runs[0])()
    assert starts(runs[0]) == [0]
    folder = runs[1].work_dir.parents[1]
    (folder / 'fail-shared').write_text('1')
    with pytest.raises(RuntimeError, match=r'fc=shared .*no data'):
        sweep.SlurmJob(runs[1])()


# ------------------------------------------------------------------------------------------------------------- the tool
@pytest.fixture
def tool(monkeypatch):
    """Runs tools/analysis/sweep.py here; the runs that it starts are processes of their own. Returns its exit code."""
    monkeypatch.setattr(sys, 'path', list(sys.path))
    spec = importlib.util.spec_from_file_location('sweep_tool', TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', ['sweep.py', *map(str, arguments)])
        try:
            module.main()
        except SystemExit as stop:
            return stop.code
        return 0

    return run


def test_a_dry_run_prints_the_commands_and_starts_nothing(tmp_path, tool, capsys):
    assert tool('interpolation', '--seeds', 0, '--work-dir', tmp_path / 'w', '--dry-run') == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and all(line.startswith('new: ') for line in lines)
    assert lines[5].endswith('--cfg-options model.data_preprocessor.batch_augments.augments.interpolation=bilinear')
    assert not (tmp_path / 'w').exists()
