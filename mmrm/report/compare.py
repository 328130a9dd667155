"""Groups of runs against each other: differences with intervals, results by class and size."""

import statistics
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .collect import Run, class_of, measure_of
from .configs import Published, published_numbers
from .intervals import Difference, difference, welch_difference
from .runs import Metric

SIZES = ('coco/{}_mAP', 'coco/{}_mAP_50', 'coco/{}_mAP_75', 'coco/{}_mAP_s', 'coco/{}_mAP_m', 'coco/{}_mAP_l')


class Result(NamedTuple):
    """What a run reached in the main metric of its task.

    Args:
        run (Run): The run.
        values (dict[int, float]): Its results by step, ascending, as they are shown.
        best_step (int, optional): The first step with the best one; None if it was never validated.
        paper (Published, optional): The paper's number.
    """

    run: Run
    values: Dict[int, float]
    best_step: Optional[int]
    paper: Optional[Published]

    @property
    def best(self) -> Optional[float]:
        return self.values.get(self.best_step)

    @property
    def last_step(self) -> Optional[int]:
        return max(self.values, default=None)

    @property
    def last(self) -> Optional[float]:
        return self.values.get(self.last_step)

    @property
    def to_paper(self) -> Optional[float]:
        """The difference to the paper's number, of the best or the last result as there."""
        if self.paper is None or not self.values:
            return None
        return (self.best if self.paper.reported == 'best' else self.last) - self.paper.value


def result_of(run: Run, measure: Optional[Metric]) -> Result:
    """The results of a run in a metric; without values where the task has none yet."""
    values = run.log.values(measure) if measure else {}
    paper = published_numbers().get((run.base.config, measure.key)) if run.base and measure else None
    return Result(run, values, measure.best_step(values) if measure else None, paper)


class Compared(NamedTuple):
    """A group against the reference.

    Args:
        step (int): The last step that all runs of both have measured.
        value (float): Its mean there.
        other (float): The reference's mean there.
        difference (Difference): With its 95 % interval, None where there are too few runs for one.
        how (str): 'paired by seed' or 'seeds differ' (Welch's interval), with the number of runs.
        best (float): The difference of the means of the best results up to that step.
    """

    step: int
    value: float
    other: float
    difference: Difference
    how: str
    best: float


def compare(results: Sequence[Result], others: Sequence[Result], measure: Metric) -> Optional[Compared]:
    """A group against the reference, ``others``; None if there is no step that both have measured."""
    mine, theirs = ([each for each in group if each.values] for group in (results, others))
    common = set.intersection(*(set(each.values) for each in (*mine, *theirs))) if mine and theirs else set()
    if not common:
        return None
    step = max(common)
    a, b = ([each.values[step] for each in group] for group in (mine, theirs))
    seeds, other_seeds = (
        {each.run.seed: each.values[step] for each in group if each.run.seed is not None} for group in (mine, theirs)
    )
    paired = len(set(seeds) & set(other_seeds))
    if paired and len(seeds) == len(mine) and len(other_seeds) == len(theirs) and (paired > 1 or len(a) == len(b) == 1):
        shown = difference(seeds, other_seeds)
        how = f'paired by seed, n = {paired}' if paired > 1 else 'one run each, same seed'
    else:
        shown = welch_difference(a, b)
        how = f'seeds differ, {"one run each" if len(a) == len(b) == 1 else f"{len(a)} and {len(b)} runs"}'
    until = [
        [{at: value for at, value in each.values.items() if at <= step} for each in group] for group in (mine, theirs)
    ]
    best, other = (statistics.fmean(each[measure.best_step(each)] for each in group) for group in until)
    return Compared(step, statistics.fmean(a), statistics.fmean(b), shown, how, best - other)


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
    last = [[list(run.log.validations.values())[-1] for run in each if run.log.validations] for each in groups.values()]
    keys = dict.fromkeys(key for records in last for record in records for key in record)
    by_class = [key for key in keys if class_of(key)]
    # mmdet logs one AP by class: that of the masks where there are some.
    kind = 'mask' if 'coco/segm_mAP' in keys else 'box'
    found = []
    for title, header, chosen in (
        ('box AP by overlap and size', 'measure', [key.format('bbox') for key in SIZES]),
        ('mask AP by overlap and size', 'measure', [key.format('segm') for key in SIZES]),
        (f'{kind} AP by class', 'class', [key for key in by_class if key.startswith('coco/')]),
        ('IoU by class', 'class', [key for key in by_class if not key.startswith('coco/')]),
    ):
        metrics = [measure_of(key) for key in chosen]
        rows = [(class_of(each.key) or each.header, [_mean(records, each) for records in last]) for each in metrics]
        rows = [row for row in rows if any(value is not None for value in row[1])]
        if rows:
            found.append(Breakdown(title, header, sorted(rows, key=_order) if header == 'class' else rows))
    return found


def _mean(records: List[dict], metric: Metric) -> Optional[float]:
    values = [value for value in map(metric.shown, records) if value is not None]
    return statistics.fmean(values) if values else None


def _order(row: Tuple[str, List[Optional[float]]]) -> float:
    """Several groups: by how much the last one is ahead of the first; else the best first."""
    first, last = row[1][0], row[1][-1]
    if len(row[1]) > 1 and first is not None and last is not None:
        return first - last
    return -max(value for value in row[1] if value is not None)
