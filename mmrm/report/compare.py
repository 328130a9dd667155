"""Groups of runs against each other: differences with intervals, results by class and size, the paper's tables."""

import statistics
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..utils.errors import UserFileError
from . import tables
from .collect import Measure, Run, class_of, measure_of
from .configs import sweep_of
from .intervals import Difference, difference, welch_difference
from .published import TABLES, Table
from .runs import RunLog

SIZES = ('coco/{}_mAP', 'coco/{}_mAP_50', 'coco/{}_mAP_75', 'coco/{}_mAP_s', 'coco/{}_mAP_m', 'coco/{}_mAP_l')


class Compared(NamedTuple):
    """A group against the reference.

    Args:
        group (str): Its name.
        step (int): The last step that all runs of both have measured.
        value (float): Its mean there.
        other (float): The reference's mean there.
        difference (Difference): With its 95 % interval, None where there are too few runs for one.
        how (str): 'paired by seed' or 'seeds differ' (Welch's interval), with the number of runs.
        best (float): The difference of the means of the best results so far.
    """

    group: str
    step: int
    value: float
    other: float
    difference: Difference
    how: str
    best: float


def compare(groups: Dict[str, List[Run]], reference: str, measure: Measure) -> Tuple[List[Compared], List[str]]:
    """Every other group against ``reference``, and what could not be compared, a line each."""
    found, left_out = [], []
    for name, runs in groups.items():
        if name == reference:
            continue
        result = _compare(name, runs, groups[reference], measure)
        if result is None:
            left_out.append(f'{name}: no {measure.label} at a step that {reference} has measured, too')
        else:
            found.append(result)
    return found, left_out


def _compare(name: str, runs: List[Run], others: List[Run], measure: Measure) -> Optional[Compared]:
    mine, theirs = ([run for run in each if run.values(measure)] for each in (runs, others))
    step = last_common_step([*mine, *theirs], measure)
    if not mine or not theirs or step is None:
        return None
    a, b = ([run.values(measure)[step] for run in each] for each in (mine, theirs))
    seeds, other_seeds = (
        {run.seed: run.values(measure)[step] for run in each if run.seed is not None} for each in (mine, theirs)
    )
    paired = len(set(seeds) & set(other_seeds))
    if paired and len(seeds) == len(mine) and len(other_seeds) == len(theirs) and (paired > 1 or len(a) == len(b) == 1):
        shown = difference(seeds, other_seeds)
        how = f'paired by seed, n = {paired}' if paired > 1 else 'one run each, same seed'
    else:
        shown = welch_difference(a, b)
        how = f'seeds differ, {"one run each" if len(a) == len(b) == 1 else f"{len(a)} and {len(b)} runs"}'
    best, other = (
        statistics.fmean(run.values(measure)[run.best_step(measure)] for run in each) for each in (mine, theirs)
    )
    return Compared(name, step, statistics.fmean(a), statistics.fmean(b), shown, how, best - other)


def last_common_step(runs: Sequence[Run], measure: Measure) -> Optional[int]:
    """The last step at which all runs were validated."""
    steps = [set(run.values(measure)) for run in runs]
    return max(set.intersection(*steps), default=None) if steps else None


# ---------------------------------------------------------------------------------------------------- by class and size
class Breakdown(NamedTuple):
    """A table of parts of a result: the title, what stands above the names, and a row for each part.

    A row is its name and a value for each group, None where it has none.
    """

    title: str
    header: str
    rows: List[Tuple[str, List[Optional[float]]]]


def breakdowns(groups: Dict[str, List[Run]]) -> List[Breakdown]:
    """AP by size, AP by class and IoU by class at the last validation, the mean over a group's runs."""
    runs = [run for each in groups.values() for run in each]
    last = [list(run.log.validations.values())[-1] for run in runs if run.log.validations]
    keys = dict.fromkeys(key for metrics in last for key in metrics)
    by_class = {key: class_of(key) for key in keys if class_of(key)}
    # mmdet logs one AP by class: that of the masks where there are some.
    kind = 'mask' if 'coco/segm_mAP' in keys else 'box'
    found = []
    for title, header, names in (
        *(
            (f'{what} AP by overlap and size', 'measure', {key: measure_of(key).label for key in chosen})
            for what, chosen in (
                ('box', [k.format('bbox') for k in SIZES]),
                ('mask', [k.format('segm') for k in SIZES]),
            )
        ),
        (f'{kind} AP by class', 'class', {key: name for key, name in by_class.items() if key.startswith('coco/')}),
        ('IoU by class', 'class', {key: name for key, name in by_class.items() if not key.startswith('coco/')}),
    ):
        rows = [(name, [_last(each, key) for each in groups.values()]) for key, name in names.items()]
        rows = [row for row in rows if any(value is not None for value in row[1])]
        if rows:
            found.append(Breakdown(title, header, sorted(rows, key=_order) if header == 'class' else rows))
    return found


def _last(runs: List[Run], key: str) -> Optional[float]:
    values = [list(run.values(measure_of(key)).values())[-1] for run in runs if run.values(measure_of(key))]
    return statistics.fmean(values) if values else None


def _order(row: Tuple[str, List[Optional[float]]]) -> float:
    """Several groups: by how much the last one is ahead of the first; else the best first."""
    first, last = row[1][0], row[1][-1]
    if len(row[1]) > 1 and first is not None and last is not None:
        return first - last
    return -max(value for value in row[1] if value is not None)


# -------------------------------------------------------------------------------------------------------------- tables
def paper_tables(runs: Sequence[Run]) -> List[Tuple[str, Table, List[tables.Filled]]]:
    """The paper's tables that some of the runs stand in, filled with them alone."""
    given: Dict[object, List[Path]] = {}
    for run in runs:
        key = sweep_of(run.log.folder) or (run.base.config if run.base else None)
        given.setdefault(key, []).append(run.log.folder)
    known = {run.log.folder: run.log for run in runs}

    def read(folder: Path) -> RunLog:
        if folder not in known:
            raise UserFileError(f'{folder} is not a run of this page.')
        return known[folder]

    return [
        (name, table, tables.fill(table, Path('no-other-runs-than-those-given'), given, read))
        for name, table in TABLES.items()
        if any(key in given for row in table.rows for key in (*row.configs, row.sweep) if key)
    ]
