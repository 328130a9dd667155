"""Groups of runs against each other: differences with intervals, results by class and size, the paper's tables."""

import statistics
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..utils.errors import UserFileError
from . import tables
from .collect import Measure, Run, is_number, measure_of, of_class
from .configs import sweep_of
from .intervals import Difference, difference, welch_difference
from .published import TABLES, Table
from .runs import RunLog

SIZES = ('coco/{}_mAP', 'coco/{}_mAP_50', 'coco/{}_mAP_75', 'coco/{}_mAP_s', 'coco/{}_mAP_m', 'coco/{}_mAP_l')


class Compared(NamedTuple):
    """A group beside the reference.

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
    """Every other group beside ``reference``, and what could not be compared, a line each."""
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
    mine, theirs = ([run.values(measure) for run in each] for each in (runs, others))
    mine, theirs = [each for each in mine if each], [each for each in theirs if each]
    if not mine or not theirs:
        return None
    steps = set.intersection(*(set(each) for each in [*mine, *theirs]))
    if not steps:
        return None
    step = max(steps)
    seeds, other_seeds = (
        {run.seed: run.values(measure)[step] for run in each if run.seed is not None and run.values(measure)}
        for each in (runs, others)
    )
    a, b = [each[step] for each in mine], [each[step] for each in theirs]
    paired = set(seeds) & set(other_seeds)
    count = 'one run each' if len(a) == len(b) == 1 else f'{len(a)} and {len(b)} runs'
    if len(paired) == 1 and len(seeds) == len(other_seeds) == 1:
        shown, how = Difference(_mean(a) - _mean(b), None, None, 1), 'one run each, same seed'
    elif len(paired) > 1 and len(seeds) == len(mine) and len(other_seeds) == len(theirs):
        shown = difference(seeds, other_seeds)
        how = f'paired by seed, n = {len(paired)}'
    else:
        shown, how = welch_difference(a, b), f'seeds differ, {count}'
    pick = min if measure.lower else max
    best = _mean([pick(each.values()) for each in mine]) - _mean([pick(each.values()) for each in theirs])
    return Compared(name, step, _mean(a), _mean(b), shown, how, best)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


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
    found = []
    for kind, what in (('bbox', 'box AP'), ('segm', 'mask AP')):
        keys = [key.format(kind) for key in SIZES]
        rows = [(measure_of(key).label, _last(groups, key)) for key in keys]
        rows = [row for row in rows if any(value is not None for value in row[1])]
        if rows:
            found.append(Breakdown(f'{what} by overlap and size', 'measure', rows))
    keys = dict.fromkeys(
        key
        for runs in groups.values()
        for run in runs
        for metrics in list(run.log.validations.values())[-1:]
        for key in metrics
        if of_class(key)
    )
    for title, chosen in (
        (_ap_by_class(groups), [key for key in keys if key.startswith('coco/')]),
        ('IoU by class', [key for key in keys if not key.startswith('coco/')]),
    ):
        rows = [(of_class(key) or key, _last(groups, key)) for key in chosen]
        rows = [row for row in rows if any(value is not None for value in row[1])]
        if rows:
            found.append(Breakdown(title, 'class', sorted(rows, key=_order)))
    return found


def _ap_by_class(groups: Dict[str, List[Run]]) -> str:
    """mmdet gives one AP a class: that of the masks where there are some."""
    runs = (run for each in groups.values() for run in each)
    masks = any('coco/segm_mAP' in metrics for run in runs for metrics in run.log.validations.values())
    return 'mask AP by class' if masks else 'box AP by class'


def _last(groups: Dict[str, List[Run]], key: str) -> List[Optional[float]]:
    found = []
    for runs in groups.values():
        values = [list(run.values(measure_of(key)).values())[-1:] for run in runs]
        flat = [value for each in values for value in each if is_number(value)]
        found.append(_mean(flat) if flat else None)
    return found


def _order(row: Tuple[str, List[Optional[float]]]) -> float:
    """Two groups: by how much the second one is ahead; else the best first."""
    values = [value for value in row[1] if value is not None]
    if len(row[1]) > 1 and row[1][0] is not None and row[1][-1] is not None:
        return row[1][0] - row[1][-1]
    return -max(values)


# -------------------------------------------------------------------------------------------------------------- tables
def paper_tables(runs: Sequence[Run]) -> List[Tuple[str, Table, List[tables.Filled]]]:
    """The paper's tables that some of the runs stand in, filled with them alone."""
    given: Dict[str, List[Path]] = {}
    for run in runs:
        sweep = sweep_of(run.log.folder)
        for key in filter(None, (run.base.config if run.base and not sweep else None, sweep)):
            given.setdefault(key, []).append(run.log.folder)
    known = {run.log.folder: run.log for run in runs}

    def read(folder: Path) -> RunLog:
        if folder not in known:
            raise UserFileError(f'{folder} is none of the runs of this page.')
        return known[folder]

    found = []
    for name, table in TABLES.items():
        mine = [
            row
            for row in table.rows
            if set(row.configs) & set(given) or (row.sweep and '/'.join(('sweep', *row.sweep)) in given)
        ]
        if mine:
            found.append((name, table, tables.fill(table, Path('no-other-runs-than-those-given'), given, read)))
    return found
