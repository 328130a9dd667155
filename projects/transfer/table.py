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
from mmrm.report.tables import show_path
from mmrm.utils import figures
from mmrm.utils.errors import UserFileError, cli
from projects.cifar10.table import NAMES, difference_text, spread
from projects.transfer.protocol import METHODS, MODES, RESULTS, TASKS, default_root, read_results
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


def single_run_noise(results: Sequence[dict], task: str, mode: str) -> Optional[float]:
    """By how much two single runs of one method differ at most, 19 times in 20; None without two seeds of a method."""
    return noise_of(cell(results, task, mode, method) for method in METHODS)


def alone_noise(results: Sequence[dict], side: int) -> Optional[float]:
    """:func:`single_run_noise` of the pretrained classifiers on whole images of a side in pixels."""
    return noise_of(alone(results, method).get(side, {}) for method in METHODS)


def noise_of(cells: Iterable[Dict[int, dict]]) -> Optional[float]:
    """:func:`single_run_noise` of each method's seed -> result, by their pooled standard deviation."""
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
    """AP of the detectors by the size of the objects, frozen and tuned. Points are means, bars standard deviations."""
    tasks = [task for task in TASKS if any('bbox_mAP_s' in r['metrics'] for r in results if r['task'] == task)]
    if not tasks:
        raise UserFileError('there is no result of a detector to draw.')
    figure = figures.new_figure(4.8 * len(tasks), 5.6 + 0.12 * len(foot))
    panels = figure.subplots(len(MODES), len(tasks), squeeze=False)
    for row, mode in zip(panels, MODES):
        for axes, task in zip(row, tasks):
            for shift, method in enumerate(METHODS):
                found = cell(results, task, mode, method).values()
                points = [[result['metrics'].get(metric) for result in found] for metric in SIZES]
                if not found or any(None in values for values in points):
                    continue
                places = [place + 0.08 * (shift - 1.5) for place in range(len(SIZES))]
                _curve(axes, places, points, method, f'{NAMES[method]}, n = {len(found)}', 'o')
            axes.set_xticks(range(len(SIZES)), SIZES.values())
            axes.set_title(f'{TASKS[task].title}, {mode}', fontsize=9)
            figures.tidy(axes)
    for axes in panels.flat:
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=8)
            break
    figures.provenance(figure, foot)
    return figure


def _curve(axes, x: Sequence[float], values: Sequence[Sequence[float]], method: str, label: str, marker: str) -> None:
    """The means of values of several seeds, with their deviations as bars."""
    means = [statistics.fmean(each) for each in values]
    deviations = [statistics.stdev(each) if len(each) > 1 else 0 for each in values]
    style = dict(color=figures.COLOURS.get(NAMES[method]), marker=marker, markersize=4, linewidth=1.2, capsize=2)
    axes.errorbar(x, means, deviations, label=label, **style)


def draw_summary(results: Sequence[dict], foot: Sequence[str] = ()):
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
    for shift, (other, marker) in enumerate(zip(RIVALS, figures.MARKERS)):
        drawn = {row: known.get((task, mode, other)) for row, (_, task, mode) in enumerate(rows)}
        drawn = {row: each for row, each in drawn.items() if each is not None}
        if drawn:
            left.errorbar(
                [each.mean for each in drawn.values()],
                [row + 0.24 * shift - 0.12 for row in drawn],
                xerr=[each.high - each.mean for each in drawn.values()],
                linestyle='none',
                color=figures.COLOURS[NAMES[other]],
                marker=marker,
                markersize=5,
                elinewidth=1.4,
                capsize=3,
                label=f'to {NAMES[other]}',
            )
    left.axvline(0, color='#767676', linewidth=1)
    left.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=8)
    left.invert_yaxis()
    left.set_xlabel('RM is better by (points, 95 % interval)', fontsize=8)
    left.set_title('Downstream', fontsize=9)
    left.legend(frameon=False, fontsize=8)
    for index, method in enumerate(METHODS):
        curve = alone(results, method)
        if curve:
            values = [[result['value'] for result in found.values()] for found in curve.values()]
            _curve(right, list(curve), values, method, NAMES[method], figures.MARKERS[index])
    right.set_xlabel('side of the whole test image, pixels', fontsize=8)
    right.set_ylabel('top-1 accuracy (%)', fontsize=8)
    right.set_title('Classification, nothing pasted', fontsize=9)
    if right.get_legend_handles_labels()[1]:
        right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.tick_params(labelsize=8)
        figures.tidy(axes)
    figures.provenance(figure, foot)
    return figure


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    drawn = "RM's differences and the curves of --alone, or with --sizes AP by size"
    parser = results_parser(__doc__, 'work_dirs/transfer/results.jsonl', drawn)
    table = parser.add_mutually_exclusive_group()
    table.add_argument('--sizes', action='store_true', help='AP by the size of the objects instead')
    table.add_argument(
        '--alone', action='store_true', help='top-1 of the pretrained classifiers on whole, shrunken images instead'
    )
    args = parser.parse_args(argv)
    form = table_format(args.out, args.overwrite, args.format)
    path = check_results(args, default_root() / 'results.jsonl', RESULTS)
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
        print(figures.save((draw if args.sizes else draw_summary)(results, foot), args.figure, args.overwrite))


if __name__ == '__main__':
    main()
