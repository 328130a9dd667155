"""Runs against the training logs of RecursiveMix's authors.

``authors_curves.json`` holds their logs as numbers: three runs of CIFAR-10, one of ImageNet, validations of ATSS and
UperNet. The logs are of December 2021; the region that their code pooled then may have been transposed
(docs/recursive_mix.md). ``tools/analysis/authors_curve.py`` draws a run over them.
"""

import functools
import json
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Tuple, Union

from .runs import Metric, RunLog

DATA = Path(__file__).with_suffix('.json')


class Curves(NamedTuple):
    """The authors' runs of one config.

    Args:
        name (str): What they trained.
        key (str): The metric's name in mmengine's logs.
        factor (float): What a logged value is multiplied with to be in percent.
        runs (dict[str, dict[int, float]]): Step -> percent of each run.
        unit (str): 'epoch' or 'iteration'.
        around (int): How many steps on either side are neighbours.
        losses (dict[str, dict[int, dict[int, float]]]): Epoch -> iteration in it -> mean training loss of each run
            since the epoch's start, in the first epochs; where their logs have it.
        iterations (int): In an epoch; known where the losses are.
    """

    name: str
    key: str
    factor: float
    runs: Dict[str, Dict[int, float]]
    unit: str = 'epoch'
    around: int = 0
    losses: Dict[str, Dict[int, Dict[int, float]]] = {}
    iterations: int = 0

    def band(self, step: int) -> Optional[Tuple[float, float]]:
        """Lowest and highest value of all runs at a step and its neighbours; None where the authors have none."""
        if not any(step in run for run in self.runs.values()):
            return None
        near = [value for run in self.runs.values() for at, value in run.items() if abs(at - step) <= self.around]
        return min(near), max(near)

    def around_text(self, step: int) -> str:
        """Which epochs :meth:`band` is of, such as 'epochs 8 to 12'; '' if it is of the step alone."""
        if not self.around:
            return ''
        last = max(at for run in self.runs.values() for at in run)
        return f'epochs {max(step - self.around, 1)} to {min(step + self.around, last)}'


def _numbered(node):
    """JSON's keys that are numbers as such."""
    if not isinstance(node, dict):
        return node
    return {int(key) if key.isdecimal() else key: _numbered(value) for key, value in node.items()}


@functools.cache
def all_curves() -> Dict[str, Curves]:
    """The authors' curves by ``<regulariser>/<config name>``."""
    found = {}
    for entry in json.loads(DATA.read_text(encoding='utf-8'))['curves']:
        configs = entry.pop('configs')
        found.update(dict.fromkeys(configs, Curves(**_numbered(entry))))
    return found


def curves_of(config: Union[str, Path, None]) -> Optional[Curves]:
    """The authors' curves of a config, by its folder and name; None if they have none."""
    return all_curves().get(f'{Path(config).parent.name}/{Path(config).stem}') if config else None


def measured(run: RunLog, curves: Curves) -> Dict[int, float]:
    """What a run measured of the authors' metric, in percent, by epoch or iteration."""
    return run.values(Metric(curves.name, curves.key, curves.factor))


class Comparison(NamedTuple):
    """A run's last validation that the authors have, too: the step, its value, and their range around it."""

    step: int
    value: float
    low: float
    high: float
    around: str


def last_comparison(run: RunLog, curves: Optional[Curves]) -> Optional[Comparison]:
    """The last validation of a run against the authors' at the same step; None if there is nothing to compare."""
    values = measured(run, curves) if curves else {}
    step = max((step for step in values if curves.band(step)), default=None)
    return None if step is None else Comparison(step, values[step], *curves.band(step), curves.around_text(step))


def comparison_text(run: RunLog, curves: Curves) -> Optional[str]:
    """:func:`last_comparison` as a line."""
    found = last_comparison(run, curves)
    if found is None:
        return None
    whose = f"the authors' {len(curves.runs)} runs" if len(curves.runs) > 1 else "the authors' run"
    theirs = f'{found.low:.1f}' if found.low == found.high else f'{found.low:.1f} to {found.high:.1f}'
    around = f' ({found.around})' if found.around else ''
    return f'{curves.unit} {found.step}: {found.value:.1f}, {whose} had {theirs}{around}'
