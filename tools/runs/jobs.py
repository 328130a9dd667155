"""Training runs as jobs: each ``tools/train.py`` in a folder of its own, several side by side, none of them twice.

A run is finished when its log holds the validation of its last epoch; an interrupted one goes on from its last
checkpoint, and train.py makes up for a validation that was cut off.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

from mmengine.config import Config
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mmrm.engine.signals import EXIT_STOPPED
from mmrm.report.runs import merge_sessions
from mmrm.utils.config import checkpoint_out_dir, read_config
from mmrm.utils.errors import UserError, UserFileError, UserTypeError, UserValueError
from mmrm.utils.files import RUN_LOCK, LockedError, lock_holder, locked, write_text
from mmrm.utils.paths import shipped
from tools.runs.processes import clock, end, on_cpu

METRIC = 'accuracy/top1'
JOB_LOCK = '.job.lock'  # of the one who starts a run; the run itself has RUN_LOCK
MISTAKE = ' (a mistake in the input)'  # train.py's exit code 2


@dataclass
class Job:
    """One training run.

    Args:
        name (str): What to call it.
        config (Path): The base config.
        options (dict): What is set in it, ``{'a.b': value}``.
        seed (int): Its seed.
        work_dir (Path): Its folder.
        epochs (int): How long it trains.
        arguments (list[str]): Further options of train.py.
        gpus (int): Processes, one a GPU; 1 on the CPU.
        fingerprint (str): Of all settings that decide the result (:func:`mmrm.utils.settings.fingerprint`).
        effort (float): How long an epoch takes beside those of other jobs, to tell the time that is left.
    """

    name: str
    config: Path
    options: dict
    seed: int
    work_dir: Path
    epochs: int
    arguments: List[str] = field(default_factory=list)
    gpus: int = 1
    fingerprint: str = ''
    effort: float = 1.0

    def describe(self) -> dict:
        """What decides the run's result, to recognise it by when it is met again, in JSON's types."""
        return json.loads(
            json.dumps(
                dict(
                    config=self.config.name,
                    options=self.options,
                    seed=self.seed,
                    epochs=self.epochs,
                    gpus=self.gpus,
                    arguments=self.arguments,
                    fingerprint=self.fingerprint,
                ),
                default=str,
            )
        )

    def command(self) -> List[str]:
        """The command that trains it, from where it stands."""
        tools = shipped() / 'tools'
        start = (
            [str(tools / 'train.py'), str(self.config)]
            if self.gpus == 1
            else [str(tools / 'train.py'), str(self.config), '--gpus', str(self.gpus)]
        )
        command = [
            sys.executable,
            *start,
            '--work-dir',
            str(self.work_dir),
            '--seed',
            str(self.seed),
            '--resume',
            'auto',
            *self.arguments,
        ]
        if self.options:
            command += ['--cfg-options', *(f'{key}={_word(value)}' for key, value in self.options.items())]
        return command

    def validations(self) -> Dict[int, float]:
        """Top-1 accuracy in percent by epoch, from the logs of the run."""
        logged = merge_sessions(self.work_dir).validations
        return {step: float(metrics[METRIC]) for step, metrics in logged.items() if METRIC in metrics}

    def finished(self) -> bool:
        """Whether the last epoch is validated."""
        return self.epochs in self.validations()

    def checkpoints(self) -> Dict[int, Path]:
        """The checkpoint of each epoch that has one."""
        named = ((re.fullmatch(r'epoch_(\d+)\.pth', path.name), path) for path in self.work_dir.glob('epoch_*.pth'))
        return {int(match[1]): path for match, path in named if match}

    def trained_epochs(self) -> int:
        """Epochs that a checkpoint holds."""
        return max(self.checkpoints(), default=0)

    def logged_epochs(self) -> int:
        """Epochs that are done according to the log."""
        return max(merge_sessions(self.work_dir).trained, self.trained_epochs())

    def state(self) -> str:
        """'finished', 'running', 'epoch 7' or 'new'."""
        if self.finished():
            return 'finished'
        if is_locked(self.work_dir):
            return 'running'
        return f'epoch {self.trained_epochs()}' if self.trained_epochs() else 'new'


def _word(value) -> str:
    """A value as mmengine's ``--cfg-options`` reads it: a list without blanks."""
    return str(list(value)).replace(' ', '') if isinstance(value, (list, tuple)) else str(value)


def one_of(what: str, value: str, allowed: Sequence[str]) -> str:
    """``value``, or an error that lists what is allowed."""
    if value not in allowed:
        raise UserValueError(f'unknown {what} {value!r}; allowed: {", ".join(allowed)}')
    return value


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise unless all are whole numbers from 0 on."""
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise UserTypeError(f'seed {seed!r} must be a whole number, 0 or more')


def merged_config(config: Path, options: dict) -> Config:
    """A config with options merged in, or an error that names both, also if it has no number of epochs."""
    cfg = read_config(config, options)
    try:
        int(cfg.train_cfg.max_epochs)
    except (AttributeError, TypeError, ValueError) as error:
        found = (cfg.get('train_cfg') or {}).get('max_epochs')
        raise UserValueError(
            f'train_cfg.max_epochs must be a whole number, not {found!r} (config {config} and its options)'
        ) from error
    if checkpoint_out_dir(cfg):
        raise UserValueError(
            f'config {config}: default_hooks.checkpoint.out_dir would be one folder for several runs; '
            'leave it out, --work-dir moves them all.'
        )
    return cfg


def check_same(run: Job) -> None:
    """Raise if the run's folder holds a run with other settings."""
    note = run.work_dir / 'run.json'
    if note.is_file():
        known = json.loads(note.read_text())
        differ = [
            f'{key} {known.get(key)!r} there, {value!r} here'
            for key, value in run.describe().items()
            if key in known and known[key] != value
        ]
        if differ:
            raise UserFileError(
                f'{run.work_dir} holds a run with other settings ({"; ".join(differ)}). It is left as '
                'it is; give the same settings, or another --work-dir.'
            )


def is_locked(work_dir: Path) -> bool:
    """Whether somebody trains in a folder, or is about to."""
    return any(lock_holder(work_dir / name) for name in (JOB_LOCK, RUN_LOCK))


def train(
    run: Job, environment: Optional[dict] = None, start: Callable[..., subprocess.Popen] = subprocess.Popen
) -> str:
    """Train one run to its end, or find it finished.

    Args:
        run (Job): The run.
        environment (dict, optional): Variables for its process, besides the current ones. Defaults to None.
        start (callable): In the place of ``subprocess.Popen``.

    Returns:
        str: 'finished', 'running' (somebody else is at it), 'stopped ...' (by a signal) or 'failed: ...'.
    """
    run.work_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        try:
            lock = held.enter_context(locked(run.work_dir / JOB_LOCK, required=True))
        except LockedError:
            return 'running'
        if lock_holder(run.work_dir / RUN_LOCK):  # a train.py that no job started, or whose job was killed
            return 'running'
        check_same(run)
        if run.finished():
            return 'finished'
        note = run.work_dir / 'run.json'
        if not note.is_file():
            write_text(note, json.dumps(run.describe(), indent=2) + '\n')
        command, before = run.command(), run.logged_epochs()
        with open(run.work_dir / 'console.log', 'ab') as console:
            console.write(f'\n$ {shlex.join(command)}\n'.encode())
            console.flush()
            begin = console.tell()
            # The lock goes on to the process: should this one be killed, its run is known to be running from its
            # first moment on, and by its own lock as soon as it has that.
            process = start(
                command,
                stdout=console,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
                pass_fds=[lock],
            )
            code = process.wait()
    if code == 0 and run.finished():
        return 'finished'
    if code == EXIT_STOPPED:
        return 'stopped (the same command goes on)'
    if code < 0:
        return f'failed: ended by {signal.Signals(-code).name}'
    with open(run.work_dir / 'console.log', 'rb') as console:
        console.seek(begin)
        lines = console.read().decode(errors='replace').strip().splitlines()
    told = [line for line in lines if line.startswith('error: ')][-1:] or lines[-1:]
    why = told[0] if told else f'exit code {code}'
    # After an epoch it is not the input: another GPU's memory, a file that went away.
    return f'failed: {why}' + (MISTAKE if code == 2 and run.logged_epochs() <= before else '')


def run_here(
    runs: Sequence[Job],
    jobs: int = 1,
    cpu: bool = False,
    report: Callable[[Job, str], None] = lambda run, state: None,
    tick: Callable[[], None] = lambda: None,
    ready: Callable[[Job], bool] = lambda run: True,
) -> Dict[str, str]:
    """Train the runs on this machine, ``jobs`` at a time.

    A run that fails does not stop the others; a mistake in the input, such as missing data, does, as they share it. On
    an interrupt the running ones are ended; the next call takes them up again.

    Args:
        runs (Sequence[Job]): The runs.
        jobs (int): How many at a time. Each has its own GPUs. Defaults to 1.
        cpu (bool): Whether to train on the CPU. Defaults to False.
        report (callable): Called with a run and its state: 'started', or what :func:`train` returned.
        tick (callable): Called about once a second.
        ready (callable): Whether a run may begin now: it may wait for another one.

    Returns:
        dict[str, str]: The state of each run, by name: 'finished', 'running', 'stopped ...', 'failed: ...' or 'not
            started'.
    """
    jobs = min(jobs, max(len(runs), 1))
    states = {run.name: 'not started' for run in runs}

    waiting, free = list(runs), _environments(jobs, max((run.gpus for run in runs), default=1), cpu)
    running: Dict[Future, dict] = {}
    processes: List[subprocess.Popen] = []
    interrupted = threading.Event()

    def start(*args, **kwargs) -> subprocess.Popen:
        process = subprocess.Popen(*args, **kwargs)
        processes.append(process)
        if interrupted.is_set():
            process.terminate()
        return process

    def work(run: Job, environment: dict) -> None:
        report(run, 'started')
        try:
            states[run.name] = train(run, environment, start)
        except (OSError, UserError) as error:
            states[run.name] = f'failed: {error}'
        report(run, states[run.name])

    with ThreadPoolExecutor(jobs) as pool:
        try:
            while waiting or running:
                for run in [run for run in waiting if ready(run)][: len(free)]:
                    waiting.remove(run)
                    place = free.pop(0)
                    running[pool.submit(work, run, place)] = place
                if not running:  # those that are left wait for what will not come
                    break
                for future in wait(running, 1.0, FIRST_COMPLETED).done:
                    free.insert(0, running.pop(future))
                    future.result()
                if any(state.endswith(MISTAKE) for state in states.values()):
                    waiting.clear()
                tick()
        except BaseException:
            interrupted.set()
            end(processes)
            raise
    return states


def _environments(jobs: int, gpus: int, cpu: bool) -> List[dict]:
    """The variables of each of ``jobs`` processes: its threads, or its GPUs and its port."""
    if jobs < 1:
        raise UserValueError(f'jobs={jobs} must be 1 or more')
    if cpu:
        threads = os.environ.get('OMP_NUM_THREADS') or str(max(1, (os.cpu_count() or 1) // jobs))
        return [on_cpu(threads) for _ in range(jobs)]
    if jobs == 1:
        return [{}]
    import torch

    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    devices = visible.split(',') if visible else [str(index) for index in range(torch.cuda.device_count())]
    if len(devices) < jobs * gpus:
        raise UserValueError(
            f'{jobs} runs at a time, each on {gpus} GPU(s): that needs {jobs * gpus}, and there are {len(devices)}'
        )
    return [
        dict(CUDA_VISIBLE_DEVICES=','.join(devices[slot * gpus : (slot + 1) * gpus]), PORT=str(29500 + slot))
        for slot in range(jobs)
    ]


def run_with_progress(
    runs: Sequence[Job],
    jobs: int,
    cpu: bool,
    console: Console,
    finished: Callable[[Job], str] = lambda run: '',
    every: float = 60,
    ready: Callable[[Job], bool] = lambda run: True,
) -> bool:
    """:func:`run_here` with a bar for each run under way, one for all and the time left; without a terminal, lines.

    Args:
        runs, jobs, cpu, ready: As in :func:`run_here`.
        console (Console): Where to show it.
        finished (callable): Called with each run that is finished, one at a time; returns what to say of it.
        every (float): Seconds between two lines where there is no terminal.

    Returns:
        bool: Whether all are finished.
    """
    columns = (
        TextColumn('{task.description}'),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn('epochs'),
        TimeElapsedColumn(),
        TextColumn('{task.fields[left]}'),
    )
    total, before = sum(run.epochs for run in runs), {run.name: run.logged_epochs() for run in runs}
    done, bars, lock, start = dict(before), {}, threading.Lock(), time.monotonic()
    told = start
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        whole = progress.add_task('all', total=total, left='')

        def report(run: Job, state: str) -> None:
            with lock:
                if state == 'started':
                    bars[run.name] = (run, progress.add_task(run.name, total=run.epochs, left=''))
                    if console.is_terminal:
                        return
                else:
                    progress.remove_task(bars.pop(run.name)[1])
                if state == 'finished':
                    done[run.name] = run.epochs
                    state = f'finished {finished(run)}'.strip()
                where = f', see {run.work_dir}/console.log' if state.startswith('failed') else ''
                progress.console.print(f'{run.name}: {state}{where}', markup=False, highlight=False)

        def tick() -> None:
            nonlocal told
            with lock:
                for run, bar in bars.values():
                    done[run.name] = run.logged_epochs()
                    progress.update(bar, completed=done[run.name])
                now, begun = sum(done.values()), sum(before.values())
                made = sum(run.effort * (done[run.name] - before[run.name]) for run in runs)
                waiting = sum(run.effort * (run.epochs - done[run.name]) for run in runs)
                seconds = (time.monotonic() - start) / max(made, 1e-9) * waiting
                left = f'{clock(seconds)} left' if now > begun else ''
                progress.update(whole, completed=now, left=left)
                if not console.is_terminal and time.monotonic() - told > every:
                    told = time.monotonic()
                    parts = ', '.join(f'{run.name} {done[run.name]}/{run.epochs}' for run, _ in bars.values())
                    console.print(f'{now} of {total} epochs, {left or "time left unknown"}: {parts}', highlight=False)

        states = run_here(runs, jobs, cpu, report, tick, ready)
    return all(state == 'finished' for state in states.values())
