#!/usr/bin/env python
"""The paper's ablations: a base config, a few settings that differ, several seeds; what is finished is not repeated.

A run's folder is ``<root>/<sweep>/<setting>/<value>/seed<N>``.
"""

import argparse
import os
import re
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, Tuple, Union

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

from mmengine.config import Config
from rich.console import Console
from rich.table import Table

from mmrm.cli import jobs
from mmrm.cli.options import KeyValues, Parser, natural, positive
from mmrm.report.page import try_report
from mmrm.report.published import SETTINGS, SWEEPS
from mmrm.utils.config import preprocessor_is_beside, preprocessor_of, type_name
from mmrm.utils.errors import UserError, UserValueError, cli
from mmrm.utils.paths import PACKAGE, find_config, home
from mmrm.utils.settings import fingerprint
from tools.runs.options import check_seeds, one_of


@dataclass
class SweepJob(jobs.Job):
    """One training run of a sweep: which sweep, setting and value."""

    sweep: str = ''
    setting: str = ''
    value: str = ''


# ------------------------------------------------------------------------------------------------------------- planning
def plan(
    sweep: str,
    settings: Optional[Sequence[str]] = None,
    seeds: Sequence[int] = (0, 1, 2),
    values: Optional[Sequence[str]] = None,
    root: Optional[Union[str, Path]] = None,
    options: Optional[dict] = None,
    arguments: Sequence[str] = (),
    gpus: Optional[int] = None,
    cpu: bool = False,
) -> List[SweepJob]:
    """The runs of a sweep, none of them started.

    Args:
        sweep (str): One of :data:`SWEEPS`.
        settings (Sequence[str], optional): Of :data:`SETTINGS`, or paths of RecursiveMix configs. Defaults to None,
            those of the paper.
        seeds (Sequence[int]): Defaults to (0, 1, 2): the paper's CIFAR rows are means of three runs.
        values (Sequence[str], optional): Some of the sweep's values. Defaults to None, all.
        root (str | Path, optional): Folder of the sweeps. Defaults to None, ``work_dirs/sweep`` of the project.
        options (dict, optional): Settings for all runs, ``{'a.b': value}``. Defaults to None.
        arguments (Sequence[str]): Options of train.py for all runs. Defaults to ().
        gpus (int, optional): Processes of a run. Defaults to None: as many as the config's name says, 1 on the CPU.
        cpu (bool): Whether the runs are for the CPU. Defaults to False.

    Raises:
        UserError: If a name is unknown, or a folder holds a run with other settings.
    """
    chosen = SWEEPS[one_of('sweep', sweep, list(SWEEPS))]
    values = [one_of(f'value of {sweep}', _plain(value), list(chosen.values)) for value in values or chosen.values]
    check_seeds(seeds)
    if gpus is not None and gpus < 1:
        raise UserValueError(f'gpus={gpus} must be 1 or more')
    root = Path(root).expanduser().absolute() if root else home() / 'work_dirs' / 'sweep'
    runs = []
    for setting in dict.fromkeys(settings or chosen.settings):
        config, name = _find_setting(setting)
        width = gpus or (1 if cpu else _gpus_of(config))
        beside = preprocessor_is_beside(_rm_config(config, options or {}))
        for value in dict.fromkeys(values):
            knobs = _moved_out(chosen.values[value]) if beside else chosen.values[value]
            twice = sorted(set(knobs) & set(options or {}))
            if twice:
                raise UserValueError(f'--cfg-options cannot set {", ".join(twice)}: the sweep {sweep} sets it')
            merged = {**knobs, **(options or {})}
            cfg = jobs.merged_config(config, merged)
            for seed in dict.fromkeys(seeds):
                run = SweepJob(
                    f'{sweep}={value} {name} seed {seed}',
                    config,
                    merged,
                    seed,
                    root / sweep / name / value / f'seed{seed}',
                    int(cfg.train_cfg.max_epochs),
                    list(arguments),
                    width,
                    fingerprint(cfg, seed),
                    sweep=sweep,
                    setting=name,
                    value=value,
                )
                jobs.check_same(run)
                runs.append(run)
    return runs


def _plain(value) -> str:
    """'1.0' and 1 as '1', other words as they are."""
    try:
        return f'{float(value):g}'
    except ValueError:
        return str(value)


def _find_setting(setting: str) -> Tuple[Path, str]:
    if setting in SETTINGS:
        return find_config(SETTINGS[setting]), setting
    if not setting.endswith('.py'):
        one_of('setting', setting, [*SETTINGS, 'the path of a config'])
    config = find_config(setting)
    return config, config.stem


def _gpus_of(config: Path) -> int:
    found = re.search(r'_(\d+)xb\d+', config.stem)
    return int(found[1]) if found else 1


def _rm_config(config: Path, options: dict) -> Config:
    """A config of RecursiveMix with options merged in."""
    cfg = jobs.merged_config(config, options)
    augments = (preprocessor_of(cfg).get('batch_augments') or {}).get('augments')
    if not isinstance(augments, dict) or type_name(augments) != 'RecursiveMix':
        raise UserValueError(f'config {config} is not one of RecursiveMix: its batch augment is another')
    return cfg


def _moved_out(knobs: dict) -> dict:
    """The settings of a value for a config that has its preprocessor beside the model."""
    inside = 'model.data_preprocessor.'
    return {key[len('model.') :] if key.startswith(inside) else key: value for key, value in knobs.items()}


# ---------------------------------------------------------------------------------------------------------------- Slurm
class SlurmJob:
    """What Slurm runs: one run. A job that is preempted or out of time goes back into the queue and resumes."""

    def __init__(self, run: SweepJob):
        self.run = run

    def __call__(self) -> str:
        # Jobs that share a node must not share a port.
        state = jobs.train(self.run, dict(PORT=str(20000 + int(os.environ.get('SLURM_JOB_ID', 0)) % 20000)))
        if state.startswith('failed'):
            raise RuntimeError(f'{self.run.name}: {state}')
        return state

    def checkpoint(self):
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run_on_slurm(
    runs: Sequence[SweepJob],
    jobs: Optional[int] = None,
    cpu: bool = False,
    parameters: Optional[dict] = None,
    cluster: str = 'slurm',
) -> List[Tuple[SweepJob, str]]:
    """Submit the unfinished runs as one Slurm job array. A run that is queued twice trains once.

    Args:
        runs (Sequence[SweepJob]): From :func:`plan`.
        jobs (int, optional): How many at a time at most. Defaults to None, no limit.
        cpu (bool): Whether to ask for no GPUs. Defaults to False.
        parameters (dict, optional): submitit's: ``partition``, ``timeout_min``, ``cpus_per_task``, ``mem_gb`` and
            further options of sbatch. Defaults to None, which gives a job a day; out of time, it is queued again.
        cluster (str): submitit's name of the cluster. Defaults to 'slurm'.

    Returns:
        list[tuple[SweepJob, str]]: The submitted runs and their job ids.
    """
    try:
        import submitit
    except ImportError as error:
        raise UserError('--slurm needs submitit, which is not installed: pip install submitit') from error
    waiting = [run for run in runs if run.state() not in ('finished', 'running')]
    if not waiting:
        return []
    shared = ('name', 'timeout_min', 'mem_gb', 'nodes', 'cpus_per_task', 'gpus_per_node', 'tasks_per_node')
    settings = dict(name=f'rm-{runs[0].sweep}', nodes=1, tasks_per_node=1, timeout_min=24 * 60)
    if not cpu:
        settings['gpus_per_node'] = max(run.gpus for run in waiting)
    if jobs:
        settings['slurm_array_parallelism'] = jobs
    for key, value in (parameters or {}).items():
        settings[key if key in shared or key.startswith('slurm_') else f'slurm_{key}'] = value
    # A checkout that is not installed is found by the job as well.
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get('PYTHONPATH')]))
    try:
        folder = waiting[0].work_dir.parents[2] / 'slurm'
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster, slurm_max_num_timeout=1000)
        executor.update_parameters(**settings)
    except (AssertionError, NameError, TypeError, ValueError, RuntimeError) as error:
        raise UserValueError(f'--slurm: {error}') from error
    with executor.batch():
        submitted = [executor.submit(SlurmJob(run)) for run in waiting]
    return [(run, job.job_id) for run, job in zip(waiting, submitted)]


def summary(runs: Sequence[SweepJob]) -> List[dict]:
    """Best and last top-1 accuracy of each run, in percent, or None; and where it stands."""
    rows = []
    for run in runs:
        found = run.validations()
        rows.append(
            dict(
                setting=run.setting,
                value=run.value,
                seed=run.seed,
                state=run.state(),
                best=max(found.values()) if found else None,
                last=found[max(found)] if found else None,
            )
        )
    return rows


def parser() -> argparse.ArgumentParser:
    known = '; '.join(f'{name}: {", ".join(each.values)}' for name, each in SWEEPS.items())
    parser = Parser(description=__doc__, epilog=f'Sweeps: {known}.', allow_abbrev=False)
    parser.add_argument('sweep', help=f'one of {", ".join(SWEEPS)}')
    parser.add_argument(
        '--setting',
        nargs='+',
        metavar='SETTING',
        help=f'where to run it: some of {", ".join(SETTINGS)}, or RecursiveMix configs (default: those of the paper)',
    )
    parser.add_argument('--values', nargs='+', metavar='VALUE', help='some of its values (default: all)')
    parser.add_argument('--seeds', nargs='+', type=natural, default=[0, 1, 2], metavar='N', help='default: 0 1 2')
    parser.add_argument('--work-dir', help='holds <sweep>/<setting>/<value>/seed<N> (default: work_dirs/sweep)')
    parser.add_argument('--jobs', type=positive, metavar='N', help='runs at a time (default: 1; with --slurm no limit)')
    parser.add_argument('--gpus', type=positive, metavar='N', help='GPUs of a run (default: as its config is named)')
    parser.add_argument('--device', choices=('cuda', 'cpu'), help='as in train.py')
    parser.add_argument('--amp', action='store_true', help='as in train.py')
    parser.add_argument('--auto-scale-lr', action='store_true', help='as in train.py')
    parser.add_cfg_options('settings for all runs, as in train.py')
    parser.add_argument(
        '--slurm',
        nargs='*',
        action=KeyValues,
        metavar='KEY=VALUE',
        help='submit to Slurm (needs submitit), with options such as partition=gpu timeout_min=1440 cpus_per_task=8',
    )
    parser.add_argument('--dry-run', action='store_true', help='print the commands, start nothing')
    return parser


def show(console: Console, runs: list) -> None:
    """A table of where the runs stand."""
    table = Table('setting', 'value', 'seed', 'state', 'best top-1', 'last top-1')
    for row in summary(runs):
        numbers = ['' if row[key] is None else f'{row[key]:.2f}' for key in ('best', 'last')]
        table.add_row(row['setting'], row['value'], str(row['seed']), row['state'], *numbers)
    console.print(table)


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends the runs as Ctrl-C does
    console = Console(soft_wrap=True)
    given = [option for option, on in (('--amp', args.amp), ('--auto-scale-lr', args.auto_scale_lr)) if on]
    given += ['--device', args.device] if args.device else []
    cpu = (args.device or os.environ.get('MMRM_DEVICE')) == 'cpu'
    runs = plan(
        args.sweep, args.setting, args.seeds, args.values, args.work_dir, args.cfg_options, given, args.gpus, cpu
    )
    if args.dry_run:
        for run in runs:
            console.print(f'{run.state()}: {shlex.join(run.command())}', markup=False, highlight=False)
        return
    if args.slurm is not None:
        for run, job in run_on_slurm(runs, args.jobs, cpu, args.slurm):
            console.print(f'job {job}: {run.name}', markup=False, highlight=False)
        show(console, runs)
        return
    waiting = [run for run in runs if not run.finished()]
    console.print(f'{len(runs)} runs, {len(runs) - len(waiting)} of them finished already', highlight=False)
    states = jobs.run_all(waiting, args.jobs or 1, cpu)
    show(console, runs)
    try_report(runs[0].work_dir.parents[2])
    if set(states.values()) - {'finished'}:
        sys.exit(1)


if __name__ == '__main__':
    main()
