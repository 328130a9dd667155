"""Kill training at random, resume it, kill it again, and compare the end with the run that was never killed.

    python benchmarks/soak.py                            # 24 kills, one and two processes, a quarter of an hour
    python benchmarks/soak.py --kills 200 --seed 1
    python benchmarks/soak.py --kills 12 --processes 3
    python benchmarks/soak.py --kills 200 --record soak.json     # again with 400: resumes after the 200th

A small ResNet with RM trains on noise, on the CPU, for a few epochs (or as many iterations), every second part of a run
through tools/dist_train.sh and the others through the function behind tools/train.py. Every process is a real one and
gets a real signal, SIGKILL, SIGTERM, SIGUSR1 or SIGINT, from another process: after an iteration, while a checkpoint is
written, or in a validation. SIGKILL ends one process, or the launcher; another signal goes, in turns, to one of them
(the launcher, if there is one) or to all of them and their workers, as a terminal sends it, and must end the run with
exit code 75, or 76 where there was nothing new to save. No process may be left. Each part of a run has its own number
of workers, 0, 2 or 4. At the end all weights, the optimizer's state, the random states, RM's history and every logged
number must be those of the unbroken run, bit for bit. SIGKILL may make a run repeat the iterations since its last
checkpoint, another signal none.

The exit code is 1 if anything differs. Without the launcher, processes are forked from this one, which has imported
everything: a start takes half a second instead of ten.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'tests'))  # of tiny_run
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.update(OMP_NUM_THREADS='1', MKL_NUM_THREADS='1')  # in every part: more threads sum in another order

import mmrm.models  # noqa: F401, isort: skip
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from rich import box
from rich.console import Console
from rich.table import Table
from tiny_run import write_run

from mmrm.cli import train
from mmrm.engine.signals import EXIT_STOPPED, EXIT_UNSAVED
from mmrm.utils.checkpoints import read_checkpoint

sys.modules.setdefault('soak', sys.modules[__name__])  # the name by which its configs import this file
WHEN = ('iteration', 'checkpoint', 'validation')
SIGNALS = ('SIGKILL', 'SIGTERM', 'SIGUSR1', 'SIGINT')
WORKERS = (0, 2, 4)
STOPPED = (EXIT_STOPPED, EXIT_UNSAVED)
CHECKPOINT_EVERY = 5
CHANGES = """
custom_imports['imports'].append('soak')
model['backbone']['drop_path_rate'] = 0.1
dataset['pipeline'][1:1] = [
    dict(type='RandomCrop', crop_size=24, padding=4), dict(type='RandomFlip', prob=0.5),
    dict(type='ColorJitter', brightness=0.4)]
train_dataloader.update(batch_size=4, sampler=dict(type={sampler!r}, shuffle=True))
val_dataloader.update(batch_size=8)
train_cfg = {loop!r}
optim_wrapper['accumulative_counts'] = {accumulate}
param_scheduler = [dict(type='LinearLR', start_factor=0.1, end=9, by_epoch=False)]
default_hooks['logger']['log_metric_by_epoch'] = {by_epoch}
default_hooks['checkpoint'].update(interval={every}, by_epoch=False, max_keep_ckpts=2)
custom_hooks = [dict(type='EMAHook'), dict(type='ResetHistoryHook'), dict(type='SoakKill')]
randomness = dict(seed=0, diff_rank_seed=True)
"""
KINDS = {
    'epochs': dict(sampler='DefaultSampler', accumulate=1, loop=dict(by_epoch=True, max_epochs=3)),
    'epochs, accumulating': dict(sampler='DefaultSampler', accumulate=3, loop=dict(by_epoch=True, max_epochs=3)),
    'iterations': dict(
        sampler='InfiniteSampler', accumulate=1, loop=dict(type='IterBasedTrainLoop', max_iters=30, val_interval=10)
    ),
}


class Kill(NamedTuple):
    """Which signal which process gets, at which point, the how many-th time it comes there, how much later."""

    signal: str
    rank: int
    when: str
    times: int
    seconds: float
    to_all: bool  # also to the other processes and to the data loaders' workers


@HOOKS.register_module()
class SoakKill(Hook):
    """Asks for a signal when ``SOAK_KILL`` (a :class:`Kill`) says so, by making the file ``SOAK_ASKED``."""

    priority = 'VERY_HIGH'

    def __init__(self):
        kill = json.loads(os.environ.get('SOAK_KILL') or 'null')
        self.kill = kill and Kill(*kill)
        self.seen = 0

    def _point(self, runner, when: str) -> None:
        if self.kill and self.kill.when == when and self.kill.rank == runner.rank:
            self.seen += 1
            if self.seen == self.kill.times:
                Path(os.environ['SOAK_ASKED']).touch()

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self._point(runner, 'iteration')

    def before_save_checkpoint(self, runner, checkpoint):
        self._point(runner, 'checkpoint')

    def before_val_epoch(self, runner):
        self._point(runner, 'validation')


def write_config(folder: Path, kind: str, images: int) -> Path:
    """Write noise of two classes and the config of one kind of run."""
    settings = dict(KINDS[kind], every=CHECKPOINT_EVERY, by_epoch=kind != 'iterations')
    config = write_run(folder, images=images, more=CHANGES.format(**settings))
    return config.rename(folder / f'{kind.replace(", ", "_")}.py')


def start(
    config: Path, work_dir: Path, processes: int, workers: int, kill: Optional[Kill], log: Path, launched: bool
) -> str:
    """Train in one or more processes, from the newest checkpoint if there is one, and kill it.

    Returns:
        'finished', 'killed' if it ended as it should, else what was wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / 'asked'
        environment = dict(SOAK_KILL=json.dumps(kill), SOAK_ASKED=str(asked), MMRM_PARENT=str(os.getpid()))
        argv = [str(config), '--work-dir', str(work_dir), '--device', 'cpu', '--resume', '--traceback']
        argv += ['--cfg-options', f'train_dataloader.num_workers={workers}']
        run = Launched if launched else Forked
        return run(argv, processes, environment, log).end(kill, asked)


class Launched:
    """A run of ``tools/dist_train.sh``."""

    def __init__(self, argv: List[str], processes: int, environment: dict, log: Path):
        tools = Path(__file__).resolve().parents[1] / 'tools'
        # The launcher looks for SoakKill where this file is.
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get('PYTHONPATH', '')])
        environment = dict(os.environ, **environment, PYTHONPATH=path, PYTHON=sys.executable)
        with open(log, 'a') as output:
            self.process = subprocess.Popen(
                [tools / 'dist_train.sh', argv[0], str(processes), *argv[1:]],
                env=environment,
                cwd=log.parent,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def ranks(self) -> List[int]:
        """The processes of the run, in the order of their ranks."""
        found = {}
        for folder in Path('/proc').glob('[0-9]*'):
            with contextlib.suppress(OSError):
                if int(re.search(r'^PPid:\s*(\d+)', (folder / 'status').read_text(), re.M)[1]) == self.process.pid:
                    found[int(re.search(rb'\0RANK=(\d+)', (folder / 'environ').read_bytes())[1])] = int(folder.name)
        return [found[rank] for rank in sorted(found)]

    def end(self, kill: Optional[Kill], asked: Path) -> str:
        ranks: List[int] = []
        while self.process.poll() is None:
            if kill and not ranks and asked.exists():
                ranks = self.ranks()
                time.sleep(kill.seconds)
                hard, launcher = kill.signal == 'SIGKILL', self.process.pid
                one = ranks[kill.rank] if hard and kill.times % 2 else launcher
                for pid in [launcher, *ranks] if kill.to_all else [one]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, getattr(signal, kill.signal))
            time.sleep(0.005)
        deadline = time.monotonic() + 10
        while any(Path(f'/proc/{pid}').exists() for pid in ranks) and time.monotonic() < deadline:
            time.sleep(0.05)
        if any(Path(f'/proc/{pid}').exists() for pid in ranks):
            return f'processes are left: {ranks}'
        code = self.process.returncode
        if code == 0:
            return 'finished'
        wanted = (-signal.SIGKILL, 128 + signal.SIGKILL) if kill and kill.signal == 'SIGKILL' else STOPPED
        return 'killed' if ranks and code in wanted else f'exit code {code} of the launcher'


class Forked:
    """Copies of this process that train."""

    def __init__(self, argv: List[str], processes: int, environment: dict, log: Path):
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            port = probe.getsockname()[1]
        self.children = []
        for rank in range(processes):
            child = os.fork()
            if child == 0:
                variables = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=processes, MASTER_PORT=port)
                os.environ.update(environment, MASTER_ADDR='127.0.0.1')
                os.environ.update({name: str(value) for name, value in variables.items()})
                self._train([*argv, *(['--launcher', 'pytorch'] if processes > 1 else [])], log)
            self.children.append(child)

    @staticmethod
    def _train(argv: List[str], log: Path) -> None:
        code = 1
        try:
            os.setpgid(0, 0)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
            os.chdir(log.parent)
            train.main(argv)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def end(self, kill: Optional[Kill], asked: Path) -> str:
        codes, sent = dict.fromkeys(self.children), False
        while None in codes.values():
            if kill and not sent and asked.exists():
                sent = True
                time.sleep(kill.seconds)  # somewhere in what comes next
                for child in self.children if kill.to_all else [self.children[kill.rank]]:
                    # Each process leads a group, which its workers are in.
                    (os.killpg if kill.to_all else os.kill)(child, getattr(signal, kill.signal))
            for child in [child for child in self.children if codes[child] is None]:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = os.waitstatus_to_exitcode(status)
                elif any(code not in (None, 0, *STOPPED) for code in codes.values()):  # as torchrun does
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.005)
        found = list(codes.values())
        if not any(found):
            return 'finished'
        hard = kill is not None and kill.signal == 'SIGKILL' and found[kill.rank] == -signal.SIGKILL
        soft = kill is not None and all(code in STOPPED for code in found)
        return 'killed' if hard or soft else f'exit codes {found}'


def soak(args: argparse.Namespace, folder: Path) -> int:
    """Kill and resume until there were ``args.kills`` kills; print what was compared; 0 if all of it is equal."""
    console, begin = Console(width=110), time.monotonic()
    cells = [(kind, processes) for processes in args.processes for kind in args.kinds]
    whole, record = {}, dict(runs=0, seconds=0.0, repeated=0, kills=[], wrong=[])
    if args.record and args.record.exists():
        record = json.loads(args.record.read_text())
    before = record['seconds']
    while len(record['kills']) < args.kills:
        kind, processes = cells[record['runs'] % len(cells)]
        record['runs'] += 1
        number = record['runs']
        config = write_config(folder, kind, args.images)
        if (kind, processes) not in whole:
            console.print(f'{kind}, {processes} process(es): the unbroken run')
            whole[kind, processes] = unbroken(config, folder / f'whole-{config.stem}-{processes}', processes)
        work_dir = folder / f'run-{number}'
        draw = random.Random(f'{args.seed} {number}')
        most = min(args.kills_per_run, args.kills - len(record['kills']))
        kills, parts, failed = broken(config, work_dir, processes, draw, most, number % 2)
        if not failed:
            again = repetitions(work_dir)
            record['repeated'] = max([record['repeated'], *(repeated for *_, repeated in again)])
            for first, part, repeated in again:
                hard = any(kill.signal == 'SIGKILL' for kill in kills[first:part])
                if repeated > (CHECKPOINT_EVERY if hard else 0):
                    failed = f'{repeated} iterations repeated in part {part + 1}'
        failed = failed or difference(whole[kind, processes], result(work_dir))
        record['kills'] += [[kind, processes, kill.when, kill.signal, not failed] for kill in kills]
        if failed:
            record['wrong'].append(f'run {number} ({kind}, {processes} processes; {"; ".join(parts)}): {failed}')
        console.print(
            f'run {number}: {kind}, {processes} process(es), {"; ".join(parts)}: {failed or "equal"} '
            f'({len(record["kills"])} kills in all)'
        )
        record['seconds'] = before + time.monotonic() - begin
        if args.record:
            args.record.write_text(json.dumps(record))
        if args.keep is None:
            shutil.rmtree(work_dir)
    report(record, console)
    return 1 if record['wrong'] else 0


def report(record: dict, console: Console) -> None:
    """Print how many kills of each kind there were, and what differed."""
    kills = record['kills']
    table = Table('training', 'processes', 'in', *SIGNALS, 'exact', box=box.MARKDOWN)
    for kind, processes, when in sorted({tuple(kill[:3]) for kill in kills}):
        these = [kill for kill in kills if kill[:3] == [kind, processes, when]]
        counted = Counter(kill[3] for kill in these)
        exact = sum(kill[4] for kill in these)
        table.add_row(kind, str(processes), when, *(str(counted[name]) for name in SIGNALS), f'{exact} of {len(these)}')
    console.print(table)
    console.print(
        f'{len(kills)} kills in {record["runs"]} runs, {record["seconds"]:.0f} s; at most {record["repeated"]} '
        f'iterations repeated, a checkpoint comes every {CHECKPOINT_EVERY}; {len(record["wrong"])} runs differ from '
        'the unbroken one'
    )
    for line in record['wrong']:
        console.print(line)


def unbroken(config: Path, work_dir: Path, processes: int) -> dict:
    """The result of an uninterrupted run."""
    log = work_dir.with_suffix('.log')
    if start(config, work_dir, processes, 0, None, log, launched=False) != 'finished':
        raise SystemExit(f'{log.read_text()[-2000:]}\nthe unbroken run failed')
    return result(work_dir)


def broken(config: Path, work_dir: Path, processes: int, draw: random.Random, kills: int, launched: int):
    """Train to the end, through at most ``kills`` kills; the first part through the launcher if ``launched`` is 1.

    Returns:
        tuple: The kills, what each part of the run was, and what went wrong ('' for nothing).
    """
    done, parts, log = [], [], work_dir.with_suffix('.log')
    while True:
        workers, kill = draw.choice(WORKERS), None
        if len(done) < kills:
            kill = draw_kill(draw, processes)
        through = kill is not None and (len(parts) + launched) % 2 == 1  # the last part, not killed, needs no launcher
        named = f', {kill.signal} in {kill.when} {kill.times}' if kill else ''
        parts.append(f'{workers} workers{named}{" of dist_train.sh" if through else ""}')
        ended = start(config, work_dir, processes, workers, kill, log, through)
        if ended == 'finished':
            return done, parts, ''
        if ended != 'killed':
            return done, parts, f'{ended}, see {log} (--keep)'
        done.append(kill)


def draw_kill(draw: random.Random, processes: int) -> Kill:
    """A signal at some point of what is left of a run."""
    name, when = draw.choice(SIGNALS), draw.choice(WHEN)
    times = dict(iteration=draw.randint(1, 9), checkpoint=draw.randint(1, 3), validation=1)[when]
    rank = 0 if when == 'checkpoint' else draw.randrange(processes)  # process 0 writes the checkpoints
    seconds = draw.choice((0.0, 0.005, 0.02, 0.1))
    return Kill(name, rank, when, times, seconds, name != 'SIGKILL' and draw.random() < 0.5)


# ---------------------------------------------------------------------------------------------------------- comparison
def result(work_dir: Path) -> dict:
    """What a finished run left: its last checkpoint, flat, and all that it logged, the last word winning."""
    last = max(work_dir.glob('iter_*.pth'), key=lambda path: int(path.stem[5:]))
    checkpoint = read_checkpoint(last)
    kept = {
        key: checkpoint[key]
        for key in ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers', 'random_state', 'resume_state')
    }
    # Whether it was written before or after the last validation: with a new best one it is written a second time, if
    # the validation was not one that a resumed run repeated.
    kept['resume_state'].pop('validated')
    found = dict(flat(kept))
    for _, entry in log_entries(work_dir):
        kind = 'validation' if 'accuracy/top1' in entry else 'training'
        for key, value in entry.items():
            if 'time' not in key:
                found[f'log of {kind} step {entry["step"]}: {key}'] = value
    return found


def log_entries(work_dir: Path):
    """Number of the part and entry, of every line that the parts of a run logged, in order."""
    for number, folder in enumerate(sorted(work_dir.glob('*/vis_data'))):
        path = folder / 'scalars.json'  # a part that was killed before it logged anything has none
        for line in path.read_text().splitlines() if path.exists() else ():
            if line.endswith('}'):  # not cut off by a kill
                yield number, json.loads(line)


def repetitions(work_dir: Path) -> List[Tuple[int, int, int]]:
    """For each part that trained: the part that trained before it, itself, and how many iterations it repeated."""
    again, last, before = [], 0, 0
    for number, entry in log_entries(work_dir):
        if 'loss' in entry:
            if number > before:
                again.append((before, number, max(0, last - entry['step'] + 1)))
            before, last = number, entry['step']
    return again


def flat(value, name: str = ''):
    """The leaves of nested dicts and lists, with their paths."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f'{name}.{key}')
    elif isinstance(value, (list, tuple)) and not all(isinstance(each, (int, float, str)) for each in value):
        for key, item in enumerate(value):
            yield from flat(item, f'{name}.{key}')
    else:
        yield name, value


def difference(one: dict, other: dict) -> str:
    """The first thing in which two results differ; '' if there is none."""
    if one.keys() != other.keys():
        return f'only in one: {sorted(one.keys() ^ other.keys())[:3]}'
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        if not same:
            return f'{name} differs'
    return ''


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--kills', type=int, default=24)
    parser.add_argument('--kills-per-run', type=int, default=4, help='kills per run')
    parser.add_argument('--processes', type=int, nargs='+', default=[1, 2])
    parser.add_argument('--kinds', nargs='+', choices=KINDS, default=list(KINDS))
    parser.add_argument('--images', type=int, default=48)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--record', type=Path, help='a file that remembers the kills so far, to resume with more')
    parser.add_argument('--keep', type=Path, help='keep the runs in this folder')
    args = parser.parse_args()
    folder = args.keep.absolute() if args.keep else Path(tempfile.mkdtemp(prefix='soak-'))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return soak(args, folder)
    finally:
        if args.keep is None:
            shutil.rmtree(folder)


if __name__ == '__main__':
    sys.exit(main())
