"""What the report knows of runs: their logs, configs and environment, as plain data.

Nothing here needs a network or the data; what does is in :mod:`mmrm.report.pictures`.
"""

import itertools
import math
import os
import re
import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from ..engine.metrics import IOU_OF_CLASS
from ..utils.config import datasets, type_name
from ..utils.errors import UserError, UserFileError
from ..utils.files import RUN_LOCK, lock_holder
from ..utils.paths import show_path
from . import logs
from .configs import Base, find_base
from .runs import RunLog, find_runs, read_run

MOST_RUNS = 200  # in one page
POINTS = 500  # of a curve; a longer one is thinned
FEW_POINTS = 200  # of a curve where there are many runs
MANY_RUNS = 12
QUIET = 180  # seconds without a new line after which a run without a lock counts as stopped
AP_OF_CLASS = '_precision'
KINDS = ('Classification', 'Detection', 'Segmentation', 'Other')
NO_CURVE = ('step', 'iter', 'epoch', 'data_time', 'time')


class Measure(NamedTuple):
    """How a metric of the log is shown.

    Args:
        key (str): Its name in the log.
        label (str): What to call it.
        factor (float): What a logged value is multiplied with.
        lower (bool): Whether less is better.
        digits (int): After the point.
    """

    key: str
    label: str
    factor: float = 1.0
    lower: bool = False
    digits: int = 2


def measure_of(key: str) -> Measure:
    """How to show a key of the log; COCO's AP in percent, as everybody writes it."""
    known = {
        'accuracy/top1': 'top-1 accuracy (%)',
        'accuracy/top5': 'top-5 accuracy (%)',
        'mIoU': 'mIoU (%)',
        'mAcc': 'mAcc (%)',
        'aAcc': 'aAcc (%)',
        'rm_lambda': 'λ, share of the history',
        'rm_kl': 'KL of the consistency',
        'lr': 'learning rate',
        'time': 'seconds per iteration',
        'data_time': 'seconds waiting for data',
        'memory': 'GPU memory (MB)',
        'grad_norm': 'norm of the gradient',
        'loss': 'training loss',
        'loss_consistency': 'consistency loss',
    }
    if key.startswith('coco/') and ('mAP' in key or key.endswith(AP_OF_CLASS)):
        name = key[len('coco/') :].replace('bbox_mAP', 'box AP').replace('segm_mAP', 'mask AP')
        for short, long in (('_50', ' at IoU 0.5'), ('_75', ' at IoU 0.75'), ('_s', ', small'), ('_m', ', medium')):
            name = re.sub(f'{short}$', long, name)
        return Measure(key, f'{re.sub("_l$", ", large", name)} (%)', 100, digits=1)
    return Measure(key, known.get(key, key), lower='loss' in key)


@dataclass
class Run:
    """One run as the page shows it.

    Args:
        log (RunLog): What it measured.
        name (str): What to call it; unique in its task.
        group (str): The name of the runs that differ from it in their seed alone.
        task (str): 'Classification, RMCIFAR10' ... Only runs of one task are compared.
        measure (Measure, optional): Its main result, None if it was never validated.
        status (str): 'finished', 'running' or 'stopped'.
        progress (float, optional): From 0 to 1, None if its length is not known.
        left (float, optional): Seconds to its estimated end, where it is running.
        updated (float): When its log last grew, in seconds since the epoch.
        iterations_an_epoch (int, optional): Of a run that counts epochs.
        environment (dict[str, str]): What mmengine wrote at the head of the log.
        base (Base, optional): The shipped config that it is a run of.
        config (Path, optional): The config that it wrote down.
        notes (list[str]): What to know about it.
    """

    log: RunLog
    name: str
    group: str
    task: str
    measure: Optional[Measure]
    status: str
    progress: Optional[float]
    left: Optional[float]
    updated: float
    iterations_an_epoch: Optional[int]
    environment: Dict[str, str] = field(default_factory=dict)
    base: Optional[Base] = None
    config: Optional[Path] = None
    notes: List[str] = field(default_factory=list)
    _values: Dict[str, Dict[int, float]] = field(default_factory=dict, repr=False)

    @property
    def seed(self) -> Optional[int]:
        if self.log.seed is not None:
            return self.log.seed
        named = self.environment.get('seed', '')
        return int(named) if named.isdecimal() else None

    def values(self, measure: Optional[Measure] = None) -> Dict[int, float]:
        """Its results by the epoch (or iteration) of the validation, as they are shown."""
        measure = measure or self.measure
        if measure is None:
            return {}
        if measure.key not in self._values:
            self._values[measure.key] = {
                step: metrics[measure.key] * measure.factor
                for step, metrics in sorted(self.log.validations.items())
                if is_number(metrics.get(measure.key)) and not _nothing(measure.key, metrics[measure.key])
            }
        return self._values[measure.key]


@dataclass
class Collected:
    """All that a page shows.

    Args:
        runs (list[Run]): In the order of the page.
        left_out (list[str]): What was asked for and is not in it, and why, a line each.
        given (list[Path]): The folders that were asked for.
    """

    runs: List[Run]
    left_out: List[str]
    given: List[Path]

    def tasks(self) -> Dict[str, Dict[str, List[Run]]]:
        """Task -> group -> runs."""
        found: Dict[str, Dict[str, List[Run]]] = {}
        for run in self.runs:
            found.setdefault(run.task, {}).setdefault(run.group, []).append(run)
        return found


def is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# --------------------------------------------------------------------------------------------------------- finding runs
def collect(given: Sequence[Union[str, Path]], most: int = MOST_RUNS) -> Collected:
    """Read the runs in and below some folders.

    Args:
        given (Sequence[str | Path]): Folders of runs, or folders that hold some at any depth.
        most (int): Runs at most; those whose logs grew last are kept. Defaults to :data:`MOST_RUNS`.

    Raises:
        UserFileError: If a folder does not exist, or there is no log in any of them.
    """
    folders, left_out = _folders([Path(each).expanduser() for each in given])
    if len(folders) > most:
        newest = set(sorted(folders, key=_grew, reverse=True)[:most])
        left_out.append(f'{len(folders) - most} of {len(folders)} runs: the page holds {most}, those that ran last')
        folders = [folder for folder in folders if folder in newest]
    runs = []
    for folder in folders:
        try:
            run = _read(folder)
        except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            left_out.append(f'{show_path(folder)}: its log cannot be read ({type(error).__name__}: {error})')
            continue
        if run.log.iterations or run.log.validations:
            runs.append(run)
        else:
            left_out.append(f'{show_path(folder)}: no line of its log is of a training')
    if not runs:
        told = '; '.join(left_out[:5]) or 'no log of mmengine (<run>/<time>/vis_data/scalars.json) in them'
        raise UserFileError(f'there is no run to show in {", ".join(map(str, given))}: {told}')
    order = sorted({run.task for run in runs}, key=lambda task: (KINDS.index(task.split(',')[0]), task))
    runs.sort(key=lambda run: order.index(run.task))
    for task in order:
        _name([run for run in runs if run.task == task])
    return Collected(runs, left_out, [Path(each) for each in given])


def _folders(given: List[Path]) -> Tuple[List[Path], List[str]]:
    """The folders of runs, each once, and what holds none."""
    found: Dict[str, Path] = {}
    empty = []
    for root in given:
        if not root.is_dir():
            what = 'is a file' if root.exists() else 'does not exist'
            raise UserFileError(f'{root} {what}: give the folder of a run, or one that holds runs.')
        below = find_runs(root)
        for folder in below:
            found.setdefault(os.path.realpath(folder), folder)
        if not below:
            empty.append(f'{show_path(root)}: no log of mmengine in it (<time>/vis_data/scalars.json)')
    return list(found.values()), empty


def _grew(folder: Path) -> float:
    """When a run's log last grew."""
    found = [logs.log_of(session) for session in logs.sessions(folder)]
    return max((log.stat().st_mtime for log in found if log), default=0.0)


def _name(runs: List[Run]) -> None:
    """Name the runs of a task and their groups."""
    names = short_names([_without_seed(run.log.folder) for run in runs])
    for run in runs:
        owner = _without_seed(run.log.folder)
        run.group = names[owner]
        run.name = run.group if owner == run.log.folder else f'{run.group}/{run.log.folder.name}'


def _without_seed(folder: Path) -> Path:
    return folder.parent if re.fullmatch(r'seed\d+', folder.name) else folder


def short_names(folders: Sequence[Path]) -> Dict[Path, str]:
    """What to call folders: the parts of their paths that differ, and those between; of a single one, its last two."""
    parts = {folder: Path(os.path.abspath(folder)).parts for folder in folders}
    if len(parts) == 1:
        return {folder: '/'.join(each[-2:]) for folder, each in parts.items()}
    before = _shared(each[:-1] for each in parts.values())
    after = _shared(each[before + 1 :][::-1] for each in parts.values())
    return {folder: '/'.join(each[before : len(each) - after]) for folder, each in parts.items()}


def _shared(paths: Iterable[Sequence[str]]) -> int:
    """How many parts all paths begin with."""
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, zip(*paths)))


# ---------------------------------------------------------------------------------------------------------- reading one
def _read(folder: Path) -> Run:
    log = read_run(folder)
    session = logs.sessions(folder)[-1]
    updated = _grew(folder)
    text = text_log(folder)
    base = find_base(folder, log.settings)
    status = 'finished' if log.finished else 'running' if _alive(folder, text, updated) else 'stopped'
    per_epoch = _iterations_an_epoch(log) if log.unit == 'epochs' else None
    task, measure = _task(log)
    dumps = (session / 'vis_data' / 'config.py', *sorted(folder.glob('*.py')))
    config = next((path for path in dumps if path.is_file()), None)
    run = Run(
        log,
        folder.name,
        folder.name,
        task,
        measure,
        status,
        _progress(log, per_epoch),
        None,
        updated,
        per_epoch,
        read_environment(text),
        base,
        config,
    )
    run.left = _left(run, session) if status == 'running' else None
    _note(run)
    return run


def _note(run: Run) -> None:
    if run.log.settings is None:
        run.notes.append('no config in its folder: its length, seed and settings are not known')
    if run.measure is None:
        run.notes.append('not validated yet')
    if len(logs.sessions(run.log.folder)) > 1:
        run.notes.append(f'{len(logs.sessions(run.log.folder))} sessions, merged')
    last = list(run.log.iterations.values())[-1:]
    if last and 'loss' in last[0] and not is_number(last[0]['loss']):
        run.notes.append(f'its loss is {last[0]["loss"]} at iteration {last[0]["step"]}')


def _task(log: RunLog) -> Tuple[str, Optional[Measure]]:
    """The task with its data, and the main result."""
    keys = list(dict.fromkeys(key for metrics in log.validations.values() for key in metrics))
    scope = (log.settings or {}).get('default_scope')
    found = [
        task
        for task, known, start in (
            ('Classification', 'mmpretrain', 'accuracy/'),
            ('Detection', 'mmdet', 'coco/'),
            ('Segmentation', 'mmseg', 'mIoU'),
        )
        if any(key.startswith(start) for key in keys) or (not keys and scope == known)
    ]
    task = found[0] if len(found) == 1 else 'Other'
    main = ['accuracy/top1', 'coco/bbox_mAP', 'coco/segm_mAP', 'mIoU']
    rest = [key for key in keys if key not in NO_CURVE and not of_class(key)]
    measured = {key for metrics in log.validations.values() for key, value in metrics.items() if is_number(value)}
    numbers = [key for key in [*main, *rest] if key in measured]
    trained = ((log.settings or {}).get('train_dataloader') or {}).get('dataset') or {}
    data = next((type_name(each) for each, _ in datasets(trained)), '')
    return f'{task}, {data}' if data else task, measure_of(numbers[0]) if numbers else None


def of_class(key: str) -> Optional[str]:
    """The class that a metric is of; None if it is of all."""
    if key.startswith(IOU_OF_CLASS):
        return key[len(IOU_OF_CLASS) :]
    if key.endswith(AP_OF_CLASS) and key.startswith('coco/'):
        return key[len('coco/') : -len(AP_OF_CLASS)]
    return None


def _iterations_an_epoch(log: RunLog) -> Optional[int]:
    """The least number of iterations an epoch that agrees with all records."""
    shares = [
        record['step'] / record['epoch']
        for record in log.iterations.values()
        if isinstance(record.get('epoch'), int) and record['epoch'] > 0
    ]
    return math.ceil(max(shares) - 1e-9) if shares else None


def _progress(log: RunLog, per_epoch: Optional[int]) -> Optional[float]:
    if not log.length:
        return None
    last = max(log.iterations, default=0)
    done = last if log.unit == 'iterations' else last / per_epoch if per_epoch else 0
    return min(max(done, log.trained) / log.length, 1.0)


def _alive(folder: Path, text: Optional[Path], updated: float) -> bool:
    """Whether a process holds the run's lock, or its log grew just now."""
    if (folder / RUN_LOCK).exists() and lock_holder(folder / RUN_LOCK):
        return True
    grew = max(updated, text.stat().st_mtime if text else 0)
    return time.time() - grew < QUIET


def _left(run: Run, session: Path) -> Optional[float]:
    """Seconds to the end of a running run, by the clock of its last session, validations included."""
    log = run.log
    total = log.length if log.unit == 'iterations' else (log.length or 0) * (run.iterations_an_epoch or 0)
    last = max(log.iterations, default=0)
    if not total or not last:
        return None
    times = [record['time'] for record in list(log.iterations.values())[-20:] if is_number(record.get('time'))]
    pace = statistics.fmean(times) if times else 0.0
    try:
        elapsed = run.updated - datetime.strptime(session.name, '%Y%m%d_%H%M%S').timestamp()
    except ValueError:
        elapsed = 0.0
    steps = [record['step'] for record in logs.session_records(session) if 'iter' in record or 'lr' in record]
    done = last - steps[0] + 1 if len(steps) > 1 else 0
    if done > 0 and 0 < elapsed < 400 * 86400:
        pace = max(pace, min(elapsed / done, 3 * pace) if pace else elapsed / done)
    return max((total - last) * pace - (time.time() - run.updated), 0.0) if pace else None


# --------------------------------------------------------------------------------------------------------- the text log
def text_log(folder: Path) -> Optional[Path]:
    """The text log of the last session; None if there is none."""
    for session in reversed(logs.sessions(folder)):
        path = session / f'{session.name}.log'
        if path.is_file():
            return path
    return None


def last_lines(folder: Path, number: int = 12, characters: int = 240) -> List[str]:
    """The end of a run's text log."""
    path = text_log(folder)
    if path is None:
        return []
    try:
        with open(path, 'rb') as file:
            file.seek(max(path.stat().st_size - 16384, 0))
            lines = deque(file.read().decode(errors='replace').splitlines(), maxlen=number)
    except OSError:  # gone in the meantime
        return []
    return [line if len(line) <= characters else f'{line[:characters]} …' for line in lines]


def read_environment(path: Optional[Path]) -> Dict[str, str]:
    """What mmengine wrote about versions, hardware and seeds at the head of a text log."""
    if path is None:
        return {}
    with open(path, 'rb') as file:
        head = file.read(24576).decode(errors='replace')
    found: Dict[str, str] = {}
    begin = head.find('System environment:')
    for line in head[begin:].splitlines() if begin >= 0 else ():
        if line.startswith('-----'):
            break
        named = re.match(r' {4}([^:]+): (.+)', line)
        if named and 'compiling details' not in named[1]:
            found[named[1].strip()] = named[2].strip()[:200]
    return found


# --------------------------------------------------------------------------------------------------------------- curves
def curves(run: Run, points: int = POINTS) -> dict:
    """The curves of a run: ``{'train': {x, every, keys}, 'val': {x, every, keys}}``, None where a value is missing.

    A curve that will have more than ``points`` records is thinned: each point is the mean of neighbours, ``low`` and
    ``high`` hold their least and greatest value.
    """
    epochs = run.log.unit == 'epochs'
    per_epoch = run.iterations_an_epoch or 1
    train = [(step / per_epoch if epochs else step, record) for step, record in run.log.iterations.items()]
    val = sorted(run.log.validations.items())
    length = run.log.length or max((x for x, _ in [*train, *val]), default=1)
    skip = ('step', 'iter', 'epoch')
    return dict(
        train=_thin(train, length, points, lambda key: key not in skip),
        val=_thin(val, length, points, lambda key: key not in NO_CURVE and not of_class(key)),
    )


def _thin(records: Sequence[Tuple[float, dict]], length: float, points: int, wanted) -> dict:
    keys = [key for key in dict.fromkeys(key for _, record in records for key in record) if wanted(key)]
    columns = {key: _column(key, [record for _, record in records]) for key in keys}
    columns = {key: values for key, values in columns.items() if any(value is not None for value in values)}
    # As many as there will be at the end, so that seeds that are not equally far have their points at the same places.
    share = records[-1][0] / length if records else 1
    if not share or len(records) / min(share, 1) <= points:
        drawn = {key: dict(y=[_short(value) for value in values]) for key, values in columns.items()}
        return dict(x=[_short(x) for x, _ in records], every=1, keys=drawn)
    width = length / points
    buckets: Dict[int, List[int]] = {}
    for place, (x, _) in enumerate(records):
        buckets.setdefault(max(math.ceil(x / width - 1e-9), 1), []).append(place)
    found: dict = {}
    for key, column in columns.items():
        y, low, high = [], [], []
        for places in buckets.values():
            values = [column[place] for place in places if column[place] is not None]
            y.append(_short(sum(values) / len(values)) if values else None)
            low.append(_short(min(values)) if values else None)
            high.append(_short(max(values)) if values else None)
        found[key] = dict(y=y) if low == high else dict(y=y, low=low, high=high)
    every = max(len(places) for places in buckets.values())
    return dict(x=[_short(number * width) for number in buckets], every=every, keys=found)


def _column(key: str, records: Sequence[dict]) -> List[Optional[float]]:
    """The values of a key as they are shown, None where there is none."""
    factor, coco, finite = measure_of(key).factor, key.startswith('coco/'), math.isfinite
    column: List[Optional[float]] = []
    for record in records:
        value = record.get(key)
        good = type(value) in (int, float) and finite(value) and not (coco and _nothing(key, value))
        column.append(value * factor if good else None)
    return column


def _nothing(key: str, value: float) -> bool:
    """Whether a value says that there was nothing to measure: COCO's -1, for no object of a size."""
    return key.startswith('coco/') and value < 0


def _short(value: Optional[float]) -> Optional[float]:
    """Six digits that count: more than a screen shows, half of what a float takes."""
    if value is None:
        return None
    short = float(f'{value:.6g}')
    return int(short) if short == int(short) and abs(short) < 1e15 else short


__all__ = ['Collected', 'Measure', 'Run', 'collect', 'curves', 'last_lines', 'measure_of', 'of_class']
