#!/usr/bin/env python
"""The tables and the figure of the transfer experiment, from its file of results.

Methods are compared seed by seed: a pretraining seed is one independent result, and all of a seed saw the same images.
"""

import math
import statistics
import sys
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

from mmrm.report import grids
from mmrm.report.intervals import Difference, difference
from mmrm.utils import figures
from mmrm.utils.errors import UserFileError, cli
from mmrm.utils.paths import home, show_path
from projects.cifar10.table import NAMES, difference_text, spread
from projects.transfer.protocol import METHODS, MODES, RESULTS, TASKS, WORK_DIR, read_results
from tools.analysis import plots
from tools.analysis.options import check_results, results_parser, table_format, write_table

RIVALS = ('baseline', 'cutmix')
COLUMNS = (*(NAMES[method] for method in METHODS), *(f'RM to {NAMES[rival]}' for rival in RIVALS), 'two runs differ by')
HEADERS = ('task', 'backbone', *COLUMNS)
SIZES = {'bbox_mAP_s': 'small', 'bbox_mAP_m': 'medium', 'bbox_mAP_l': 'large'}


def cell(results: Sequence[dict], task: str, mode: str, method: str) -> Dict[int, dict]:
    """Seed -> result."""
    return {
        result['seed']: result
        for result in results
        if (result['task'], result['mode'], result['method']) == (task, mode, method)
    }


def pretrainings(results: Sequence[dict], method: str) -> Dict[int, dict]:
    """Seed -> the pretraining's accuracy, as a result."""
    return {
        result['seed']: dict(value=result['pretrained'])
        for result in results
        if result['method'] == method and result.get('pretrained') is not None
    }


def _value(result: dict) -> float:
    return result['value']


def compare(results: Sequence[dict], task: str, mode: str, method: str, other: str) -> Optional[Difference]:
    """How much better ``method`` is than ``other``, paired by seed."""
    return difference(cell(results, task, mode, method), cell(results, task, mode, other), _value)


def shipped_results() -> List[dict]:
    """The results of README.md; none if the experiment has not been run yet."""
    return read_results(RESULTS)


def noise_of(cells: Iterable[Dict[int, dict]]) -> Optional[float]:
    """By how much two single runs of one method differ at most, 19 times in 20; None without two seeds of a method.

    Args:
        cells (Iterable[Dict[int, dict]]): Seed -> result of each method; their standard deviations are pooled.
    """
    from scipy.stats import t

    several = [[result['value'] for result in found.values()] for found in cells if len(found) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in several)
    return float(t.ppf(0.975, freedom)) * math.sqrt(2 * squares / freedom) if freedom else None


def _columns(cells: Dict[str, Dict[int, dict]]) -> List[str]:
    """The texts under :data:`COLUMNS`, from seed -> result of each method."""
    values = {method: [result['value'] for result in found.values()] for method, found in cells.items()}
    noise = noise_of(cells.values())
    return [
        *(f'{spread(each)} ({len(each)})' if each else '' for each in values.values()),
        *(difference_text(difference(cells['rm'], cells[rival], _value)) for rival in RIVALS),
        '' if noise is None else f'{noise:.2f}',
    ]


def table_lines(results: Sequence[dict]) -> List[List[str]]:
    """A line of texts for each task and mode under :data:`HEADERS`.

    Raises:
        UserFileError: If there is no result.
    """
    if not results:
        raise UserFileError('there are no results. They come from: python projects/transfer/run.py')
    known = {method: pretrainings(results, method) for method in METHODS}
    lines = []
    if any(known.values()):
        lines.append(['pretraining, CIFAR-10: top-1', '', *_columns(known)])
    for task in TASKS:
        for mode in MODES:
            cells = {method: cell(results, task, mode, method) for method in METHODS}
            if any(cells.values()):
                lines.append([TASKS[task].title, mode, *_columns(cells)])
    return lines


ALONE_HEADERS = ('side, pixels', *COLUMNS)


def alone(results: Sequence[dict], method: str) -> Dict[int, Dict[int, dict]]:
    """Side in pixels -> seed -> top-1 of the pretrained classifier on whole images of that side, as a result."""
    found: Dict[int, Dict[int, dict]] = {}
    for result in results:
        for side, value in (result.get('alone') or {}).items() if result['method'] == method else ():
            found.setdefault(int(side), {})[result['seed']] = dict(value=value)
    return dict(sorted(found.items()))


def alone_lines(results: Sequence[dict]) -> List[List[str]]:
    """Top-1 of the pretrained classifiers on whole images of each size, under :data:`ALONE_HEADERS`."""
    by_side = {method: alone(results, method) for method in METHODS}
    return [
        [str(side), *_columns({method: found.get(side, {}) for method, found in by_side.items()})]
        for side in sorted(set().union(*by_side.values()))
    ]


SIZE_HEADERS = ('task', 'backbone', 'objects', *COLUMNS)


def size_lines(results: Sequence[dict]) -> List[List[str]]:
    """A line of texts for each size of object under :data:`SIZE_HEADERS`, detectors only."""
    lines = []
    for task in TASKS:
        for mode in MODES:
            for metric, name in SIZES.items():
                cells = {
                    method: {
                        seed: dict(value=found['metrics'][metric])
                        for seed, found in cell(results, task, mode, method).items()
                        if metric in found['metrics']
                    }
                    for method in METHODS
                }
                if any(cells.values()):
                    lines.append([TASKS[task].title, mode, name, *_columns(cells)])
    return lines


def draw(results: Sequence[dict], foot: Sequence[str] = ()):
    """RM's differences with their intervals, and the pretrained classifiers on whole images by size.

    A difference of a single seed has no interval and is left out.
    """
    found = {
        (task, mode, rival): compare(results, task, mode, 'rm', rival)
        for task in TASKS
        for mode in MODES
        for rival in RIVALS
    }
    known = {key: each for key, each in found.items() if each is not None and each.high is not None}
    rows = [
        (f'{TASKS[task].title.partition(":")[0]}, {mode}', task, mode)
        for task, mode in dict.fromkeys((task, mode) for task, mode, _ in known)
    ]
    if not rows:
        raise UserFileError('there are no two seeds of RM beside another method to draw.')
    figure = figures.new_figure(9.6, 1.6 + 0.36 * len(rows) + 0.12 * len(foot))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for shift, (other, marker) in enumerate(zip(RIVALS, plots.MARKERS)):
        drawn = {row: known.get((task, mode, other)) for row, (_, task, mode) in enumerate(rows)}
        drawn = {row: each for row, each in drawn.items() if each is not None}
        if drawn:
            means, reach = zip(*((each.mean, each.high - each.mean) for each in drawn.values()))
            style = dict(linestyle='none', color=plots.COLOURS[NAMES[other]], marker=marker, markersize=5, capsize=3)
            places = [row + 0.24 * shift - 0.12 for row in drawn]
            left.errorbar(means, places, xerr=reach, label=f'to {NAMES[other]}', **style)
    left.axvline(0, color='#767676', linewidth=1)
    left.set_yticks(range(len(rows)), [name for name, *_ in rows])
    left.invert_yaxis()
    plots.tidy(left, 'RM is better by (points, 95 % interval)', title='Downstream')
    for index, method in enumerate(METHODS):
        found = alone(results, method)
        if found:
            values = [[result['value'] for result in each.values()] for each in found.values()]
            deviations = [statistics.stdev(each) if len(each) > 1 else 0 for each in values]
            style = dict(color=plots.COLOURS.get(NAMES[method]), marker=plots.MARKERS[index], markersize=4, capsize=2)
            right.errorbar(list(found), list(map(statistics.fmean, values)), deviations, label=NAMES[method], **style)
    side = 'side of the whole test image, pixels'
    plots.tidy(right, side, 'top-1 accuracy (%)', 'Classification, nothing pasted')
    for axes in (left, right):
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=8)
    plots.provenance(figure, foot)
    return figure


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    drawn = "RM's differences and the curves of --alone"
    parser = results_parser(__doc__, f'{WORK_DIR}/results.jsonl', drawn)
    table = parser.add_mutually_exclusive_group()
    table.add_argument('--sizes', action='store_true', help='AP by the size of the objects instead')
    table.add_argument(
        '--alone', action='store_true', help='top-1 of the pretrained classifiers on whole, shrunken images instead'
    )
    args = parser.parse_args(argv)
    form = table_format(args.out, args.overwrite, args.format)
    path = check_results(args, home() / WORK_DIR / 'results.jsonl', RESULTS)
    results = read_results(path)
    if args.alone:
        headers, lines, words = ALONE_HEADERS, alone_lines(results), 0
    elif args.sizes:
        headers, lines, words = SIZE_HEADERS, size_lines(results), 3
    else:
        headers, lines, words = HEADERS, table_lines(results), 2
    text = grids.render(form, headers, lines, right=range(words, len(headers)))
    if form == 'terminal':
        changed = {f'{key}={value}' for result in results for key, value in result.get('pretraining', {}).items()}
        note = f'; pretrained with {", ".join(sorted(changed))}' if changed else ''
        text = [
            f'{len(results)} runs of {show_path(path)}; mean ± standard deviation (seeds), 95 % intervals{note}',
            *text,
        ]
    write_table(text, args.out, args.overwrite)
    if args.figure:
        foot = [f'{len(results)} runs of {show_path(path)}; points are means over seeds, bars of curves deviations']
        print(figures.save(draw(results, foot), args.figure, args.overwrite))


if __name__ == '__main__':
    main()
