"""What a run measured, however often it was interrupted, resumed or restarted.

mmengine writes one ``<time>/vis_data/scalars.json`` per session of a run, one record per line. A session that begins at
an epoch replaces what earlier sessions measured at that epoch and later.
"""

import functools
import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from ..utils.errors import UserFileError, one_line
from ..utils.processes import warn

SEED = re.compile(r'seed(\d+)')
DATA_FILE = 'data.json'  # of the run's folder: what it read
MAPPINGS = ('model', 'data_preprocessor', 'train_dataloader', 'val_dataloader', 'train_cfg', 'randomness')


class Metric(NamedTuple):
    """A number of the log and how it is shown.

    Args:
        header (str): What to call it; in the paper's tables, its name there.
        key (str): Its name in mmengine's logs (or in the results of tools/analysis/efficiency.py).
        factor (float): ``offset + factor * logged`` is what is shown.
        offset (float): See ``factor``.
        decimals (int): Digits after the point.
        lower (bool): Whether less is better.
        source (str): 'validation' and 'training' records of the log, or 'efficiency'.
    """

    header: str
    key: str
    factor: float = 1.0
    offset: float = 0.0
    decimals: int = 2
    lower: bool = False
    source: str = 'validation'

    def shown(self, record: dict) -> Optional[float]:
        """The number of a record as it is shown; None if it is missing, NaN, or COCO's -1 for no object."""
        logged = record.get(self.key)
        if not is_number(logged) or (logged < 0 and self.key.startswith('coco/')):
            return None
        return self.offset + self.factor * logged

    def best_step(self, values: Dict[int, float]) -> Optional[int]:
        """The first step with the best of some values, as they are shown."""
        return (min if self.lower else max)(values, key=lambda step: values[step], default=None)


@dataclass
class RunLog:
    """One training run.

    Args:
        folder (Path): Its work dir.
        validations (dict[int, dict]): Metrics by the epoch (or iteration) after which they were measured.
        trained (int): Epochs (or iterations) that are known to be done.
        length (int, optional): How many are planned, None if there is no config.
        unit (str): 'epochs' or 'iterations'.
        settings (dict, optional): The config that the run wrote down, None if there is none.
        iterations (dict[int, dict]): Training records by iteration, ascending.
        config (Path, optional): The file that ``settings`` were read from.
        data (dict, optional): What it read, ``{'train': {'samples': 50000, ...}, 'val': ...}``; None if it did not
            write that down, as before version 0.4.
    """

    folder: Path
    validations: Dict[int, dict] = field(default_factory=dict)
    trained: int = 0
    length: Optional[int] = None
    unit: str = 'epochs'
    settings: Optional[dict] = None
    iterations: Dict[int, dict] = field(default_factory=dict)
    data: Optional[dict] = None
    config: Optional[Path] = None

    @property
    def finished(self) -> bool:
        """Whether its last epoch is validated. Without a config the length is unknown, and it counts as unfinished."""
        return self.length is not None and max(self.validations, default=0) >= self.length

    @property
    def state(self) -> str:
        """'finished' or '57 of 200 epochs'."""
        if self.finished:
            return 'finished'
        return f'{self.trained} of {"?" if self.length is None else self.length} {self.unit}'

    @property
    def owner(self) -> Path:
        """Its folder, or, of a run in ``seed<N>``, the one that holds the seeds."""
        return self.folder.parent if SEED.fullmatch(self.folder.name) else self.folder

    @property
    def seed(self) -> Optional[int]:
        """The seed that its folder or its config names."""
        named = SEED.fullmatch(self.folder.name)
        if named:
            return int(named[1])
        seed = ((self.settings or {}).get('randomness') or {}).get('seed')
        return seed if isinstance(seed, int) else None

    @functools.cached_property
    def epochs(self) -> Dict[int, dict]:
        """The last training record of each epoch."""
        return {record['epoch']: record for record in self.iterations.values() if isinstance(record.get('epoch'), int)}

    @functools.cached_property
    def training(self) -> Dict[str, float]:
        """'memory', the peak in MB, and 'hours', the time of all iterations logged; where known."""
        found, seconds, before = {}, 0.0, 0
        memory = [record['memory'] for record in self.iterations.values() if is_number(record.get('memory'))]
        if max(memory, default=0) > 0:
            found['memory'] = float(max(memory))
        for step, record in self.iterations.items():
            if is_number(record.get('time')):  # seconds per iteration, the mean of the last ones
                seconds += record['time'] * (step - before)
                before = step
        if seconds:
            found['hours'] = seconds / 3600
        return found

    @property
    def saved_unit(self) -> str:
        """What the names of its checkpoints count if they count as its validations do: 'epoch' or 'iter'."""
        return 'epoch' if self.unit == 'epochs' else 'iter'

    def values(self, metric: Metric) -> Dict[int, float]:
        """A metric as it is shown, by the epoch (or iteration) of the validation, ascending."""
        shown = {step: metric.shown(metrics) for step, metrics in sorted(self.validations.items())}
        return {step: value for step, value in shown.items() if value is not None}

    def checkpoint(self, step: Optional[int], kind: str) -> Optional[Path]:
        """The file of a step: ``best_*_epoch_N.pth`` for the kind 'best', ``epoch_N.pth`` for 'last'; None if gone."""
        unit = self.saved_unit
        best = sorted(self.folder.glob(f'best_*_{unit}_{step}.pth')) if kind == 'best' else []
        return next((path for path in (*best, self.folder / f'{unit}_{step}.pth') if path.is_file()), None)


def is_number(value) -> bool:
    """Whether a logged value can be shown: not text, NaN or Inf."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def is_count(value) -> bool:
    """Whether a logged value can be an epoch or an iteration."""
    return isinstance(value, int) and is_number(value)


# ------------------------------------------------------------------------------------------------------------- sessions
def log_of(session: Path) -> Optional[Path]:
    """The log of a session's folder: its ``scalars.json``, or the copy that is named after the session."""
    logs = (session / 'vis_data' / name for name in ('scalars.json', f'{session.name}.json'))
    return next((log for log in logs if log.is_file() and log.stat().st_size), None)


def sessions(folder: Union[str, Path]) -> List[Path]:
    """The folders of a run's sessions that hold a log, by their names: the local time at which they started."""
    folder = Path(folder)
    return sorted(path for path in folder.iterdir() if log_of(path)) if folder.is_dir() else []


class Session(NamedTuple):
    """What one session logged.

    Args:
        trained (list[dict]): Its training records.
        validated (dict[int, dict]): Its validations by epoch (or iteration).
        progress (list[int]): The epochs (or iterations) of its training records.
    """

    trained: List[dict]
    validated: Dict[int, dict]
    progress: List[int]

    @property
    def begin(self) -> int:
        return min([*self.progress[:1], *list(self.validated)[:1]], default=0)

    @property
    def end(self) -> int:
        return max([*self.progress[-1:], *list(self.validated)[-1:]], default=0)


def read_session(session: Path, key: str) -> Session:
    """Read the log of a session, whose progress is counted by ``key``: 'epoch' or 'step'.

    Raises:
        UserFileError: If a line is nested so deeply that it is not a log.
    """
    found, log = Session([], {}, []), log_of(session)
    for line in log.read_text(errors='replace').splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # the line that a killed process was writing
            continue
        except RecursionError as error:
            raise UserFileError(f'{log} is not a log of mmengine: a line is nested too deeply.') from error
        if not isinstance(record, dict) or not is_count(record.get('step')):
            continue
        if 'iter' in record or 'lr' in record:
            found.trained.append(record)
            found.progress.extend([record[key]] if is_count(record.get(key)) else [])
        elif record['step'] > 0:  # 0 is a validation without training
            found.validated[record['step']] = record
    return found


def in_order(found: List[Session], by_epoch: bool) -> Iterator[Session]:
    """Sessions in the order of their names, but none before the one that it resumes from.

    The names are local time, which goes back by an hour when summer time ends.
    """
    steps = [step for each in found for step in (0, *each.progress)]
    gap = 1 if by_epoch else min((b - a for a, b in zip(steps, steps[1:]) if b > a), default=1)
    waiting, reached = list(found), 0
    while waiting:
        resumed = next((each for each in waiting if each.begin <= reached + gap), None)
        chosen = resumed or min(waiting, key=lambda each: each.begin)
        waiting.remove(chosen)
        reached = chosen.end
        yield chosen


def merge_sessions(folder: Union[str, Path], by_epoch: bool = True) -> RunLog:
    """What the logs of all sessions of a run say, without what a later one replaced; empty where there is none yet."""
    validations: Dict[int, dict] = {}
    iterations: Dict[int, dict] = {}
    done, key = 0, 'epoch' if by_epoch else 'step'
    for session in in_order([read_session(path, key) for path in sessions(folder)], by_epoch):
        if session.begin:
            validations = {step: metrics for step, metrics in validations.items() if step < session.begin}
        validations.update(session.validated)
        # The epoch that is logged is not finished yet.
        done = max([*validations, *(step - by_epoch for step in session.progress[-1:])], default=done)
        if session.trained:
            first = session.trained[0]['step']
            iterations = {step: record for step, record in iterations.items() if step < first}
            iterations.update((record['step'], record) for record in session.trained)
    return RunLog(Path(folder), validations, done, iterations=dict(sorted(iterations.items())))


# ----------------------------------------------------------------------------------------------------------------- runs
def find_runs(root: Union[str, Path]) -> List[Path]:
    """The folders below ``root`` (or ``root`` itself) that hold logs of mmengine, links followed, sorted."""
    found, seen = [], set()
    for folder, names, _ in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        names[:] = [] if real in seen else sorted(names)
        seen.add(real)
        if any(log_of(Path(folder) / name) for name in names):
            found.append(Path(folder))
            names[:] = [name for name in names if not (Path(folder) / name / 'vis_data').is_dir()]
    return sorted(found)


def read_run(folder: Union[str, Path]) -> RunLog:
    """Read all sessions of a run.

    Raises:
        UserFileError: If ``folder`` holds no log of mmengine.
    """
    folder = Path(folder)
    found = sessions(folder)
    if not found:
        raise UserFileError(f'{folder} holds no log of mmengine (<time>/vis_data/scalars.json).')
    config, settings = _read_settings(folder, found[-1])
    if (settings or {}).get('resume') and len(found) > 1:
        # A session that resumes names its own checkpoint: what the run began from is in the first one's config.
        begun = _read_settings(folder, found[0])[1] or {}
        settings = {**settings, 'load_from': begun.get('load_from'), 'resume': bool(begun.get('resume'))}
    unit, length = _length(settings)
    data = _read_data(folder / DATA_FILE)
    run = merge_sessions(folder, by_epoch=unit == 'epochs')
    return replace(run, settings=settings, unit=unit, length=length, data=data, config=config)


def _read_data(path: Path) -> Optional[dict]:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text())
        return {part: dict(found[part]) for part in ('train', 'val') if part in found}
    except (ValueError, TypeError, RecursionError) as error:
        raise UserFileError(f'{path} does not name the data of the run: {one_line(error)}') from error


def _read_settings(folder: Path, session: Path) -> Tuple[Optional[Path], Optional[dict]]:
    """The config that a session wrote down, else that in the run's folder, and what it says."""
    from ..utils.trust import read_settings  # mmengine, which a --help does not need

    refused = []
    for path in filter(Path.is_file, (session / 'vis_data' / 'config.py', *sorted(folder.glob('*.py')))):
        try:
            settings = read_settings(path)
            if all(isinstance(settings.get(key) or {}, dict) for key in MAPPINGS):
                return path, settings
            refused.append(f'config {path} is not a config of mmengine.')
        except UserFileError as error:  # code, or half written; a run without it can still be shown
            refused.append(str(error))
    if refused:
        warn(refused[0])
    return None, None


def _length(settings: Optional[dict]) -> Tuple[str, Optional[int]]:
    train = (settings or {}).get('train_cfg') or {}
    for key, unit in (('max_iters', 'iterations'), ('max_epochs', 'epochs')):
        if isinstance(train.get(key), int):
            return unit, train[key]
    return 'epochs', None
