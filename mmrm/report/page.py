"""The page itself: what was collected, laid out for the templates, in one HTML file that needs nothing else."""

import base64
import functools
import hashlib
import itertools
import time
from collections import ChainMap
from pathlib import Path
from typing import Dict, List, Optional, Union

from ..utils.errors import UserFileError, one_line
from ..utils.files import check_out, write_text
from ..utils.paths import show_path
from ..utils.processes import clock as duration
from ..version import __version__
from . import compare, configs
from .collect import Collected, Run, collect, curves, measure_of
from .runs import Metric
from .tables import Stat

FOLDER = Path(__file__).resolve().parent
MARK = '<meta name="generator" content="mmrm report'  # by which a page of ours is known
# (light, dark): Okabe and Ito's colours, made dark or light enough to be seen on white and on black.
COLOURS = (
    ('#4A5260', '#C9D1D9'),
    ('#0072B2', '#56B4E9'),
    ('#B86E00', '#F0A830'),
    ('#00806B', '#35D0A5'),
    ('#D1490B', '#FF8F59'),
    ('#A8438A', '#E894C9'),
    ('#6557C0', '#ADA0FF'),
    ('#A32C2C', '#FF8080'),
)
SECTIONS = ('Validation', 'Training', 'RecursiveMix', 'Machine and schedule')
MACHINE = ('lr', 'time', 'data_time', 'memory', 'grad_norm')
NOT_DRAWN = ('rm_kl_blind', 'base_lr')  # the first one is drawn with rm_kl
MOST_CHARTS = 40  # of a task
MOST_REFERENCES = 12


# ------------------------------------------------------------------------------------------------------------- building
def write_report(
    collected: Collected, out: Union[str, Path], overwrite: bool = False, pictures: Optional[dict] = None
) -> Path:
    """Write the page of some runs.

    Args:
        collected (Collected): The runs, of :func:`mmrm.report.collect.collect`.
        out (str | Path): The page, ``.html``.
        overwrite (bool): Whether to replace a file that is not a report. A report is always replaced.
        pictures (dict, optional): Run's folder -> its pictures (:func:`mmrm.report.pictures.of_run`).
    """
    return write_text(check_page(out, overwrite), build(collected, pictures), overwrite=True)


def check_page(out: Union[str, Path], overwrite: bool = False) -> Path:
    """Check where to write a page: a report is replaced, any other file is not."""
    path = Path(out).expanduser()
    return check_out(path, overwrite or is_report(path), ('.html', '.htm'))


def is_report(path: Path) -> bool:
    """Whether a file is a page that this module wrote."""
    try:
        with open(path, 'rb') as file:
            return MARK.encode() in file.read(4096)
    except OSError:
        return False


def try_report(folder: Union[str, Path], log=print) -> Optional[Path]:
    """Write ``report.html`` into a folder of runs, for tools that end with it; a failure is logged, not raised."""
    try:
        path = write_report(collect([folder]), Path(folder) / 'report.html')
    except Exception as error:  # the runs are done: nothing here may make them fail
        log(f'note: the report was not written: {one_line(error)}')
        return None
    log(f'Report:  {path}')
    return path


def build(collected: Collected, pictures: Optional[dict] = None) -> str:
    """The page as text."""
    tasks = [_task(f't{index}', *each, pictures or {}) for index, each in enumerate(collected.tasks().items())]
    data = dict(tasks=[_chart_data(task) for task in tasks])
    style = _asset('vendor/uplot/uPlot.min.css') + _asset('static/report.css')
    script = _asset('vendor/uplot/uPlot.iife.min.js') + '\n' + _asset('static/report.js')
    # The page runs and loads nothing but this script and this style, whatever the names in it are.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    names = ['/'.join(path.absolute().parts[-2:]) for path in collected.given]
    return _template().render(
        title=', '.join(names[:3]) + (f' and {len(names) - 3} more' if len(names) > 3 else ''),
        version=__version__,
        now=time.time(),
        collected=collected,
        tasks=tasks,
        thinned=max(part['every'] for task in tasks for drawn in task['curves'] for part in drawn.values()),
        style=style,
        script=script,
        policy=policy,
        data=data,
    )


@functools.cache
def _asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding='utf-8')


def _digest(text: str) -> str:
    return 'sha256-' + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _template():
    try:
        import jinja2
    except ImportError as error:
        raise UserFileError('the report needs the package Jinja2: pip install jinja2') from error

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / 'templates'),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies['json.dumps_kwargs'] = dict(separators=(',', ':'), allow_nan=False)
    environment.filters.update(number=number, signed=signed, duration=duration, clock=clock, path=show_path)
    return environment.get_template('page.html')


# ---------------------------------------------------------------------------------------------------------------- texts
def number(value: Optional[float], digits: int = 2) -> str:
    """A number as it stands in a table; a dash where there is none."""
    return '–' if value is None else f'{value:.{digits}f}'


def signed(value: Optional[float], digits: int = 2) -> str:
    """A difference, with a true minus, which is as wide as a plus."""
    return '–' if value is None else f'{value:+.{digits}f}'.replace('-', '−')


def clock(seconds: float) -> str:
    """A time in seconds since the epoch."""
    return time.strftime('%Y-%m-%d %H:%M', time.localtime(seconds))


# ------------------------------------------------------------------------------------------------------- what is shown
def _task(identity: str, name: str, groups: Dict[str, List[Run]], pictures: dict) -> dict:
    """What the templates and the charts show of a task."""
    runs = [run for each in groups.values() for run in each]
    measure = next((run.measure for run in runs if run.measure), None)
    results = {group: [compare.result_of(run, measure) for run in members] for group, members in groups.items()}
    return dict(
        id=identity,
        name=name,
        unit=runs[0].log.unit[:-1],
        measure=measure,
        groups=[
            dict(name=group, colour=colour, results=results[group], mean=_mean(results[group]), config=_config(members))
            for (group, members), colour in zip(groups.items(), itertools.cycle(COLOURS))
        ],
        references=_references(results, measure),
        breakdowns=compare.breakdowns(groups),
        pictures=_pictures(runs, pictures),
        runs=runs,
        curves=[curves(run) for run in runs],
        several_seeds=any(len(each) > 1 for each in groups.values()),
    )


def _mean(results: List[compare.Result]) -> Optional[dict]:
    """Mean and deviation over seeds of best and last; None of a single run."""
    measured = [each for each in results if each.values]
    if len(results) < 2 or not measured:
        return None
    return dict(
        best=Stat.of([each.best for each in measured]),
        last=Stat.of([each.last for each in measured]),
        equally_far=len({each.last_step for each in measured}) == 1,
    )


def _config(runs: List[Run]) -> dict:
    """The settings of the first run that differ from the shipped config's, those of the others that differ from it."""
    first, *others = runs
    known = [run for run in others if first.log.settings and run.log.settings]
    return dict(
        base=first.base,
        others={run.name: configs.differences_to(first.log.settings, run.log.settings) for run in known},
        text=first.log.config.read_text(errors='replace') if first.log.config else '',
    )


def _references(groups: Dict[str, List[compare.Result]], measure: Optional[Metric]) -> List[dict]:
    """The comparison with each group as the reference, the baseline first."""
    if measure is None or len(groups) < 2:
        return []
    found = []
    for name in sorted(groups, key=lambda name: 'baseline' not in name.split('/'))[:MOST_REFERENCES]:
        rows = {other: compare.compare(groups[other], groups[name], measure) for other in groups if other != name}
        bounds = [abs(each) for row in rows.values() if row for each in row.difference[:3] if each is not None]
        found.append(dict(name=name, rows=rows, reach=max(bounds, default=1.0) * 1.08 or 1.0))
    return found


def _pictures(runs: List[Run], pictures: dict) -> Dict[str, dict]:
    """The pictures of each run, and the activation maps that any has, key -> the item of the first run."""
    drawn = {run.name: pictures[str(run.log.folder)] for run in runs if str(run.log.folder) in pictures}
    return dict(runs=drawn, maps=dict(ChainMap(*(each.get('maps', {}) for each in drawn.values()))))


# --------------------------------------------------------------------------------------------------------------- charts
def _chart_data(task: dict) -> dict:
    """What the charts of a task draw."""
    names = [group['name'] for group in task['groups']]
    return dict(
        id=task['id'],
        name=task['name'],
        unit=task['unit'],
        groups=[dict(name=group['name'], colour=group['colour']) for group in task['groups']],
        runs=[
            dict(name=run.name, group=names.index(run.group), seed=run.seed, **drawn)
            for run, drawn in zip(task['runs'], task['curves'])
        ],
        charts=_charts(task),
    )


def _charts(task: dict) -> List[dict]:
    """Which charts a task has, in order, each with its section and what else it shows."""
    main = task['measure'].key if task['measure'] else None
    found = []
    for part in ('val', 'train'):
        keys = dict.fromkeys(key for drawn in task['curves'] for key in drawn[part]['keys'])
        found += [(_section(part, key), key not in (main, 'loss'), part, key) for key in keys if key not in NOT_DRAWN]
    charts = []
    for section, _, part, key in sorted(found, key=lambda each: (SECTIONS.index(each[0]), each[1]))[:MOST_CHARTS]:
        chart = dict(section=section, part=part, keys=[key], title=measure_of(key).header)
        if key == 'rm_kl' and any('rm_kl_blind' in drawn['train']['keys'] for drawn in task['curves']):
            chart.update(keys=[key, 'rm_kl_blind'], title=f'{chart["title"]}, dotted: its bound without the region')
        if key == main:
            chart.update(papers=_published(task))
        charts.append(dict(chart, id=f'{task["id"]}-{len(charts)}'))
    return charts


def _section(part: str, key: str) -> str:
    if part == 'val':
        return 'Validation'
    if key.startswith('rm_') or key == 'loss_consistency':
        return 'RecursiveMix'
    return 'Machine and schedule' if key in MACHINE else 'Training'


def _published(task: dict) -> List[dict]:
    """The published numbers of a task's main result, a line in the chart for each group that has one."""
    found = []
    for index, group in enumerate(task['groups']):
        papers = [result.paper.value for result in group['results'] if result.paper]
        found += [dict(group=index, value=round(value, 4)) for value in papers[:1]]
    return found
