"""Which shipped config a run is of, what the paper has for it, and where the run's settings differ from it."""

import functools
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..utils.paths import shipped
from ..utils.settings import IGNORED, Difference, differences, plain, result_settings
from .published import METRICS, SAMPLES, TABLES
from .runs import RunLog

MOST_DIFFERENT = 12  # settings that decide the result; above, a run is not of that config


class Base(NamedTuple):
    """A shipped config that a run is of.

    Args:
        config (str): ``configs/<regulariser>/<name>.py``.
        differences (list[Difference]): Settings that decide the result and differ from it.
    """

    config: str
    differences: List[Difference]


class Published(NamedTuple):
    """The paper's number for a config, in the scale of the log (an accuracy, not an error), and 'best' or 'last'."""

    value: float
    reported: str


@functools.lru_cache(maxsize=64)
def read_shipped(config: str) -> Optional[dict]:
    """A shipped config as a dict; None if it cannot be read, such as one of a toolbox that is not installed."""
    from mmengine.config import Config

    try:
        return Config.fromfile(shipped() / config, import_custom_modules=False).to_dict()
    except Exception:  # whatever a base of another package raises
        return None


def differences_to(wanted: dict, settings: dict) -> List[Difference]:
    """The settings that decide the result, or how it is measured, and differ between a shipped config and a run."""
    measured = (*IGNORED, 'collect_device', 'collect_dir', 'prefix')  # what does not change a metric
    compared = (
        {**result_settings(each, True, True), 'val_evaluator': plain(each.get('val_evaluator'), measured)}
        for each in (wanted, settings)
    )
    return differences(*compared)


def other_data(config: str, run: RunLog) -> List[Difference]:
    """Where a run read another number of samples than the data set of a shipped config has; [] if it is not known."""
    name = Path(config).stem.rpartition('_')[2].partition('-512x512')[0]
    found = {part: values.get('samples') for part, values in (run.data or {}).items()}
    pairs = ((part, number, found.get(part, number)) for part, number in SAMPLES.get(name, {}).items())
    return [Difference(f'{part} samples', str(old), str(new)) for part, old, new in pairs if old != new]


def find_base(run: RunLog) -> Optional[Base]:
    """The shipped config that a run is of: by its folder, else by the name of the config in it and its settings."""
    named = f'configs/{run.owner.parent.name}/{run.owner.name}.py'
    stems = {run.owner.name, *(path.stem for path in run.folder.glob('*.py'))}
    best: Optional[Base] = None
    for config in shipped_configs():
        if Path(config).stem not in stems:
            continue
        wanted = read_shipped(config)
        known = wanted is not None and run.settings is not None
        found = Base(config, [*other_data(config, run), *(differences_to(wanted, run.settings) if known else [])])
        if config == named:
            return found
        fits = known and len(found.differences) <= MOST_DIFFERENT
        if fits and (best is None or len(found.differences) < len(best.differences)):
            best = found
    return best


@functools.lru_cache(maxsize=1)
def shipped_configs() -> List[str]:
    """``configs/<regulariser>/<name>.py`` of all."""
    return [path.relative_to(shipped()).as_posix() for path in sorted((shipped() / 'configs').glob('[!_]*/*.py'))]


@functools.lru_cache(maxsize=1)
def published_numbers() -> Dict[Tuple[str, str], Published]:
    """The paper's number by config and key of the log."""
    found: Dict[Tuple[str, str], Published] = {}
    for table in TABLES.values():
        for row in (row for row in table.rows if not row.method):
            for metric, value in zip((METRICS[name] for name in table.metrics), row.published):
                if metric.source == 'validation':
                    accuracy = 100 - value if metric.offset else value
                    for config in row.configs:
                        found.setdefault((config, metric.key), Published(accuracy, table.reported))
    return found
