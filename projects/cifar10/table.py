#!/usr/bin/env python
"""The table and the figure of the CIFAR-10 experiment, from its file of results.

Methods are compared seed by seed: the runs of a seed saw the same images, so the spread between parts of CIFAR-10 drops
out of a difference.
"""

import statistics
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import numpy as np

from mmrm.core import sample_box, sample_lambda
from mmrm.report import grids
from mmrm.report.intervals import Difference, difference
from mmrm.utils import figures
from mmrm.utils.errors import UserFileError, UserValueError, cli
from mmrm.utils.paths import home, show_path
from projects.cifar10.run import METHODS, WORK_DIR, read_results
from tools.analysis import plots
from tools.analysis.options import check_results, results_parser, table_format, write_table

NAMES = {'baseline': 'baseline', 'mixup': 'Mixup', 'cutmix': 'CutMix', 'rm-omega0': 'RM, ω = 0', 'rm': 'RM'}
COLOURS = {**{key: plots.COLOURS.get(name) for key, name in NAMES.items()}, 'rm-omega0': '#009E73'}
HEADERS = (
    *('method', 'n', 'last epoch', 'to baseline, 95 % interval', 'best epoch', 'to baseline'),
    *('last training loss', 'hours per run'),
)
FOLLOW_UP_HEADERS = ('follow-up', 'method', 'seeds', 'last epoch', 'to the protocol', 'to CutMix', 'last training loss')


def by_method(results: Sequence[dict]) -> Dict[str, Dict[int, dict]]:
    """Method -> seed -> result, in the order of the table.

    Raises:
        UserFileError: If there are none, or not all are of the same protocol.
    """
    found = {
        method: {result['seed']: result for result in results if result['method'] == method}
        for method in NAMES
        if any(result['method'] == method for result in results)
    }
    if not found:
        raise UserFileError('there are no results. They come from: python projects/cifar10/run.py')
    protocols = sorted({f'{result["epochs"]} epochs {result["settings"] or ""}'.strip() for result in results})
    if len(protocols) > 1:
        raise UserFileError(f'results of different protocols, {" and ".join(protocols)}, cannot be in one table')
    return found


def last(result: dict) -> float:
    """Test accuracy after the last epoch, the primary result."""
    return result['test'][result['epochs']]


def best(result: dict) -> float:
    """The best test accuracy of all epochs that were tested; choosing it on the test set makes it too good."""
    return max(result['test'].values())


def table_lines(results: Sequence[dict]) -> List[List[str]]:
    """A line of texts for each method under :data:`HEADERS`."""
    methods = by_method(results)
    lines = []
    for method, runs in methods.items():
        others = methods.get('baseline', {}) if method != 'baseline' else {}
        hours = statistics.fmean(result['hours'] for result in runs.values())
        lines.append(
            [
                NAMES[method],
                _count(method, runs),
                spread(map(last, runs.values())),
                difference_text(difference(runs, others, last)),
                spread(map(best, runs.values())),
                difference_text(difference(runs, others, best)),
                _last_loss(runs),
                f'{hours:.2f}',
            ]
        )
    return lines


def follow_up_lines(results: Sequence[dict], follow_ups: Dict[str, Sequence[dict]]) -> List[List[str]]:
    """A line of texts under :data:`FOLLOW_UP_HEADERS` for each method of each follow-up.

    Args:
        results (Sequence[dict]): Those of the protocol, with which every method is compared seed by seed.
        follow_ups (Dict[str, Sequence[dict]]): Name -> results, all under the same other settings. CutMix is compared
            with where it is among them.

    Raises:
        UserFileError: If one has no settings of its own.
    """
    protocol, lines = by_method(results), []
    for name, found in follow_ups.items():
        methods = by_method(found)
        if not found[0]['settings']:
            raise UserFileError(f'the results of {name} have no settings of their own: not a follow-up')
        for method, runs in methods.items():
            rivals = methods.get('cutmix', {}) if method != 'cutmix' else {}
            lines.append(
                [
                    name,
                    NAMES[method],
                    ', '.join(map(str, sorted(runs))),
                    spread(map(last, runs.values())),
                    difference_text(difference(runs, protocol.get(method, {}), last)),
                    difference_text(difference(runs, rivals, last)),
                    _last_loss(runs),
                ]
            )
    return lines


def comparisons(results: Sequence[dict]) -> List[str]:
    """RM beside its rivals, a sentence each, last epoch."""
    methods, lines = by_method(results), []
    for method, other in (('rm', 'cutmix'), ('rm', 'mixup'), ('rm', 'rm-omega0'), ('rm-omega0', 'cutmix')):
        found = difference(methods.get(method, {}), methods.get(other, {}), last)
        if found:
            seeds = f'{found.n} seed{"" if found.n == 1 else "s"}'
            lines.append(f'{NAMES[method]} to {NAMES[other]}: {difference_text(found)} ({seeds})')
    return lines


def _count(method: str, runs: dict) -> str:
    planned = METHODS[method].seeds
    return str(len(runs)) if len(runs) >= planned else f'{len(runs)} of {planned}'


def _last_loss(runs: Dict[int, dict]) -> str:
    return f'{statistics.fmean(result["train"]["loss"][-1] for result in runs.values()):.3f}'


def spread(values) -> str:
    """Mean and standard deviation; '' of no values."""
    values = list(values)
    if not values:
        return ''
    return f'{statistics.fmean(values):.2f}' + (f' ± {statistics.stdev(values):.2f}' if len(values) > 1 else '')


def difference_text(found: Optional[Difference]) -> str:
    if found is None:
        return ''
    interval = '' if found.low is None else f' ({found.low:+.2f} to {found.high:+.2f})'
    return f'{found.mean:+.2f}{interval}'


# --------------------------------------------------------------------------------------------------------------- figure
def expected_lambda(alpha: float = 0.5, size: int = 32, draws: int = 20000) -> float:
    """The mean λ after clipping, by drawing boxes as RecursiveMix does."""
    rng = np.random.RandomState(0)
    boxes = [sample_box(sample_lambda(alpha, rng), size, size, rng) for _ in range(draws)]
    return float(np.mean([(box.x2 - box.x1) * (box.y2 - box.y1) for box in boxes])) / size**2


def draw(results: Sequence[dict], foot: Sequence[str] = ()):
    """Test accuracy and training loss of all methods; consistency and λ of RM. Lines are means, bands deviations."""
    methods = by_method(results)
    figure = figures.new_figure(9.6, 6.6 + 0.15 * len(foot))
    (accuracy, loss), (consistency, share) = figure.subplots(2, 2)
    for method, runs in methods.items():
        tested = sorted(set.intersection(*(set(result['test']) for result in runs.values())))
        values = [[result['test'][epoch] for epoch in tested] for result in runs.values()]
        _line(accuracy, tested, values, method, f'{NAMES[method]}, n = {len(runs)}', marker='o')
        _line(loss, *_curves(runs, 'loss'), method)
        if method in ('rm-omega0', 'rm'):
            _line(share, *_curves(runs, 'lambda'), method)
    # The first epochs are far below the differences that matter.
    late = [value for result in results for epoch, value in result['test'].items() if epoch >= result['epochs'] / 4]
    accuracy.set_ylim(bottom=min(late) - 1)
    shown = (('kl', 'KL(p^h || region)', '-'), ('kl_blind', 'the same without a look at the region', ':'))
    for key, label, style in shown:
        _line(consistency, *_curves(methods.get('rm', {}), key), 'rm', label, linestyle=style)
    consistency.set_ylim(bottom=0)
    share.axhline(expected_lambda(), color='black', linestyle=':', linewidth=1.2, label='expected, with a history')
    share.set_ylim(0, 0.5)
    plots.tidy(accuracy, 'epoch', 'test accuracy (%)')
    plots.tidy(loss, 'epoch', 'training loss (cross entropy)')
    plots.tidy(consistency, 'epoch', 'nats', 'RM: consistency with the history')
    plots.tidy(share, 'epoch', 'mean λ of an epoch')
    for axes in (accuracy, consistency, share):
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=8)
    plots.provenance(figure, foot)
    return figure


def _curves(runs: Dict[int, dict], key: str) -> Tuple[List[int], List[List[float]]]:
    """The epochs that all runs have a value for, and the values."""
    curves = [result['train'][key] for result in runs.values() if key in result['train']]
    length = min(map(len, curves), default=0)
    epochs = [epoch for epoch in range(length) if all(curve[epoch] is not None for curve in curves)]
    return [epoch + 1 for epoch in epochs], [[curve[epoch] for epoch in epochs] for curve in curves]


def _line(axes, x: Sequence[int], curves: List[List[float]], method: str, label: str = '', **style) -> None:
    if x:
        usual = dict(color=COLOURS[method], marker='', markersize=3, label=label or NAMES[method])
        plots.curve(axes, x, curves, method, **{**usual, **style})


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = results_parser(__doc__, f'{WORK_DIR}/results.jsonl', 'the curves')
    follow_ups = 'files of exploratory runs, one for each change of the settings: a second table, by the same seeds'
    parser.add_argument('--follow-ups', nargs='+', default=[], metavar='FILE', help=follow_ups)
    args = parser.parse_args(argv)
    form = table_format(args.out, args.overwrite, args.format)
    if args.follow_ups and form == 'csv':
        raise UserValueError('--follow-ups makes two tables and csv holds one; leave it out, or choose another format.')
    path = check_results(args, home() / WORK_DIR / 'results.jsonl', Path(__file__).with_name('experiment.jsonl'))
    others = [Path(name).expanduser() for name in args.follow_ups]
    for each in others:
        if not each.is_file():
            raise UserFileError(f'there is no file of results {each}. It comes from: python projects/cifar10/run.py')
    results = read_results(path)
    lines = grids.render(form, HEADERS, table_lines(results), right=range(1, len(HEADERS)))
    if form == 'terminal':
        note = f'{len(results)} runs of {show_path(path)}; test accuracy in percent, mean ± standard deviation'
        lines = [note, *lines, *comparisons(results)]
    if len({each.stem for each in others}) < len(others):
        raise UserValueError('--follow-ups: two files have the same name, and it is the name of their rows.')
    if others:
        more = follow_up_lines(results, {each.stem: read_results(each) for each in others})
        headers = FOLLOW_UP_HEADERS
        lines += [
            '',
            *(['exploratory, under other settings:'] if form == 'terminal' else []),
            *grids.render(form, headers, more, right=range(2, len(headers))),
        ]
    write_table(lines, args.out, args.overwrite)
    if args.figure:
        foot = [f'{len(results)} runs of {show_path(path)}; lines are means over seeds, bands standard deviations']
        print(figures.save(draw(results, foot), args.figure, args.overwrite))


if __name__ == '__main__':
    main()
