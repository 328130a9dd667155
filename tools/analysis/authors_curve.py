#!/usr/bin/env python
"""A run's validation curve, or its training loss, over those of RecursiveMix's authors; also while it still trains."""

import math
import statistics
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

from mmrm.cli.options import Parser
from mmrm.report import grids
from mmrm.report.authors_curves import Curves, all_curves, comparison_text, curves_of, measured
from mmrm.report.runs import RunLog, read_run
from mmrm.utils import figures
from mmrm.utils.errors import UserValueError, cli
from mmrm.utils.paths import find, show_path

WINDOW = 10  # iterations whose mean mmengine logs
LOSSES = ('loss', 'loss_consistency', 'rm_entropy')  # their sum is what the authors log
HEADERS = ('Step', 'This run', "Authors' lowest", "Authors' highest", 'Place')
LOSS_HEADERS = (
    *('Epoch', 'Iteration', 'Loss, mean so far', "Authors' mean", "Authors' lowest", "Authors' highest", 'Difference'),
)
Losses = Dict[Tuple[int, int], float]  # (epoch, iteration in it) -> mean training loss since the epoch's start


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
    figures.tidy(axes)
    if curves.around:
        steps = sorted({step for values in curves.runs.values() for step in values})
        label = f'authors, range over {len(curves.runs)} run(s) and {2 * curves.around + 1} epochs'
        axes.fill_between(steps, *zip(*map(curves.band, steps)), color='#999999', alpha=0.35, linewidth=0, label=label)
    for number, values in enumerate(curves.runs.values()):
        label = None if number else "the authors' runs"
        axes.plot(list(values), list(values.values()), color='#666666', linewidth=0.8, label=label)
    mine = measured(run, curves)
    style = dict(color=figures.COLOURS['RM'], linewidth=1.6, marker='o', markersize=3)
    axes.plot(list(mine), list(mine.values()), label='this run', **style)
    axes.set_xlabel(curves.unit)
    axes.set_ylabel(f'{curves.key}, %')
    axes.set_title(curves.name, fontsize=9)
    axes.legend(fontsize=7, frameon=False, loc='lower right')
    figures.provenance(figure, _sources(run, run.state))
    return figure


def _sources(run: RunLog, state: str) -> List[str]:
    return [
        f'run: {show_path(run.folder)}, {state}',
        'authors: their training logs of December 2021 (mmrm/report/authors_curves.json)',
    ]


def draw_loss(run: RunLog, curves: Curves):
    """The run's mean loss since the epoch's start over the authors', in the epochs that the run has begun.

    Raises:
        UserValueError: As :func:`running_losses`.
    """
    mine, losses = running_losses(run, curves), authors_losses(curves)
    epochs = sorted({epoch for epoch, _ in mine})
    if not epochs:
        raise UserValueError(f"{show_path(run.folder)} has not begun an epoch of which the authors' losses are known.")
    figure = figures.new_figure(max(6.4, 3.2 * len(epochs)), 4)
    for axes, epoch in zip(figure.subplots(1, len(epochs), squeeze=False)[0], epochs):
        figures.tidy(axes)
        points = [point for point in losses if point[0] == epoch]
        x = [iteration for _, iteration in points]
        if len(curves.losses) > 1:
            ranges = [(statistics.fmean(losses[point]), prediction_reach(losses, point)) for point in points]
            bounds = [mean - reach for mean, reach in ranges], [mean + reach for mean, reach in ranges]
            label = '95 % prediction interval for one more run'
            axes.fill_between(x, *bounds, color='#999999', alpha=0.3, linewidth=0, label=label)
        for number, values in enumerate(zip(*(losses[point] for point in points))):
            label = None if number else "the authors' runs"
            axes.plot(x, values, color='#666666', linewidth=0.8, marker='.', label=label)
        own = {iteration: value for (at, iteration), value in sorted(mine.items()) if at == epoch}
        axes.plot(list(own), list(own.values()), color=figures.COLOURS['RM'], linewidth=1.6, label='this run')
        axes.set_xlabel(f'iteration of epoch {epoch}')
        axes.set_title(curves.name, fontsize=9)
    figure.axes[0].set_ylabel("mean training loss since the epoch's start")
    figure.axes[0].legend(fontsize=7, frameon=False)
    figures.provenance(figure, _sources(run, f'{max(run.iterations)} iterations'))
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
        figure = (draw_loss if args.loss else draw)(run, curves)
        print(figures.save(figure, args.out, args.overwrite))


if __name__ == '__main__':
    main()
