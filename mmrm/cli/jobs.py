"""Training runs as jobs: each ``tools/train.py`` in a folder of its own, several side by side, none of them twice.

A run is finished when its log holds the validation of its last epoch; an interrupted one resumes from its last
checkpoint, and train.py repeats a validation that was cut off. A failed run is recorded; the others continue.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Union

from mmengine.config import Config

from ..engine.hooks.non_finite import REMEDIES
from ..engine.signals import EXIT_STOPPED, EXIT_UNSAVED
from ..report.runs import merge_sessions
from ..utils.config import checkpoint_out_dir, read_config
from ..utils.errors import UserError, UserFileError, UserValueError
from ..utils.files import RUN_LOCK, lock_holder, write_text
from ..utils.paths import shipped
from ..utils.processes import clock, thread_variables
from ..utils.saved import find_saved

METRIC = 'accuracy/top1'
CONSOLE, PROMPT = 'console.log', '\n$ '  # in a run's folder: what each of its commands printed
FAILED = 'failed.txt'  # in a run's folder: that its loss diverged. Without the file it is trained again
PATIENCE = 60  # seconds that a process has to save and end by itself after SIGTERM
# Large tensors come and go with every step; glibc would give their pages back each time, and the system empty new ones.
# These keep them, in huge pages: the same numbers, sooner (docs/speed.md). Other C libraries ignore it.
KEEP_MEMORY = dict(
    THP_MEM_ALLOC_ENABLE='1', MALLOC_MMAP_MAX_='0', MALLOC_TRIM_THRESHOLD_=str(1 << 40), MALLOC_TOP_PAD_=str(1 << 28)
)


@dataclass
class Job:
    """One training run.

    Args:
        name (str): What to call it.
        config (Path): The config.
        options (dict): What is set in it, ``{'a.b': value}``.
        seed (int): Its seed.
        work_dir (Path): Its folder.
        epochs (int): How long it trains.
        arguments (list[str]): Further options of train.py.
        gpus (int): Processes, one per GPU; 1 on the CPU.
        fingerprint (str): Of all settings that decide the result (:func:`mmrm.utils.settings.fingerprint`).
        metric (str): What its validations measure, as mmengine logs it.
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
    metric: str = METRIC

    def describe(self) -> dict:
        """What decides the run's result, in JSON's types: kept in its folder and compared at the next start."""
        names = ('options', 'seed', 'epochs', 'gpus', 'arguments', 'fingerprint')
        known = dict(config=self.config.name, **{name: getattr(self, name) for name in names})
        return json.loads(json.dumps(known, default=str))

    def command(self) -> List[str]:
        """The command that trains it, from its last checkpoint on."""
        command = [sys.executable, str(shipped() / 'tools' / 'train.py'), str(self.config)]
        command += ['--work-dir', str(self.work_dir), '--seed', str(self.seed), '--resume', 'auto', *self.arguments]
        command += ['--gpus', str(self.gpus)] if self.gpus > 1 else []
        if self.options:
            command += ['--cfg-options', *(f'{key}={_word(value)}' for key, value in self.options.items())]
        return command

    def validations(self) -> Dict[int, float]:
        """The metric by epoch, from the logs of the run."""
        logged = merge_sessions(self.work_dir).validations
        return {step: float(metrics[self.metric]) for step, metrics in logged.items() if self.metric in metrics}

    def finished(self) -> bool:
        """Whether the last epoch is validated."""
        return self.epochs in self.validations()

    def failure(self) -> str:
        """That it diverged, as an earlier start recorded it; '' if it did not."""
        note = self.work_dir / FAILED
        return note.read_text().strip() if note.is_file() else ''

    def checkpoints(self) -> Dict[int, Path]:
        """The checkpoint of each epoch that has one."""
        found = find_saved(self.work_dir)
        return {saved.step: saved.path for saved in found if saved.unit == 'epoch' and not saved.metric}

    def trained_epochs(self) -> int:
        """Epochs that a checkpoint holds."""
        return max(self.checkpoints(), default=0)

    def logged_epochs(self) -> int:
        """Epochs that are done according to the log."""
        return max(merge_sessions(self.work_dir).trained, self.trained_epochs())

    def state(self) -> str:
        """'finished', 'running', 'failed: ...', 'epoch 7' or 'new'."""
        if self.finished():
            return 'finished'
        if lock_holder(self.work_dir / RUN_LOCK):
            return 'running'
        if self.failure():
            return f'failed: {self.failure()}'
        return f'epoch {self.trained_epochs()}' if self.trained_epochs() else 'new'


def _word(value) -> str:
    """A value as mmengine's ``--cfg-options`` reads it: a list without blanks."""
    return str(list(value)).replace(' ', '') if isinstance(value, (list, tuple)) else str(value)


def merged_config(config: Path, options: dict) -> Config:
    """A config with options merged in, or an error that names both, also if it has no number of epochs."""
    cfg = read_config(config, options)
    length = (cfg.get('train_cfg') or {}).get('max_epochs')
    if not isinstance(length, int):
        raise UserValueError(f'config {config}: train_cfg.max_epochs must be a whole number, not {length!r}.')
    if checkpoint_out_dir(cfg):
        raise UserValueError(f'config {config}: leave default_hooks.checkpoint.out_dir out; --work-dir moves all runs.')
    return cfg


def check_same(run: Job) -> None:
    """Raise if the run's folder holds a run with other settings."""
    note = run.work_dir / 'run.json'
    known = json.loads(note.read_text()) if note.is_file() else {}
    differ = [
        f'{key} {known[key]!r} there, {value!r} here'
        for key, value in run.describe().items()
        if key in known and known[key] != value
    ]
    if differ:
        raise UserFileError(
            f'{run.work_dir} holds a run with other settings ({"; ".join(differ)}): give another --work-dir.'
        )


def begin(run: Job, environment: Optional[dict] = None) -> Union[subprocess.Popen, str]:
    """Start the process that trains a run, or return its state: 'finished', 'running' or 'failed: ...'.

    Two calls that start one run at the same time train it once: its process has a lock, and the other one ends.

    Args:
        run (Job): The run.
        environment (dict, optional): Variables for its process, besides the current ones. Defaults to None.
    """
    check_same(run)
    state = run.state()
    if state.startswith(('finished', 'running', 'failed')):
        return state
    run.work_dir.mkdir(parents=True, exist_ok=True)
    write_text(run.work_dir / 'run.json', json.dumps(run.describe(), indent=2) + '\n', overwrite=True)
    command, variables = run.command(), {**os.environ, **(environment or {})}
    with open(run.work_dir / CONSOLE, 'ab') as console:
        console.write(f'{PROMPT}{shlex.join(command)}\n'.encode())
        console.flush()
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, env=variables
        )


def outcome(run: Job, code: int) -> str:
    """What became of a run whose process ended: 'finished', 'running' (another trains it), 'stopped ...' (by a signal)
    or 'failed: ...'."""
    if code == 0 and run.finished():
        return 'finished'
    if code in (EXIT_STOPPED, EXIT_UNSAVED):
        return 'stopped (the same command resumes it)'
    if lock_holder(run.work_dir / RUN_LOCK):
        return 'running'
    if code < 0:
        return f'failed: ended by {signal.Signals(-code).name}'
    printed = (run.work_dir / CONSOLE).read_text(errors='replace').rpartition(PROMPT)[2]
    lines = printed.strip().splitlines()[1:]
    last = [line for line in lines if line.startswith('error: ')][-1:] or lines[-1:]
    why = last[0].removeprefix('error: ') if last else f'exit code {code}'
    if REMEDIES in why:  # diverged: the next start would diverge alike. Another failure is tried again.
        write_text(run.work_dir / FAILED, f'{why}\n', overwrite=True)
    return f'failed: {why}'


def run_all(
    runs: Sequence[Job],
    jobs: int = 1,
    cpu: bool = False,
    log: Callable[[str], None] = print,
    finished: Callable[[Job], str] = lambda run: '',
    ready: Callable[[Job], bool] = lambda run: True,
    every: float = 60,
) -> Dict[str, str]:
    """Train the runs on this machine, ``jobs`` at a time. One that fails does not stop the others.

    On an interrupt the running ones are ended; the next call resumes them.

    Args:
        runs (Sequence[Job]): The runs.
        jobs (int): How many at a time. Each has its own GPUs. Defaults to 1.
        cpu (bool): Whether to train on the CPU. Defaults to False.
        log (callable): Prints a line: what starts and ends, and how much is left.
        finished (callable): Called with each run that is finished; returns what to print of it.
        ready (callable): Whether a run may begin now: it may wait for another one.
        every (float): Seconds between two lines about what is left.

    Returns:
        dict[str, str]: The state of each run, by name: as of :func:`outcome`, or 'not started'.
    """
    jobs = min(jobs, max(len(runs), 1))
    states = {run.name: 'not started' for run in runs}
    waiting, free = list(runs), environments(jobs, max((run.gpus for run in runs), default=1), cpu)
    running: Dict[subprocess.Popen, tuple] = {}
    start = shown = time.monotonic()
    total, before = sum(run.epochs for run in runs), sum(run.logged_epochs() for run in runs)

    def progress() -> str:
        done = sum(run.logged_epochs() for run in runs)
        rate = (time.monotonic() - start) / max(done - before, 1)
        left = f'{clock(rate * (total - done))} left' if done > before else 'time left unknown'
        parts = ', '.join(f'{run.name} {run.logged_epochs()}/{run.epochs}' for run, _ in running.values())
        return f'{done} of {total} epochs, {left}: {parts}'

    def note(run: Job, state: str) -> None:
        states[run.name] = state
        where = f', see {run.work_dir}/{CONSOLE}' if state.startswith('failed') else ''
        found = finished(run) if state == 'finished' else ''
        log(f'{run.name}: {state} {found}'.rstrip() + where)

    try:
        while waiting or running:
            begun = [run for run in waiting if ready(run)][: len(free)]
            if not begun and not running:  # the others wait for a run that failed
                break
            for run in begun:
                waiting.remove(run)
                try:
                    process = begin(run, free[0])
                except (OSError, UserError) as error:
                    process = f'failed: {error}'
                if isinstance(process, str):
                    note(run, process)
                else:
                    log(f'{run.name}: started')
                    running[process] = (run, free.pop(0))
            for process in [process for process in running if process.poll() is not None]:
                run, place = running.pop(process)
                free.insert(0, place)
                note(run, outcome(run, process.returncode))
            if running:
                time.sleep(0.1)
            if running and time.monotonic() - shown > every:
                shown = time.monotonic()
                log(progress())
    except BaseException:
        end(running)
        raise
    return states


def end(processes: Iterable[subprocess.Popen]) -> None:
    """End processes: by SIGTERM, after :data:`PATIENCE` seconds by SIGKILL."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()


def environments(jobs: int, gpus: int, cpu: bool) -> List[dict]:
    """The variables of each of ``jobs`` processes: its threads and how it keeps memory, or its GPUs and its port."""
    if cpu:
        kept = {key: os.environ.get(key, value) for key, value in KEEP_MEMORY.items()}
        return [dict(kept, **thread_variables(jobs)) for _ in range(jobs)]
    if jobs == 1:
        return [{}]
    import torch

    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    devices = visible.split(',') if visible else [str(index) for index in range(torch.cuda.device_count())]
    if len(devices) < jobs * gpus:
        wanted = jobs * gpus
        raise UserValueError(
            f'{jobs} runs at a time, each on {gpus} GPU(s), needs {wanted}, and there are {len(devices)}'
        )
    return [
        dict(CUDA_VISIBLE_DEVICES=','.join(devices[slot * gpus : (slot + 1) * gpus]), PORT=str(29500 + slot))
        for slot in range(jobs)
    ]
