"""The paper's ablations: a base config, a few settings that differ, several seeds; what is finished is not repeated.

A run's folder is ``<root>/<sweep>/<setting>/<value>/seed<N>``.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, Union

from mmengine.config import Config

from ..utils.config import preprocessor_is_beside, preprocessor_of, type_name
from ..utils.errors import UserError, UserValueError
from ..utils.paths import PACKAGE, find_config, home
from . import jobs
from .jobs import one_of, train

AUGMENTS = 'model.data_preprocessor.batch_augments.augments'

# Where an ablation can run. The paper's four; the last one is small enough for a CPU.
SETTINGS = {
    'cifar10-pyramidnet200': 'configs/rm/pyramidnet200_1xb64_cifar10.py',
    'cifar100-resnet18': 'configs/rm/resnet18_2xb64_cifar100.py',
    'cifar100-pyramidnet164': 'configs/rm/pyramidnet164_2xb64_cifar100.py',
    'in1k-resnet50': 'configs/rm/resnet50_8xb64_in1k.py',
    'cifar10-resnet18-w16': 'configs/rm/resnet18-w16_2xb64_cifar10.py',
}


@dataclass(frozen=True)
class Sweep:
    """One ablation: what is set for each of its values, and the settings that the paper has it in."""

    values: Dict[str, dict]
    settings: Tuple[str, ...]


_CIFAR = ('cifar10-pyramidnet200', 'cifar100-resnet18')
_ALL = (*_CIFAR, 'in1k-resnet50')
SWEEPS = {
    'alpha': Sweep({f'{v:g}': {f'{AUGMENTS}.alpha': v} for v in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)}, _CIFAR),
    'omega': Sweep(
        {f'{v:g}': {'model.head.omega': v} for v in (0.0, 0.01, 0.05, 0.08, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)}, _CIFAR
    ),
    'components': Sweep(
        {
            # CutMix with resizing instead of cutting: its lambda, its permutation and its probability on CIFAR.
            'rs': {
                f'{AUGMENTS}.type': 'ResizeFillMix',
                f'{AUGMENTS}.alpha': 1.0,
                'model.data_preprocessor.batch_augments.probs': 0.5,
                'model.head.omega': 0.0,
            },
            'rs+his': {'model.head.omega': 0.0},
            'rs+his+cl': {},
        },
        ('cifar100-pyramidnet164',),
    ),
    'fc': Sweep({'unshared': {'model.head.share_fc': False}, 'shared': {'model.head.share_fc': True}}, _ALL),
    'interpolation': Sweep({v: {f'{AUGMENTS}.interpolation': v} for v in ('nearest', 'bilinear')}, _ALL),
}


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
    jobs.check_seeds(seeds)
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
                    jobs.fingerprint(cfg, seed, merged),
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
        raise UserValueError(f'config {config} is not one of RecursiveMix: {AUGMENTS}.type is not RecursiveMix')
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
        state = train(self.run, dict(PORT=str(20000 + int(os.environ.get('SLURM_JOB_ID', 0)) % 20000)))
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
