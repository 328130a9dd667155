"""A run beside the training logs of RecursiveMix's authors, also while it is still under way.

``authors_curves.json`` holds their logs as numbers: three runs of CIFAR-10, one of ImageNet, validations of ATSS and
UperNet. The logs are of December 2021; the region that their code pooled then may have been transposed
(docs/recursive_mix.md).
"""

import functools
import json
import math
import statistics
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Set, Tuple, Union

from ..utils import figures
from ..utils.errors import UserValueError
from ..utils.paths import show_path
from .runs import RunLog, read_run

DATA = Path(__file__).with_suffix('.json')
BETWEEN_LOSSES = 100  # iterations
WINDOW = 10  # iterations whose mean mmengine logs
AROUND = 2  # epochs before and after one that count as its neighbours; validations of a detector stand alone


class Curves(NamedTuple):
    """The authors' runs of one config.

    Args:
        name (str): What they trained.
        key (str): The metric's name in mmengine's logs.
        factor (float): What a logged value is multiplied with to be in percent.
        runs (dict[str, dict[int, float]]): Step -> percent of each run.
        unit (str): 'epoch' or 'iteration'.
        around (int): How many steps on either side are neighbours.
        losses (dict[str, dict[tuple[int, int], float]]): (Epoch, iteration in it) -> mean training loss of each run
            since the epoch's start, in the first epochs; where their logs have it.
        iterations (int): In an epoch; known where the losses are.
    """

    name: str
    key: str
    factor: float
    runs: Dict[str, Dict[int, float]]
    unit: str = 'epoch'
    around: int = 0
    losses: Dict[str, Dict[Tuple[int, int], float]] = {}
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

    def logged(self) -> Set[Tuple[int, int]]:
        """The (epoch, iteration) at which all runs logged their loss."""
        return set.intersection(*(set(values) for values in self.losses.values()))

    def _losses(self, epoch: int, iteration: int) -> List[float]:
        return [values[epoch, iteration] for values in self.losses.values()]

    def mean_loss(self, epoch: int, iteration: int) -> float:
        """The mean over the runs."""
        return statistics.fmean(self._losses(epoch, iteration))

    def loss_range(self, epoch: int, iteration: int) -> Tuple[float, float]:
        """The lowest and the highest of the runs."""
        found = self._losses(epoch, iteration)
        return min(found), max(found)

    def loss_reach(self, epoch: int, iteration: int) -> float:
        """How far from their mean one more run would lie at most, 19 times in 20, by their spread (Student's t).

        The standard deviation is pooled over the point and its two neighbours, which differ little.
        """
        from scipy.stats import t

        near = [
            self._losses(epoch, at)
            for at in (iteration - BETWEEN_LOSSES, iteration, iteration + BETWEEN_LOSSES)
            if (epoch, at) in self.logged()
        ]
        count = len(self.losses)
        # Three neighbouring means of the same runs say little more than one: the freedom is that of one.
        deviation = math.sqrt(statistics.fmean(statistics.variance(values) for values in near))
        return t.ppf(0.975, count - 1) * deviation * math.sqrt(1 + 1 / count)


@functools.cache
def all_curves() -> Dict[str, Curves]:
    """The authors' curves by ``<regulariser>/<config name>``."""
    data = json.loads(DATA.read_text())
    found = {}
    classifiers = (
        ('rm/pyramidnet200_1xb64_cifar10', 'cifar10_pyramidnet200_rm', 'CIFAR-10, PyramidNet-200'),
        ('rm/resnet50_8xb64_in1k', 'imagenet_resnet50_rm', 'ImageNet, ResNet-50'),
    )
    for config, entry, name in classifiers:
        runs = {f'best {best}': _numbers(run['test_top1']) for best, run in data[entry].items()}
        losses = {
            f'best {best}': {
                (int(epoch), int(iteration)): value
                for epoch, values in run['running_loss_first_epochs'].items()
                for iteration, value in values.items()
            }
            for best, run in data[entry].items()
        }
        (iterations,) = {run['iterations_an_epoch'] for run in data[entry].values()}
        found[config] = Curves(name, 'accuracy/top1', 1, runs, around=AROUND, losses=losses, iterations=iterations)
    # The same run as they made it, in two processes.
    found['rm/pyramidnet200_2xb32_cifar10'] = found['rm/pyramidnet200_1xb64_cifar10']
    for kind, run in data['coco_atss_r50'].items():
        values = {int(step): metrics['bbox_mAP'] for step, metrics in run['val'].items()}
        found[f'{kind}/atss_r50_fpn_1x_coco'] = Curves('COCO, ATSS', 'coco/bbox_mAP', 100, {kind: values})
    for kind, run in data['ade20k_upernet_r50'].items():
        values = {int(step): metrics['mIoU'] for step, metrics in run['val'].items()}
        found[f'{kind}/upernet_r50_8xb2-80k_ade20k-512x512'] = Curves(
            'ADE20K, UperNet', 'mIoU', 1, {kind: values}, unit='iteration'
        )
    return found


def _numbers(values: Dict[str, float]) -> Dict[int, float]:
    return {int(step): value for step, value in values.items()}


def curves_of(config: Union[str, Path, None]) -> Optional[Curves]:
    """The authors' curves of a config, by its folder and name; None if they have none."""
    if config is None:
        return None
    path = Path(config)
    return all_curves().get(f'{path.parent.name}/{path.stem}')


def config_of(run: RunLog) -> Optional[str]:
    """``<regulariser>/<config name>`` of a run in a folder of the default scheme, ``.../seed<N>`` included."""
    folder = run.folder.parent if run.folder.name.startswith('seed') else run.folder
    name = f'{folder.parent.name}/{folder.name}'
    return name if name in all_curves() else None


def measured(run: RunLog, curves: Curves) -> Dict[int, float]:
    """What a run measured of the authors' metric, in percent, by epoch or iteration."""
    values = {step: metrics.get(curves.key) for step, metrics in run.validations.items()}
    return {
        step: value * curves.factor
        for step, value in sorted(values.items())
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def beside(run: RunLog, curves: Curves) -> Optional[str]:
    """The last validation of a run beside the authors' at the same step; None if there is nothing to compare."""
    values = {step: value for step, value in measured(run, curves).items() if curves.band(step)}
    if not values:
        return None
    step = max(values)
    low, high = curves.band(step)
    count = len(curves.runs)
    whose = f"the authors' {count} runs" if count > 1 else "the authors' run"
    near = f' ({curves.around_text(step)})' if curves.around else ''
    theirs = f'{low:.1f}' if low == high else f'{low:.1f} to {high:.1f}'
    return f'{curves.unit} {step}: {values[step]:.1f}, {whose} had {theirs}{near}'


def running_losses(run: RunLog, curves: Curves) -> Dict[Tuple[int, int], float]:
    """The mean training loss of a run since an epoch's start, as the authors count it, by (epoch, iteration in it).

    Only of the epochs of which the authors' losses are known.

    Raises:
        UserValueError: If the authors' logs have no loss of this config, or the run did not log what it takes.
    """
    if not curves.losses:
        raise UserValueError(f"the authors' logs of {curves.name} have no loss of single iterations.")
    found: Dict[Tuple[int, int], float] = {}
    known, before, done, total = {epoch for epoch, _ in curves.logged()}, 0, 0, 0.0
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
            f'{where} {lacks}, so that the losses cannot be compared. Train with '
            f'--cfg-options model.head.log_entropy=True default_hooks.logger.interval={WINDOW}'
        )


def loss_lines(run: RunLog, curves: Curves) -> List[List[str]]:
    """Epoch, iteration, this run's mean loss so far, the authors' mean and range, and the difference from their mean.

    Raises:
        UserValueError: If the authors' logs have no loss of this config, or the run did not log what it takes.
    """
    lines, mine = [], running_losses(run, curves)
    for epoch, iteration in sorted(curves.logged()):
        if (epoch, iteration) in mine:
            value, mean = mine[epoch, iteration], curves.mean_loss(epoch, iteration)
            low, high = curves.loss_range(epoch, iteration)
            lines.append(
                [
                    str(epoch),
                    str(iteration),
                    *(f'{number:.3f}' for number in (value, mean, low, high)),
                    f'{100 * (value / mean - 1):+.1f} %',
                ]
            )
    return lines


def loss_verdict(run: RunLog, curves: Curves) -> Optional[str]:
    """Where a run's loss lies at the last point of the authors', in a sentence; None if there is no such point yet."""
    mine = running_losses(run, curves)
    points = sorted(set(mine) & curves.logged())
    if not points:
        return None
    value, mean = mine[points[-1]], curves.mean_loss(*points[-1])
    epoch, iteration = points[-1]
    found = f'epoch {epoch}, iteration {iteration}: {value:.3f}, {100 * (value / mean - 1):+.1f} % from their mean'
    if len(curves.losses) < 2:
        return f'{found}; one run has no spread to judge it by'
    reach = curves.loss_reach(epoch, iteration)
    place = 'within' if abs(value - mean) <= reach else 'outside'
    return (
        f'{found}; {place} the 95 % prediction interval of their {len(curves.losses)} runs, '
        f'{mean - reach:.3f} to {mean + reach:.3f}'
    )


def read(folder: Union[str, Path], config: Optional[str] = None) -> Tuple[RunLog, Curves]:
    """A run and the authors' curves for it.

    Args:
        folder (str | Path): The run's work dir.
        config (str, optional): Its config, e.g. 'configs/rm/resnet50_8xb64_in1k.py'. Defaults to None: from its folder.

    Raises:
        UserValueError: If the authors have no log of that config.
    """
    run = read_run(folder)
    curves = curves_of(config) if config else all_curves().get(config_of(run) or '')
    if curves is None:
        known = ', '.join(f'configs/{name}.py' for name in sorted(all_curves()))
        asked = f'config {config}' if config else f'the folder {show_path(Path(folder))}'
        raise UserValueError(f"{asked} does not name a run that the authors' logs have. Give --config, one of {known}.")
    return run, curves


def draw(run: RunLog, curves: Curves):
    """The run's curve over the authors': their range over neighbouring epochs as a band, each of their runs a line."""
    figure = figures.new_figure(6.4, 4)
    axes = figure.subplots()
    figures.tidy(axes)
    steps = sorted({step for values in curves.runs.values() for step in values})
    if curves.around:
        low, high = zip(*(curves.band(step) for step in steps))
        axes.fill_between(
            steps,
            low,
            high,
            color='#999999',
            alpha=0.35,
            linewidth=0,
            label=f'authors, range over {len(curves.runs)} run(s) and {2 * curves.around + 1} epochs',
        )
    for number, values in enumerate(curves.runs.values()):
        axes.plot(
            list(values),
            list(values.values()),
            color='#666666',
            linewidth=0.8,
            label="the authors' runs" if number == 0 else None,
        )
    mine = measured(run, curves)
    axes.plot(
        list(mine),
        list(mine.values()),
        color=figures.COLOURS['RM'],
        linewidth=1.6,
        marker='o',
        markersize=3,
        label='this run',
    )
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
    mine = running_losses(run, curves)
    epochs = sorted({epoch for epoch, _ in mine} & {epoch for epoch, _ in curves.logged()})
    if not epochs:
        raise UserValueError(f"{show_path(run.folder)} has not begun an epoch of which the authors' losses are known.")
    figure = figures.new_figure(max(6.4, 3.2 * len(epochs)), 4)
    for axes, epoch in zip(figure.subplots(1, len(epochs), squeeze=False)[0], epochs):
        figures.tidy(axes)
        points = sorted(iteration for at, iteration in curves.logged() if at == epoch)
        if len(curves.losses) > 1:
            middle = [curves.mean_loss(epoch, at) for at in points]
            reach = [curves.loss_reach(epoch, at) for at in points]
            axes.fill_between(
                points,
                [mean - far for mean, far in zip(middle, reach)],
                [mean + far for mean, far in zip(middle, reach)],
                color='#999999',
                alpha=0.3,
                linewidth=0,
                label='95 % prediction interval for one more run',
            )
        for number, values in enumerate(curves.losses.values()):
            axes.plot(
                points,
                [values[epoch, at] for at in points],
                color='#666666',
                linewidth=0.8,
                marker='.',
                label="the authors' runs" if number == 0 else None,
            )
        own = {iteration: value for (at, iteration), value in sorted(mine.items()) if at == epoch}
        axes.plot(list(own), list(own.values()), color=figures.COLOURS['RM'], linewidth=1.6, label='this run')
        axes.set_xlabel(f'iteration of epoch {epoch}')
        axes.set_title(curves.name, fontsize=9)
    figure.axes[0].set_ylabel("mean training loss since the epoch's start")
    figure.axes[0].legend(fontsize=7, frameon=False)
    figures.provenance(figure, _sources(run, f'{max(run.iterations)} iterations'))
    return figure


def table_lines(run: RunLog, curves: Curves) -> List[List[str]]:
    """Step, this run's value, the authors' range and whether the value lies in it, a row per validation."""
    lines = []
    for step, value in measured(run, curves).items():
        band = curves.band(step)
        if band:
            place = 'below' if value < band[0] else 'above' if value > band[1] else 'within'
            lines.append([str(step), f'{value:.2f}', f'{band[0]:.2f}', f'{band[1]:.2f}', place])
    return lines


LOSSES = ('loss', 'loss_consistency', 'rm_entropy')  # their sum is what the authors log
LOSS_HEADERS = (
    'Epoch',
    'Iteration',
    'Loss, mean so far',
    "Authors' mean",
    "Authors' lowest",
    "Authors' highest",
    'Difference',
)
HEADERS = ('Step', 'This run', "Authors' lowest", "Authors' highest", 'Place')
