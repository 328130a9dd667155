"""The paper's ablations: a base config, a few settings that differ, several seeds; what is finished is not repeated.

A run is ``tools/train.py`` in a folder of its own, ``<root>/<sweep>/<setting>/<value>/seed<N>``. It is finished when
its log holds the validation of its last epoch; an interrupted one goes on from its last checkpoint.
"""
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Union

from mmengine.config import Config

from . import logs
from .errors import UserError, UserFileError, UserTypeError, UserValueError
from .paths import PACKAGE, find_config, home, shipped

AUGMENTS = 'model.data_preprocessor.batch_augments.augments'
METRIC = 'accuracy/top1'
MISTAKE = ' (a mistake in the input)'  # train.py's exit code 2

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
    'alpha': Sweep({f'{v:g}': {f'{AUGMENTS}.alpha': v} for v in (.1, .2, .3, .4, .5, .6, .7, .8, .9)}, _CIFAR),
    'omega': Sweep({f'{v:g}': {'model.head.omega': v} for v in (0., .01, .05, .08, .1, .2, .3, .4, .5, 1.)}, _CIFAR),
    'components': Sweep(
        {
            # CutMix with resizing instead of cutting: its lambda, its permutation and its probability on CIFAR.
            'rs': {
                f'{AUGMENTS}.history': False,
                f'{AUGMENTS}.alpha': 1.,
                'model.data_preprocessor.batch_augments.probs': .5,
                'model.head.omega': 0.
            },
            'rs+his': {'model.head.omega': 0.},
            'rs+his+cl': {},
        }, ('cifar100-pyramidnet164', )),
    'fc': Sweep({'unshared': {'model.head.share_fc': False}, 'shared': {'model.head.share_fc': True}}, _ALL),
    'interpolation': Sweep({v: {f'{AUGMENTS}.interpolation': v} for v in ('nearest', 'bilinear')}, _ALL),
}


@dataclass
class Run:
    """One training run of a sweep.

    Args:
        sweep, setting, value, seed: Which one.
        config (Path): The base config.
        options (dict): What is set in it, ``{'a.b': value}``.
        work_dir (Path): Its folder.
        epochs (int): How long it trains.
        arguments (list[str]): Further options of train.py.
        gpus (int): Processes, one a GPU; 1 on the CPU.
    """
    sweep: str
    setting: str
    value: str
    seed: int
    config: Path
    options: dict
    work_dir: Path
    epochs: int
    arguments: List[str] = field(default_factory=list)
    gpus: int = 1

    @property
    def name(self) -> str:
        return f'{self.sweep}={self.value} {self.setting} seed {self.seed}'

    def describe(self) -> dict:
        """What decides the run's result, to recognise it by when it is met again, in JSON's types."""
        return json.loads(json.dumps(dict(
            config=self.config.name, options=self.options, seed=self.seed, epochs=self.epochs, gpus=self.gpus,
            arguments=self.arguments), default=str))

    def command(self) -> List[str]:
        """The command that trains it, from where it stands."""
        tools = shipped() / 'tools'
        start = [str(tools / 'train.py'), str(self.config)] if self.gpus == 1 else [
            str(tools / 'dist.py'), 'train', str(self.config), str(self.gpus)]
        command = [sys.executable, *start, '--work-dir', str(self.work_dir), '--seed', str(self.seed),
                   '--resume', self.resume_from(), *self.arguments]
        if self.options:
            command += ['--cfg-options', *(f'{key}={value}' for key, value in self.options.items())]
        return command

    def resume_from(self) -> str:
        """'auto', or the last checkpoint but one if the run was stopped between an epoch and its validation.

        mmengine does not validate an epoch that it finds trained, and the best epoch may be that one.
        """
        epoch = self.trained_epochs()
        before = self.work_dir / f'epoch_{epoch - 1}.pth'
        return str(before) if epoch not in self.validations() and before.is_file() else 'auto'

    def validations(self) -> Dict[int, float]:
        """Top-1 accuracy in percent by epoch, from the logs of the run."""
        return {record['step']: float(record[METRIC]) for record in logs.records(self.work_dir) if METRIC in record}

    def finished(self) -> bool:
        """Whether the last epoch is validated."""
        return self.epochs in self.validations()

    def trained_epochs(self) -> int:
        """Epochs that a checkpoint holds."""
        saved = [re.fullmatch(r'epoch_(\d+)\.pth', path.name) for path in self.work_dir.glob('epoch_*.pth')]
        return max((int(match[1]) for match in saved if match), default=0)

    def state(self) -> str:
        """'finished', 'running', 'epoch 7' or 'new'."""
        if self.finished():
            return 'finished'
        if is_locked(self.work_dir):
            return 'running'
        return f'epoch {self.trained_epochs()}' if self.trained_epochs() else 'new'


# ------------------------------------------------------------------------------------------------------------- planning
def one_of(what: str, value: str, allowed: Sequence[str]) -> str:
    """``value``, or an error that lists what is allowed."""
    if value not in allowed:
        raise UserValueError(f'unknown {what} {value!r}; allowed: {", ".join(allowed)}')
    return value


def plan(sweep: str,
         settings: Optional[Sequence[str]] = None,
         seeds: Sequence[int] = (0, 1, 2),
         values: Optional[Sequence[str]] = None,
         root: Optional[Union[str, Path]] = None,
         options: Optional[dict] = None,
         arguments: Sequence[str] = (),
         gpus: Optional[int] = None,
         cpu: bool = False) -> List[Run]:
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
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise UserTypeError(f'seed {seed!r} must be a whole number, 0 or more')
    if gpus is not None and gpus < 1:
        raise UserValueError(f'gpus={gpus} must be 1 or more')
    root = Path(root).expanduser().absolute() if root else home() / 'work_dirs' / 'sweep'
    runs = []
    for setting in dict.fromkeys(settings or chosen.settings):
        config, name = _find_setting(setting)
        width = gpus or (1 if cpu else _gpus_of(config))
        for value in dict.fromkeys(values):
            knobs = chosen.values[value]
            twice = sorted(set(knobs) & set(options or {}))
            if twice:
                raise UserValueError(f'--cfg-options cannot set {", ".join(twice)}: the sweep {sweep} sets it')
            merged = {**knobs, **(options or {})}
            epochs = _epochs_of(config, merged)
            for seed in dict.fromkeys(seeds):
                run = Run(sweep, name, value, seed, config, merged, root / sweep / name / value / f'seed{seed}', epochs,
                          list(arguments), width)
                _check_same(run)
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


def _epochs_of(config: Path, options: dict) -> int:
    cfg = Config.fromfile(config)
    batch_augments = cfg.model.get('data_preprocessor', {}).get('batch_augments') or {}
    augments = batch_augments.get('augments')
    if not isinstance(augments, dict) or augments.get('type') != 'RecursiveMix':
        raise UserValueError(f'config {config} is not one of RecursiveMix: {AUGMENTS}.type is not RecursiveMix')
    try:
        cfg.merge_from_dict(options)
        return int(cfg.train_cfg.max_epochs)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserValueError(f'--cfg-options {options} does not fit config {config}: {error}') from error


def _check_same(run: Run) -> None:
    note = run.work_dir / 'sweep.json'
    if note.is_file():
        known = json.loads(note.read_text())
        differ = [f'{key} {known.get(key)!r} there, {value!r} here' for key, value in run.describe().items()
                  if known.get(key) != value]
        if differ:
            raise UserFileError(f'{run.work_dir} holds a run with other settings ({"; ".join(differ)}). It is left as '
                                'it is; give the same settings, or another --work-dir.')


# -------------------------------------------------------------------------------------------------------------- running
def _try_lock(file) -> bool:
    import fcntl
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(work_dir: Path) -> bool:
    """Whether somebody trains in a folder."""
    path = work_dir / '.sweep.lock'
    if not path.is_file():
        return False
    with open(path) as file:
        return not _try_lock(file)


@contextmanager
def _lock(work_dir: Path):
    """The file that keeps others out of a folder, or None if another holds it. A process that inherits it holds it."""
    with open(work_dir / '.sweep.lock', 'w') as file:
        yield file if _try_lock(file) else None


def train(run: Run, environment: Optional[dict] = None, started: Callable = lambda process: None) -> str:
    """Train one run to its end, or find it finished.

    Args:
        run (Run): The run.
        environment (dict, optional): Variables for its process, besides the current ones. Defaults to None.
        started (callable): Called with the process.

    Returns:
        str: 'finished', 'running' (somebody else is at it) or 'failed: ...'.
    """
    run.work_dir.mkdir(parents=True, exist_ok=True)
    with _lock(run.work_dir) as lock:
        if lock is None:
            return 'running'
        if run.finished():
            return 'finished'
        note = run.work_dir / 'sweep.json'
        if not note.is_file():
            part = note.with_suffix('.part')
            part.write_text(json.dumps(run.describe(), indent=2) + '\n')
            os.replace(part, note)
        with open(run.work_dir / 'console.log', 'ab') as console:
            console.write(f'\n$ {shlex.join(run.command())}\n'.encode())
            console.flush()
            # The lock goes on to the process: should this one be killed, its run is still known to be running.
            process = subprocess.Popen(
                run.command(), stdout=console, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})}, pass_fds=[lock.fileno()])
            started(process)
            code = process.wait()
    if code == 0 and run.finished():
        return 'finished'
    lines = (run.work_dir / 'console.log').read_text(errors='replace').strip().splitlines()
    told = [line for line in lines if line.startswith('error: ')][-1:] or lines[-1:]
    why = told[0] if told else f'exit code {code}'
    return f'failed: {why}' + (MISTAKE if code == 2 else '')


def run_here(runs: Sequence[Run],
             jobs: int = 1,
             cpu: bool = False,
             report: Callable[[Run, str], None] = lambda run, state: None,
             tick: Callable[[], None] = lambda: None) -> Dict[str, str]:
    """Train the runs on this machine, ``jobs`` at a time.

    A run that fails does not stop the others; a mistake in the input, such as missing data, does, as they share it. On
    an interrupt the running ones are ended; the next call takes them up again.

    Args:
        runs (Sequence[Run]): From :func:`plan`.
        jobs (int): How many at a time. Each has its own GPUs. Defaults to 1.
        cpu (bool): Whether to train on the CPU. Defaults to False.
        report (callable): Called with a run and its state: 'started', or what :func:`train` returned.
        tick (callable): Called about once a second.

    Returns:
        dict[str, str]: The state of each run, by name: 'finished', 'running', 'failed: ...' or 'not started'.
    """
    environments = _environments(jobs, max((run.gpus for run in runs), default=1), cpu)
    states = {run.name: 'not started' for run in runs}
    processes, stop, interrupted = [], threading.Event(), threading.Event()

    def work(run: Run) -> None:
        if stop.is_set():
            return
        environment = environments.pop()
        report(run, 'started')
        try:
            states[run.name] = train(run, environment, processes.append)
        except OSError as error:
            states[run.name] = f'failed: {error}'
        environments.append(environment)
        if states[run.name].endswith(MISTAKE):
            stop.set()
        if not interrupted.is_set():
            report(run, states[run.name])

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(work, run) for run in runs]
        try:
            while not all(future.done() for future in futures):
                time.sleep(1)
                tick()
        except BaseException:
            interrupted.set()
            stop.set()
            for process in processes:
                if process.poll() is None:
                    process.terminate()
            raise
        for future in futures:
            future.result()
    return states


def _environments(jobs: int, gpus: int, cpu: bool) -> List[dict]:
    """The variables of each of ``jobs`` processes: its threads, or its GPUs and its port."""
    if jobs < 1:
        raise UserValueError(f'jobs={jobs} must be 1 or more')
    if cpu:
        threads = os.environ.get('OMP_NUM_THREADS') or str(max(1, (os.cpu_count() or 1) // jobs))
        return [dict(OMP_NUM_THREADS=threads) for _ in range(jobs)]
    if jobs == 1:
        return [{}]
    import torch
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    devices = visible.split(',') if visible else [str(index) for index in range(torch.cuda.device_count())]
    if len(devices) < jobs * gpus:
        raise UserValueError(f'{jobs} runs at a time, each on {gpus} GPU(s): that needs {jobs * gpus}, and there are '
                             f'{len(devices)}')
    return [dict(CUDA_VISIBLE_DEVICES=','.join(devices[slot * gpus:(slot + 1) * gpus]), PORT=str(29500 + slot))
            for slot in range(jobs)]


# ---------------------------------------------------------------------------------------------------------------- Slurm
class SlurmJob:
    """What Slurm runs: one run. A job that is preempted or out of time goes back into the queue and resumes."""

    def __init__(self, run: Run):
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


def run_on_slurm(runs: Sequence[Run],
                 jobs: Optional[int] = None,
                 cpu: bool = False,
                 parameters: Optional[dict] = None,
                 cluster: str = 'slurm') -> List[Tuple[Run, str]]:
    """Submit the unfinished runs as one Slurm job array. A run that is queued twice trains once.

    Args:
        runs (Sequence[Run]): From :func:`plan`.
        jobs (int, optional): How many at a time at most. Defaults to None, no limit.
        cpu (bool): Whether to ask for no GPUs. Defaults to False.
        parameters (dict, optional): submitit's: ``partition``, ``timeout_min``, ``cpus_per_task``, ``mem_gb`` and
            further options of sbatch. Defaults to None, which gives a job a day; out of time, it is queued again.
        cluster (str): submitit's name of the cluster. Defaults to 'slurm'.

    Returns:
        list[tuple[Run, str]]: The submitted runs and their job ids.
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


def summary(runs: Sequence[Run]) -> List[dict]:
    """Best and last top-1 accuracy of each run, in percent, or None; and where it stands."""
    rows = []
    for run in runs:
        found = run.validations()
        rows.append(dict(setting=run.setting, value=run.value, seed=run.seed, state=run.state(),
                         best=max(found.values()) if found else None, last=found[max(found)] if found else None))
    return rows
