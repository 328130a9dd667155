#!/usr/bin/env python
"""A run's validation curve, or its training loss, beside those of RecursiveMix's authors; also while it still trains.

``authors_curve.json`` holds their logs as numbers: three runs of CIFAR-10, one of ImageNet, validations of ATSS and
UperNet. The logs are of December 2021; the region that their code pooled then may have been transposed
(docs/recursive_mix.md).
"""

import functools
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

from mmrm.cli.options import Parser
from mmrm.report import grids
from mmrm.report.runs import Metric, RunLog, read_run
from mmrm.utils import figures
from mmrm.utils.errors import UserValueError, cli
from mmrm.utils.paths import find, show_path
from tools.analysis import plots

DATA = Path(__file__).with_suffix('.json')
WINDOW = 10  # iterations whose mean mmengine logs
LOSSES = ('loss', 'loss_consistency', 'rm_entropy')  # their sum is what the authors log
HEADERS = ('Step', 'This run', "Authors' lowest", "Authors' highest", 'Place')
LOSS_HEADERS = (
    *('Epoch', 'Iteration', 'Loss, mean so far', "Authors' mean", "Authors' lowest", "Authors' highest", 'Difference'),
)
Losses = Dict[Tuple[int, int], float]  # (epoch, iteration in it) -> mean training loss since the epoch's start


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


def comparison_text(run: RunLog, curves: Curves) -> Optional[str]:
    """The last validation of a run against the authors' at the same step; None if there is nothing to compare."""
    values = measured(run, curves)
    step = max((step for step in values if curves.band(step)), default=None)
    if step is None:
        return None
    low, high = curves.band(step)
    whose = f"the authors' {len(curves.runs)} runs" if len(curves.runs) > 1 else "the authors' run"
    theirs = f'{low:.1f}' if low == high else f'{low:.1f} to {high:.1f}'
    around = f' ({curves.around_text(step)})' if curves.around else ''
    return f'{curves.unit} {step}: {values[step]:.1f}, {whose} had {theirs}{around}'


def read(folder: Path, config: Optional[str] = None) -> Tuple[RunLog, Curves]:
    """A run and the authors' curves of its config; of ``<regulariser>/<config name>[/seed<N>]`` if none is given.

    Raises:
        UserValueError: If the authors have no log of that config.
    """
    run = read_run(folder)
    curves = curves_of(config or f'{run.owner.parent.name}/{run.owner.name}.py')
    if curves is None:
        known = ', '.join(f'configs/{name}.py' for name in sorted(all_curves()))
        asked = f'config {config}' if config else f'the folder {show_path(run.folder)}'
        raise UserValueError(f"{asked} does not name a run that the authors' logs have. Give --config, one of {known}.")
    return run, curves


def table_lines(run: RunLog, curves: Curves) -> List[List[str]]:
    """Step, this run's value, the authors' range and whether the value lies in it, a row per validation."""
    lines = []
    for step, value in measured(run, curves).items():
        band = curves.band(step)
        if band:
            place = 'below' if value < band[0] else 'above' if value > band[1] else 'within'
            lines.append([str(step), f'{value:.2f}', f'{band[0]:.2f}', f'{band[1]:.2f}', place])
    return lines


# --------------------------------------------------------------------------------------------------------------- losses
def authors_losses(curves: Curves) -> Dict[Tuple[int, int], List[float]]:
    """(Epoch, iteration) -> the mean loss of each of the authors' runs, where all have logged it.

    Raises:
        UserValueError: If their logs have no loss of this config.
    """
    if not curves.losses:
        raise UserValueError(f"the authors' logs of {curves.name} have no loss of single iterations.")
    runs = [
        {(epoch, at): value for epoch, values in run.items() for at, value in values.items()}
        for run in curves.losses.values()
    ]
    return {point: [run[point] for run in runs] for point in sorted(set.intersection(*map(set, runs)))}


def running_losses(run: RunLog, curves: Curves) -> Losses:
    """The mean training loss of a run since an epoch's start, as the authors count it, in the epochs that they have.

    Raises:
        UserValueError: If the authors' logs have no loss of this config, or the run did not log what it takes.
    """
    known = {epoch for epoch, _ in authors_losses(curves)}
    found: Losses = {}
    before, done, total = 0, 0, 0.0
    for step, record in run.iterations.items():
        epoch = record.get('epoch')
        if epoch not in known:
            continue
        if epoch != before:
            before, done, total = epoch, 0, 0.0
        # mmengine counts the iterations of all epochs and logs every tenth of each, but not an epoch's last ones.
        iteration = step - (epoch - 1) * curves.iterations
        _check_record(run, curves, record, iteration, done)
        total += (iteration - done) * sum(record.get(key, 0.0) for key in LOSSES)
        done = iteration
        found[epoch, iteration] = total / iteration
    return found


def _check_record(run: RunLog, curves: Curves, record: dict, iteration: int, before: int) -> None:
    """Raise unless a record of the log can be compared: it has all parts of the loss, of all iterations since before.

    A record is the mean of ten iterations, however many there were.
    """
    where = show_path(run.folder)
    if not 0 < iteration <= curves.iterations:
        raise UserValueError(
            f"{where} is not as long as the authors' run: step {record.get('step')} cannot be in epoch "
            f'{record["epoch"]}, as their epochs have {curves.iterations} iterations.'
        )
    lacks = 'did not log rm_entropy' if 'rm_entropy' not in record else ''
    if iteration - before > WINDOW:
        lacks = f'logged only every {iteration - before} iterations'
    if lacks:
        raise UserValueError(
            f"{where} {lacks}, so that the losses cannot be compared. Train with dict(type='LogConsistencyHook') in "
            f'custom_hooks and --cfg-options default_hooks.logger.interval={WINDOW}'
        )


def loss_lines(run: RunLog, curves: Curves) -> List[List[str]]:
    """The lines under :data:`LOSS_HEADERS`: a run's mean loss so far, the authors' mean and range, the difference."""
    lines, mine = [], running_losses(run, curves)
    for point, theirs in authors_losses(curves).items():
        if point in mine:
            mean = statistics.fmean(theirs)
            numbers = (mine[point], mean, min(theirs), max(theirs))
            difference = f'{100 * (mine[point] / mean - 1):+.1f} %'
            lines.append([*map(str, point), *(f'{number:.3f}' for number in numbers), difference])
    return lines


def prediction_reach(losses: Dict[Tuple[int, int], List[float]], point: Tuple[int, int]) -> float:
    """How far from their mean one more run would lie at most, 19 times in 20, by their spread (Student's t).

    The standard deviation is pooled over the point and its two neighbours, which differ little.
    """
    from scipy.stats import t

    points = [each for each in losses if each[0] == point[0]]
    at = points.index(point)
    near = [losses[each] for each in points[max(at - 1, 0) : at + 2]]
    count = len(losses[point])
    # Three neighbouring means of the same runs say little more than one: the freedom is that of one.
    deviation = math.sqrt(statistics.fmean(statistics.variance(values) for values in near))
    return t.ppf(0.975, count - 1) * deviation * math.sqrt(1 + 1 / count)


def loss_verdict(run: RunLog, curves: Curves) -> Optional[str]:
    """Where a run's loss lies at the last point of the authors', in a sentence; None if there is no such point yet."""
    mine, losses = running_losses(run, curves), authors_losses(curves)
    point = max(set(mine) & set(losses), default=None)
    if point is None:
        return None
    value, mean = mine[point], statistics.fmean(losses[point])
    found = f'epoch {point[0]}, iteration {point[1]}: {value:.3f}, {100 * (value / mean - 1):+.1f} % from their mean'
    if len(curves.losses) < 2:
        return f'{found}; one run has no spread to judge it by'
    reach = prediction_reach(losses, point)
    place = 'within' if abs(value - mean) <= reach else 'outside'
    return (
        f'{found}; {place} the 95 % prediction interval of their {len(curves.losses)} runs, '
        f'{mean - reach:.3f} to {mean + reach:.3f}'
    )


# -------------------------------------------------------------------------------------------------------------- drawing
def draw(run: RunLog, curves: Curves):
    """The run's curve over the authors': their range over neighbouring epochs as a band, each of their runs a line."""
    figure = figures.new_figure(6.4, 4)
    axes = figure.subplots()
    plots.tidy(axes, curves.unit, f'{curves.key}, %', curves.name)
    if curves.around:
        steps = sorted({step for values in curves.runs.values() for step in values})
        label = f'authors, range over {len(curves.runs)} run(s) and {2 * curves.around + 1} epochs'
        axes.fill_between(steps, *zip(*map(curves.band, steps)), color='#999999', alpha=0.35, linewidth=0, label=label)
    for number, values in enumerate(curves.runs.values()):
        label = None if number else "the authors' runs"
        axes.plot(list(values), list(values.values()), color='#666666', linewidth=0.8, label=label)
    mine = measured(run, curves)
    plots.curve(axes, list(mine), [list(mine.values())], 'RM', label='this run')
    axes.legend(fontsize=7, frameon=False, loc='lower right')
    source = 'authors: their training logs of December 2021 (tools/analysis/authors_curve.json)'
    plots.provenance(figure, [f'run: {show_path(run.folder)}, {run.state}', source])
    return figure


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument('run', help='folder of the run')
    parser.add_argument('out', nargs='?', help='picture to write: .png, .svg or .pdf (default: none, only the table)')
    parser.add_argument(
        '--config', help='its config, where the folder does not name it, e.g. configs/rm/resnet50_8xb64_in1k.py'
    )
    parser.add_argument(
        '--loss',
        action='store_true',
        help='compare the training loss of the first epochs instead; the run must log rm_entropy',
    )
    parser.add_argument('--overwrite', action='store_true', help='replace an existing picture')
    args = parser.parse_args(argv)
    if args.out and args.loss:
        parser.error('--loss gives a table: there is no picture of it')
    if args.out:
        figures.check_picture(args.out, args.overwrite)
    run, curves = read(find(args.run), args.config)
    if args.loss:
        print('\n'.join(grids.render('terminal', LOSS_HEADERS, loss_lines(run, curves), right=range(7))))
        print(loss_verdict(run, curves) or "no iteration yet at which the authors' loss is known")
    else:
        print('\n'.join(grids.render('terminal', HEADERS, table_lines(run, curves), right=range(4))))
        print(comparison_text(run, curves) or 'no validation yet that the authors have, too')
    if args.out:
        print(figures.save(draw(run, curves), args.out, args.overwrite))


if __name__ == '__main__':
    main()
