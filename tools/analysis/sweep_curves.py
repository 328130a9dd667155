#!/usr/bin/env python
"""Error against alpha and omega from the runs of ``mmrm compare``, mean and deviation over seeds.

Of the paper's own curves only the points in its text and tables exist: the baselines, and RM at the chosen value.
"""

import re
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

from mmrm.report import grids
from mmrm.report.published import CHOSEN, CURVES, METRICS
from mmrm.report.runs import RunLog, read_run, sessions
from mmrm.report.tables import Stat
from mmrm.utils import figures
from mmrm.utils.errors import UserFileError, cli
from mmrm.utils.paths import find, show_path
from mmrm.utils.settings import differences, result_settings
from tools.analysis import plots
from tools.analysis.options import picture_parser, table_format, write_table

SWEEPS = tuple(CHOSEN)
VALUE = re.compile(r'rm_\w+=[0-9.]+')  # the folder of one value


class Point(NamedTuple):
    """The error of one value of a sweep: mean and sample deviation over ``seeds`` runs.

    These are its finished runs, or all if none is (``finished`` is False then).
    """

    value: str
    mean: float
    deviation: float
    seeds: int
    finished: bool = True


def read_sweep(folder: Path, sweep: str, kind: str = 'best') -> List[Point]:
    """What the runs of ``mmrm compare`` with the methods ``rm:<sweep>=<value>`` measured, values ascending.

    Args:
        folder (Path): The folder of the comparison.
        sweep (str): 'alpha' or 'omega'.
        kind (str): 'best' over epochs, as the paper reports, or the 'last' epoch. Defaults to 'best'.
    """
    points = [_point(each, kind) for each in folder.glob(f'rm_{sweep}=*') if VALUE.fullmatch(each.name)]
    return sorted((point for point in points if point), key=lambda point: float(point.value))


def _point(folder: Path, kind: str) -> Optional[Point]:
    """The point of one value's folder; None if there is nothing in it."""
    runs = [read_run(seed) for seed in sorted(folder.glob('seed*')) if sessions(seed)]
    runs = [run for run in runs if run.values(METRICS['top1'])]
    finished = [run for run in runs if run.finished]
    _check_same_settings(finished or runs)
    if not runs:
        return None
    found = [list(run.values(METRICS['top1']).values()) for run in finished or runs]
    errors = Stat.of([min(values) if kind == 'best' else values[-1] for values in found])
    return Point(folder.name.partition('=')[2], *errors, bool(finished))


def _check_same_settings(runs: Sequence[RunLog]) -> None:
    """Raise if runs of one point differ in more than their seed."""
    known = {run.folder: result_settings(run.settings, True, True) for run in runs if run.settings}
    first = next(iter(known), None)
    for folder, settings in known.items():
        found = differences(known[first], settings)
        if found:
            raise UserFileError(
                f'{show_path(first)} and {show_path(folder)} are not seeds of one run: {found[0]}. Move the one that '
                'does not belong there away.'
            )


def draw(results: Dict[str, Dict[str, List[Point]]], foot: Sequence[str] = ()):
    """One row a setting, one panel a sweep: ``{'alpha': {setting: points}, 'omega': ...}``.

    Values stand at equal distances, as the grid is uneven. Hollow points are of unfinished runs only.
    """
    sweeps = [sweep for sweep in SWEEPS if sweep in results]
    settings = list(dict.fromkeys(setting for sweep in sweeps for setting in results[sweep]))
    figure = figures.new_figure(4.6 * len(sweeps), 3.2 * len(settings) + 0.15 * len(foot) + 0.2)
    grid = figure.subplots(len(settings), len(sweeps), squeeze=False)
    for setting, axes_row in zip(settings, grid):
        for sweep, axes in zip(sweeps, axes_row):
            points = results[sweep].get(setting)
            if not points:
                axes.set_visible(False)
                continue
            _panel(axes, sweep, setting, points)
    plots.provenance(figure, foot)
    return figure


def _panel(axes, sweep: str, setting: str, points: List[Point]) -> None:
    published = CURVES.get(setting, {})
    values = sorted({point.value for point in points} | ({CHOSEN[sweep]} if published else set()), key=float)
    blue, orange = plots.COLOURS['RM'], plots.COLOURS['CutMix']
    for number, point in enumerate(points):
        style = dict(color=blue, capsize=3, marker='o', markersize=5, mfc=blue if point.finished else 'white')
        axes.errorbar(values.index(point.value), point.mean, point.deviation, label=None if number else 'RM', **style)
    axes.plot([values.index(point.value) for point in points], [point.mean for point in points], color=blue)
    if published:
        label = f'baseline, published {published["baseline"]:.2f}'
        axes.axhline(published['baseline'], color='black', linestyle=':', linewidth=1.2, label=label)
        star = dict(marker='*', markersize=11, color=orange, linestyle='none', mec='black', mew=0.5)
        label = f'RM, published {published["rm"]:.2f}'
        axes.plot(values.index(CHOSEN[sweep]), published['rm'], label=label, **star)
    axes.set_xticks(range(len(values)), values)
    seeds = sorted({point.seeds for point in points})
    count = f'{seeds[0]} seed(s)' if len(seeds) == 1 else f'{seeds[0]} to {seeds[-1]} seeds'
    axes.legend(frameon=False, fontsize=7.5)
    axes.margins(y=0.15)
    plots.tidy(axes, {'alpha': 'α', 'omega': 'ω'}[sweep], 'top-1 error (%)', f'{setting}, {count}')


HEADERS = ('sweep', 'setting', 'value', 'top-1 error (%)', 'deviation', 'seeds', 'finished')


def table_lines(results: Dict[str, Dict[str, List[Point]]]) -> List[List[str]]:
    """A line of texts for each point under :data:`HEADERS`."""
    lines = []
    for sweep, settings in results.items():
        for setting, points in settings.items():
            for value, mean, deviation, seeds, finished in points:
                numbers = [f'{mean:.2f}', f'{deviation:.2f}', str(seeds)]
                lines.append([sweep, setting, value, *numbers, 'yes' if finished else 'no'])
    return lines


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = picture_parser(__doc__)
    default = [f'work_dirs/rm/{name}-compare' for name in CURVES]
    parser.add_argument(
        'runs', nargs='*', default=default, help=f'folders of mmrm compare (default: {" ".join(default)})'
    )
    kinds = 'best over epochs, as the paper reports, or the last epoch (default: best)'
    parser.add_argument('--kind', choices=('best', 'last'), default='best', help=kinds)
    parser.add_argument('--table', help='also write the numbers, .csv, .md or .tex')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    form = table_format(args.table, args.overwrite)
    folders = {find(each).name.removesuffix('-compare'): find(each) for each in args.runs}
    results = {
        sweep: {name: points for name, folder in folders.items() if (points := read_sweep(folder, sweep, args.kind))}
        for sweep in SWEEPS
    }
    results = {sweep: found for sweep, found in results.items() if found}
    if not results:
        raise UserFileError(
            f'{", ".join(map(str, args.runs))}: no results. They come from: '
            'mmrm compare CONFIG --methods rm:alpha=0.1 rm:alpha=0.3 rm:omega=0 ...'
        )
    lines = grids.render(form, HEADERS, table_lines(results), right=range(2, 7))
    write_table(lines, args.table, args.overwrite)
    foot = [
        f"{args.kind} epoch of each run, mean and deviation over seeds; published: only what the paper's text and "
        'tables give'
    ]
    print(figures.save(draw(results, foot), args.out, args.overwrite))


if __name__ == '__main__':
    main()
