"""What the report knows of runs: their logs, configs and environment, as plain data.

Nothing here needs a network or the data; what does is in :mod:`mmrm.report.pictures`.
"""

import itertools
import math
import os
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, Union

from ..engine.metrics import IOU_OF_CLASS
from ..utils.config import datasets, type_name
from ..utils.errors import UserError, UserFileError
from ..utils.paths import show_path
from .configs import Base, find_base
from .runs import Metric, RunLog, find_runs, is_count, is_number, read_run, sessions

MOST_RUNS = 200  # in one page
POINTS = 300  # of a curve; a longer one is thinned
AP_OF_CLASS = '_precision'
# Task, default scope of its toolbox, start of its metrics.
TASKS = (
    ('Classification', 'mmpretrain', 'accuracy/'),
    ('Detection', 'mmdet', 'coco/'),
    ('Segmentation', 'mmseg', 'mIoU'),
)
ORDER = [*(name for name, _, _ in TASKS), 'Other']
MAIN_METRICS = ('accuracy/top1', 'coco/bbox_mAP', 'coco/segm_mAP', 'mIoU')
COUNTERS = ('step', 'iter', 'epoch')
NO_METRIC = (*COUNTERS, 'data_time', 'time')
LABELS = {
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
COCO_WORDS = {'bbox_mAP': 'box AP', 'segm_mAP': 'mask AP', '_50': ' at IoU 0.5', '_75': ' at IoU 0.75'}
COCO_SIZES = {'_s': ', small', '_m': ', medium', '_l': ', large'}


def measure_of(key: str) -> Metric:
    """How to show a key of the log; COCO's AP in percent, as everybody writes it."""
    if key.startswith('coco/') and ('mAP' in key or key.endswith(AP_OF_CLASS)):
        name = key[len('coco/') :]
        for short, long in COCO_WORDS.items():
            name = name.replace(short, long)
        return Metric(f'{name[:-2]}{COCO_SIZES.get(name[-2:], name[-2:])} (%)', key, 100, decimals=1)
    return Metric(LABELS.get(key, key), key, lower='loss' in key)


@dataclass
class Run:
    """One run as the page shows it.

    Args:
        log (RunLog): What it measured.
        task (str): 'Classification, RMCIFAR10' ... Only runs of one task are compared.
        measure (Metric, optional): Its main result, None if it was never validated.
        updated (float): When its logs last grew, in seconds since the epoch.
        environment (dict[str, str]): What mmengine wrote at the head of the text log.
        base (Base, optional): The shipped config that it is a run of.
        notes (list[str]): What to know about it.
        name (str): What to call it; unique in its task.
        group (str): The name of the runs that differ from it in their seed alone.
    """

    log: RunLog
    task: str
    measure: Optional[Metric]
    updated: float
    environment: Dict[str, str]
    base: Optional[Base]
    notes: List[str] = field(default_factory=list)
    name: str = ''
    group: str = ''

    @property
    def seed(self) -> Optional[int]:
        if self.log.seed is not None:
            return self.log.seed
        named = self.environment.get('seed', '')
        return int(named) if named.isdecimal() else None

    @property
    def iterations_per_step(self) -> int:
        """1 of a run that counts iterations; else those of an epoch, the least number that agrees with all records."""
        if self.log.unit == 'iterations':
            return 1
        records = (record for record in self.log.iterations.values() if is_count(record.get('epoch')))
        shares = [record['step'] / record['epoch'] for record in records if record['epoch'] > 0]
        return max(math.ceil(max(shares) - 1e-9), 1) if shares else 1

    @property
    def pace(self) -> Optional[float]:
        """Seconds per iteration, the mean of the last records."""
        times = [record['time'] for record in list(self.log.iterations.values())[-20:] if is_number(record.get('time'))]
        return statistics.fmean(times) if times else None


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


# --------------------------------------------------------------------------------------------------------- finding runs
def collect(given: Sequence[Union[str, Path]], most: int = MOST_RUNS) -> Collected:
    """Read the runs in and below some folders.

    Args:
        given (Sequence[str | Path]): Folders of runs, or folders that hold some at any depth.
        most (int): Runs at most; those whose logs grew last are kept. Defaults to :data:`MOST_RUNS`.

    Raises:
        UserFileError: If a folder does not exist, or there is no log in any of them.
    """
    known: Dict[str, Path] = {}  # each once, also behind links
    runs, left_out = [], []
    for root in (Path(each).expanduser() for each in given):
        if not root.is_dir():
            raise UserFileError(f'{root} is not an existing folder: give the folder of a run, or one that holds runs.')
        below = find_runs(root)
        for folder in below:
            known.setdefault(os.path.realpath(folder), folder)
        if not below:
            left_out.append(f'{show_path(root)}: no log of mmengine in it (<time>/vis_data/scalars.json)')
    folders = sorted(known.values(), key=_updated, reverse=True)
    if len(folders) > most:
        left_out.append(f'{len(folders) - most} of {len(folders)} runs: the page holds {most}, those that ran last')
    for folder in [each for each in known.values() if each in folders[:most]]:
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
        raise UserFileError(f'no run found in {", ".join(map(str, given))}: {"; ".join(left_out[:5])}')
    runs.sort(key=lambda run: (ORDER.index(run.task.split(',')[0]), run.task))
    for _, members in itertools.groupby(runs, key=lambda run: run.task):
        _name(list(members))
    return Collected(runs, left_out, [Path(each) for each in given])


def _updated(folder: Path) -> float:
    """When a run's logs last grew."""
    logs = (*folder.glob('*/vis_data/*.json'), *folder.glob('*/*.log'))
    return max(path.stat().st_mtime for path in logs)


def _name(runs: List[Run]) -> None:
    """Name the runs of a task and groups by their paths below the folder that holds all, a single one by two parts."""
    owners = {run.log.owner: Path(os.path.abspath(run.log.owner)) for run in runs}
    above = Path(os.path.commonpath([owner.parent for owner in owners.values()]))
    above = above.parent if len(owners) == 1 else above
    for run in runs:
        run.group = owners[run.log.owner].relative_to(above).as_posix()
        run.name = run.group if run.log.owner == run.log.folder else f'{run.group}/{run.log.folder.name}'


# ---------------------------------------------------------------------------------------------------------- reading one
def _read(folder: Path) -> Run:
    log, found = read_run(folder), sessions(folder)
    texts = [session / f'{session.name}.log' for session in reversed(found)]
    text = next((path for path in texts if path.is_file()), None)
    task, measure = _task(log)
    environment = read_environment(text) if text else {}
    run = Run(log, task, measure, _updated(folder), environment, find_base(log))
    if log.settings is None:
        run.notes.append('no config in its folder: its length, seed and settings are not known')
    if measure is None:
        run.notes.append('not validated yet')
    if len(found) > 1:
        run.notes.append(f'{len(found)} sessions, merged')
    last = list(log.iterations.values())[-1] if log.iterations else {}
    if 'loss' in last and not is_number(last['loss']):
        run.notes.append(f'its loss is {last["loss"]} at iteration {last["step"]}')
    return run


def _task(log: RunLog) -> Tuple[str, Optional[Metric]]:
    """The task with its data, and the main result."""
    keys = list(dict.fromkeys(key for metrics in log.validations.values() for key in metrics))
    scope = (log.settings or {}).get('default_scope')
    found = [
        task
        for task, toolbox, start in TASKS
        if any(key.startswith(start) for key in keys) or (not keys and scope == toolbox)
    ]
    task = found[0] if len(found) == 1 else 'Other'
    rest = [key for key in keys if key not in NO_METRIC and not class_of(key)]
    main = next((metric for metric in map(measure_of, (*MAIN_METRICS, *rest)) if log.values(metric)), None)
    trained = ((log.settings or {}).get('train_dataloader') or {}).get('dataset') or {}
    data = next((type_name(each) for each, _ in datasets(trained)), '')
    return f'{task}, {data}' if data else task, main


def class_of(key: str) -> Optional[str]:
    """The class that a metric is of; None if it is of all."""
    if key.startswith(IOU_OF_CLASS):
        return key[len(IOU_OF_CLASS) :]
    if key.endswith(AP_OF_CLASS) and key.startswith('coco/'):
        return key[len('coco/') : -len(AP_OF_CLASS)]
    return None


def read_environment(path: Path) -> Dict[str, str]:
    """What mmengine wrote about versions, hardware and seeds at the head of a text log."""
    with open(path, 'rb') as file:
        head = file.read(24576).decode(errors='replace')
    _, _, block = head.partition('System environment:')
    block = block.partition('\n-----')[0]
    found = re.findall(r'^ {4}([^:\n]+): (.+)$', block, re.M)
    return {key.strip(): value.strip()[:200] for key, value in found if 'compiling details' not in key}


# --------------------------------------------------------------------------------------------------------------- curves
def curves(run: Run, points: int = POINTS) -> dict:
    """The curves of a run: ``{'train': {x, every, keys}, 'val': {x, every, keys}}``, None where a value is missing.

    A curve that will have more than ``points`` records is thinned: each point is the mean of neighbours, ``low`` and
    ``high`` hold their least and greatest value.
    """
    per_step = run.iterations_per_step
    train = [(step / per_step, record) for step, record in run.log.iterations.items()]
    val = sorted(run.log.validations.items())
    length = run.log.length or max((x for x, _ in [*train, *val]), default=1)
    return dict(
        train=_thin(train, length, points, lambda key: key not in COUNTERS),
        val=_thin(val, length, points, lambda key: key not in NO_METRIC and not class_of(key)),
    )


def _thin(records: Sequence[Tuple[float, dict]], length: float, points: int, wanted) -> dict:
    # As many as there will be at the end, so that seeds that are not equally far have their points at the same places.
    share = records[-1][0] / length if records else 0
    width = length / points if share and len(records) / min(share, 1) > points else 0
    buckets: Dict[float, List[dict]] = {}
    for x, record in records:
        end = max(math.ceil(x / width - 1e-9), 1) * width if width else x
        buckets.setdefault(end, []).append(record)
    drawn: dict = {}
    for key in filter(wanted, dict.fromkeys(key for _, record in records for key in record)):
        measure = measure_of(key)
        shown = [[measure.shown(record) for record in bucket] for bucket in buckets.values()]
        shown = [[value for value in bucket if value is not None] for bucket in shown]
        low, high = ([_short(pick(bucket)) if bucket else None for bucket in shown] for pick in (min, max))
        if any(shown):
            y = [_short(sum(bucket) / len(bucket)) if bucket else None for bucket in shown]
            drawn[key] = dict(y=y) if low == high else dict(y=y, low=low, high=high)
    every = max((len(bucket) for bucket in buckets.values()), default=1)
    return dict(x=[_short(x) for x in buckets], every=every, keys=drawn)


def _short(value: float) -> float:
    """Six digits that count: more than a screen shows, half of what a float takes."""
    return float(f'{value:.6g}')
