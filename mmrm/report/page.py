"""The page itself: what was collected, laid out for the templates, in one HTML file that needs nothing else."""

import base64
import contextlib
import functools
import hashlib
import json
import statistics
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, Union

from ..utils.errors import UserFileError
from ..utils.files import check_out, write_text
from ..utils.paths import show_path
from ..version import __version__
from . import authors_curves, compare, configs, tables
from .collect import FEW_POINTS, MANY_RUNS, POINTS, Collected, Measure, Run, collect, curves, last_lines, measure_of

FOLDER = Path(__file__).resolve().parent
MARK = '<meta name="generator" content="mmrm report'  # by which a page of ours is known
# (light, dark): Okabe and Ito's colours, made dark or light enough to be seen on white and on black.
KNOWN_COLOURS = {
    'rm': ('#0072B2', '#56B4E9'),
    'baseline': ('#4A5260', '#C9D1D9'),
    'cutmix': ('#B86E00', '#F0A830'),
    'mixup': ('#00806B', '#35D0A5'),
}
COLOURS = (
    ('#D1490B', '#FF8F59'),
    ('#A8438A', '#E894C9'),
    ('#6557C0', '#ADA0FF'),
    ('#7A6A00', '#DCCB52'),
    ('#A32C2C', '#FF8080'),
    ('#2E7FA8', '#7FD3F7'),
    ('#3C7A20', '#94D66F'),
)
AUTHORS = ('#7A7F87', '#8F98A3')
MOST_CHARTS = 40  # of a task
MOST_REFERENCES = 12
ENVIRONMENT = (
    'sys.platform',
    'Python',
    'PyTorch',
    'TorchVision',
    'MMEngine',
    'OpenCV',
    'CUDA available',
    'GPU 0',
    'GPU number',
    'NVCC',
    'GCC',
    'diff_rank_seed',
    'deterministic',
    'cudnn_benchmark',
    'Distributed launcher',
)


# ------------------------------------------------------------------------------------------------------------- building
def write_report(
    given: Sequence[Union[str, Path]],
    out: Union[str, Path],
    overwrite: bool = False,
    pictures: Optional[dict] = None,
    collected: Optional[Collected] = None,
) -> Path:
    """Write the page of some runs.

    Args:
        given (Sequence[str | Path]): Folders of runs, or folders that hold some.
        out (str | Path): The page, ``.html``.
        overwrite (bool): Whether to replace a file that is no report. A report is always replaced. Defaults to False.
        pictures (dict, optional): Run's folder -> its pictures (:func:`mmrm.report.pictures.of_run`).
        collected (Collected, optional): What was read from ``given`` already.
    """
    out = check_page(out, overwrite)
    html = build(collected or collect(given), pictures)
    return write_text(out, html, overwrite=True)


def check_page(out: Union[str, Path], overwrite: bool = False) -> Path:
    """Check where to write a page: a page of ours is replaced without a question, any other file is not."""
    path = Path(out).expanduser()
    return check_out(path, overwrite or is_report(path), ('.html', '.htm'))


def is_report(path: Path) -> bool:
    """Whether a file is a page that this module wrote."""
    try:
        with open(path, 'rb') as file:
            return MARK.encode() in file.read(4096)
    except OSError:
        return False


def beside(given: Union[str, Path], tell=print) -> Optional[Path]:
    """Write ``report.html`` into a folder of runs, for tools that end with it: a failure is told and never raised."""
    try:
        path = write_report([given], Path(given) / 'report.html')
    except Exception as error:  # the runs are done: nothing here may take that away
        tell(f'note: the report was not written: {" ".join(str(error).split()) or type(error).__name__}')
        return None
    tell(f'Report:  {path}')
    return path


def build(collected: Collected, pictures: Optional[dict] = None, live: bool = False) -> str:
    """The page as text."""
    view = view_of(collected, pictures or {}, live)
    data = chart_data(collected, view)
    style = _asset('vendor/uplot/uPlot.min.css') + _asset('static/report.css')
    script = _asset('vendor/uplot/uPlot.iife.min.js') + '\n' + _asset('static/report.js')
    policy = [
        "default-src 'none'",
        f"script-src '{_digest(script)}'",
        f"style-src '{_digest(style)}'",
        'img-src data:',
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if live else []),
    ]
    template = _templates().get_template('page.html')
    return template.render(
        **view, style=_raw(style), script=_raw(script), policy='; '.join(policy), data=_raw(script_json(data))
    )


def fragments(collected: Collected, pictures: Optional[dict] = None) -> dict:
    """The parts of the page that change while runs go on, as HTML, and the data of the charts."""
    view = view_of(collected, pictures or {}, live=True)
    found = {
        name: _templates().get_template(f'{name}.html').render(**view) for name in ('summary', 'compare', 'tables')
    }
    return dict(fragments=found, data=chart_data(collected, view), built=view['built'])


def script_json(data) -> str:
    """JSON that may stand in a script element, whatever the names in it are."""
    text = json.dumps(data, separators=(',', ':'), ensure_ascii=False, allow_nan=False)
    for character in '<>&\u2028\u2029':
        text = text.replace(character, f'\\u{ord(character):04x}')
    return text


@functools.cache
def _asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding='utf-8')


def _digest(text: str) -> str:
    return 'sha256-' + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _raw(text: str):
    from markupsafe import Markup

    return Markup(text)


@functools.lru_cache(maxsize=1)
def _templates():
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
    environment.filters.update(number=number, signed=signed, duration=duration, percent=lambda share: f'{share:.1%}')
    return environment


# ---------------------------------------------------------------------------------------------------------------- texts
def number(value: Optional[float], digits: int = 2) -> str:
    """A number as it stands in a table; a dash where there is none."""
    return '–' if value is None else f'{value:.{digits}f}'


def signed(value: Optional[float], digits: int = 2) -> str:
    """A difference, with a true minus, which is as wide as a plus."""
    return '–' if value is None else f'{value:+.{digits}f}'.replace('-', '−')


def duration(seconds: Optional[float]) -> str:
    """'3 h 05 min', '12 min', '40 s'."""
    if seconds is None:
        return '–'
    minutes = round(seconds / 60)
    if minutes >= 2880:
        return f'{minutes // 1440} d {minutes % 1440 // 60} h'
    if minutes >= 60:
        return f'{minutes // 60} h {minutes % 60:02d} min'
    return f'{minutes} min' if seconds >= 90 else f'{seconds:.0f} s'


# ------------------------------------------------------------------------------------------------------------ the views
def view_of(collected: Collected, pictures: dict, live: bool = False) -> dict:
    """All that the templates show."""
    tasks = []
    for index, (name, groups) in enumerate(collected.tasks().items()):
        tasks.append(_task_view(f't{index}', name, groups))
    runs = collected.runs
    counts = {status: sum(run.status == status for run in runs) for status in ('finished', 'running', 'stopped')}
    thinned = max((part['every'] for task in tasks for run in task['curves'] for part in run.values()), default=1)
    return dict(
        title=_title(collected),
        version=__version__,
        mark=f'mmrm report {__version__}',
        built=time.strftime('%Y-%m-%d %H:%M'),
        live=live,
        counts=', '.join(f'{count} {status}' for status, count in counts.items() if count),
        number_of_runs=len(runs),
        left_out=collected.left_out,
        tasks=tasks,
        thinned=thinned,
        tables=[_table_view(*each) for each in compare.paper_tables(runs)],
        pictures=_picture_view(collected, pictures),
        has_classes=any(task['breakdowns'] for task in tasks),
        has_compare=any(len(task['groups']) > 1 for task in tasks),
    )


def _title(collected: Collected) -> str:
    """The last two parts of the folders that were asked for."""
    names = ['/'.join(path.absolute().parts[-2:]) for path in collected.given]
    return ', '.join(names[:3]) + (f' and {len(names) - 3} more' if len(names) > 3 else '')


def _task_view(identity: str, name: str, groups: Dict[str, List[Run]]) -> dict:
    runs = [run for each in groups.values() for run in each]
    measure = next((run.measure for run in runs if run.measure), None)
    colours = choose_colours(list(groups))
    unit = 'epoch' if runs[0].log.unit == 'epochs' else 'iteration'
    points = POINTS if len(runs) <= MANY_RUNS else FEW_POINTS
    shown = []
    for (group, members), colour in zip(groups.items(), colours):
        shown.append(
            dict(
                name=group,
                colour=colour,
                runs=[_run_view(run, measure) for run in members],
                stat=_stat(members, measure) if len(members) > 1 else None,
                environment=_environments(members),
                config=_config_view(members),
            )
        )
    return dict(
        id=identity,
        name=name,
        unit=unit,
        measure=measure,
        groups=shown,
        lead=_lead(groups, measure),
        references=_references(groups, measure),
        breakdowns=compare.breakdowns(groups),
        curves=[curves(run, points) for run in runs],
        runs=runs,
        several_seeds=any(len(each) > 1 for each in groups.values()),
    )


def choose_colours(names: Sequence[str]) -> List[Tuple[str, str]]:
    """A (light, dark) colour for each group: the method's own where its name tells one, else the next free one."""
    chosen: List[Optional[Tuple[str, str]]] = []
    for name in names:
        own = next((KNOWN_COLOURS[part] for part in reversed(name.split('/')) if part in KNOWN_COLOURS), None)
        chosen.append(own if own not in chosen else None)
    rest = [each for each in (*COLOURS, *KNOWN_COLOURS.values()) if each not in chosen]
    free = iter(rest * (len(names) // max(len(rest), 1) + 1))
    return [each or next(free) for each in chosen]


def _lead(groups: Dict[str, List[Run]], measure: Optional[Measure]) -> str:
    """The first thing to read: how many, how far, which is ahead."""
    runs = [run for each in groups.values() for run in each]
    count = f'{len(runs)} run{"" if len(runs) == 1 else "s"}'
    if len(groups) > 1 and len(runs) > len(groups):
        count += f' of {len(groups)} settings'
    if measure is None:
        return f'{count}, none of them validated yet.'
    validated = {
        name: [run.values(measure) for run in members if run.values(measure)] for name, members in groups.items()
    }
    validated = {name: values for name, values in validated.items() if values}
    every = [values for each in validated.values() for values in each]
    both = set.intersection(*map(set, every)) if every else set()
    if not both:
        return f'{count}, not validated at the same steps.' if every else f'{count}, none of them validated yet.'
    step = max(both)
    means = {name: statistics.fmean(values[step] for values in each) for name, each in validated.items()}
    ahead = (min if measure.lower else max)(means, key=lambda name: means[name])
    unit = runs[0].log.unit[:-1]
    what = f'{unit} {step}' + (f', the last {unit} that all have' if any(max(each) > step for each in every) else '')
    value = f'{measure.label} {means[ahead]:.{measure.digits}f}'
    if len(means) == 1:
        return f'{count}. {value} at {what}.'
    seeds = ', mean over seeds' if len(every) > len(means) else ''
    return f'{count}. Ahead at {what}: {ahead}, {value}{seeds}.'


def _run_view(run: Run, measure: Optional[Measure]) -> dict:
    values = run.values(measure) if measure else {}
    lower = bool(measure and measure.lower)
    best = (min if lower else max)(values, key=lambda step: values[step]) if values else None
    last = max(values, default=None)
    paper = configs.published(run.base, measure.key) if measure else None
    reached = None
    if paper and values:
        reached = values[best if paper.reported == 'best' else last]
    theirs = _authors_view(run)
    records = list(run.log.iterations.values())[-20:]
    paces = [record['time'] for record in records if isinstance(record.get('time'), (int, float))]
    other = list(run.base.decisive) if run.base else []
    return dict(
        name=run.name,
        folder=show_path(run.log.folder),
        seed=run.seed,
        status=run.status,
        state=run.log.state,
        progress=run.progress,
        left=run.left,
        end=time.strftime('%a %H:%M', time.localtime(time.time() + run.left)) if run.left is not None else None,
        updated=time.strftime('%Y-%m-%d %H:%M', time.localtime(run.updated)),
        best=values.get(best),
        best_step=best,
        last=values.get(last),
        last_step=last,
        paper=paper,
        to_paper=None if reached is None else reached - paper.value,
        authors=theirs,
        hours=run.log.training.get('hours'),
        memory=run.log.training.get('memory'),
        pace=statistics.fmean(paces) if paces else None,
        config=run.base.config if run.base else None,
        other=[str(each) for each in other],
        notes=run.notes,
    )


def _authors_view(run: Run) -> Optional[dict]:
    """The authors' range at the last epoch that both have, and what the run had there, in percent."""
    theirs = configs.authors(run.base)
    mine = authors_curves.measured(run.log, theirs) if theirs else {}
    both = [step for step in mine if theirs.band(step)]
    if not both:
        return None
    step = max(both)
    low, high = theirs.band(step)
    return dict(step=step, low=low, high=high, mine=mine[step], around=theirs.around_text(step))


def _stat(runs: List[Run], measure: Optional[Measure]) -> Optional[dict]:
    """Mean and deviation over seeds of best and last."""
    if measure is None:
        return None
    values = [run.values(measure) for run in runs if run.values(measure)]
    if not values:
        return None
    pick = min if measure.lower else max
    found = dict(count=len(values), equal=len({max(each) for each in values}) == 1)
    for kind, numbers in (
        ('best', [pick(each.values()) for each in values]),
        ('last', [each[max(each)] for each in values]),
    ):
        found[kind] = statistics.fmean(numbers)
        found[f'{kind}_deviation'] = statistics.stdev(numbers) if len(numbers) > 1 else None
    return found


def _environments(runs: List[Run]) -> List[dict]:
    """The environments of runs: what is the same once, with the runs that have it."""
    found: Dict[tuple, List[str]] = {}
    for run in runs:
        more = [key for key in run.environment if key.startswith('GPU') and key not in ENVIRONMENT]
        keys = [key for key in (*ENVIRONMENT, *more) if key in run.environment]
        items = tuple((key, run.environment[key]) for key in keys)
        found.setdefault(items, []).append(run.name)
    return [dict(items=items, runs=names) for items, names in found.items()]


def _config_view(runs: List[Run]) -> dict:
    """The first run's config as a diff to the shipped one, the others as diffs to the first."""
    first = runs[0]
    base = configs.read_shipped(first.base.config) if first.base else None
    diff = (
        configs.settings_diff(base, first.log.settings, first.base.decisive)
        if base is not None and first.log.settings is not None
        else None
    )
    others = []
    for run in runs[1:]:
        if run.log.settings is not None and first.log.settings is not None:
            found = configs.settings_diff(first.log.settings, run.log.settings, [])
            others.append(dict(run=run.name, diff=found[:50], more=max(len(found) - 50, 0)))
    text = ''
    if first.config is not None:
        with contextlib.suppress(OSError):  # gone since it was read
            text = first.config.read_text(errors='replace')
        text = text if len(text) <= 40000 else text[:40000] + '\n… cut here'
    return dict(base=first.base.config if first.base else None, run=first.name, diff=diff, others=others, text=text)


def _references(groups: Dict[str, List[Run]], measure: Optional[Measure]) -> List[dict]:
    """The comparison with each group as the reference, the baseline first."""
    if measure is None or len(groups) < 2:
        return []
    names = sorted(groups, key=lambda name: 'baseline' not in name.split('/'))[:MOST_REFERENCES]
    found = []
    for name in names:
        rows, left_out = compare.compare(groups, name, measure)
        bounds = [abs(each) for row in rows for each in row.difference[:3] if each is not None]
        found.append(dict(name=name, rows=rows, left_out=left_out, reach=max(bounds, default=1.0) * 1.08 or 1.0))
    return found


def _table_view(name: str, table, filled: List[tables.Filled]) -> dict:
    rows = []
    for each in filled:
        for index, cell in enumerate(each.cells):
            rows.append(
                dict(
                    labels=each.row.labels if index == 0 else [''] * len(table.columns),
                    metric=cell.metric.header,
                    digits=cell.metric.decimals,
                    lower=cell.metric.lower,
                    published=cell.published,
                    best=cell.best,
                    last=cell.last,
                    difference=cell.difference,
                    state=each.state if index == 0 else '',
                    mine=bool(each.runs),
                    recipe=each.row.recipe if index == 0 else '',
                    notes=each.notes if index == 0 else [],
                )
            )
    return dict(
        name=name,
        title=table.title,
        columns=table.columns,
        rows=rows,
        mine=sum(bool(each.runs) for each in filled),
        reported=table.reported,
        metric=rows[0]['metric'] if len({row['metric'] for row in rows}) == 1 else None,
        explained=tables._explained(table),
        recipes=tables._recipes(filled),
    )


def _picture_view(collected: Collected, pictures: dict) -> List[dict]:
    """The pictures by task, side by side: a row for each thing shown, a column for each run that has it."""
    found = []
    for name, groups in collected.tasks().items():
        runs = [run for each in groups.values() for run in each if str(run.log.folder) in pictures]
        if not runs:
            continue
        mine = {run.name: pictures[str(run.log.folder)] for run in runs}
        found.append(
            dict(
                name=name,
                runs=list(mine),
                fed=[(run, each['fed']) for run, each in mine.items() if each.get('fed')],
                maps=_side_by_side(mine, 'maps'),
                predictions=_side_by_side(mine, 'predictions'),
                confusions=[(run, each['confusions']) for run, each in mine.items() if each.get('confusions')],
                notes=[(run, note) for run, each in mine.items() for note in each.get('notes', ())],
            )
        )
    return found


def _side_by_side(mine: Dict[str, dict], kind: str) -> List[dict]:
    """Rows of (key, what is shown, the answer of each run or None)."""
    rows: Dict[str, dict] = {}
    for run, each in mine.items():
        for item in each.get(kind) or ():
            row = rows.setdefault(item['key'], dict(item, answers={}))
            row['answers'][run] = item
    return [dict(row, answers=[(run, row['answers'].get(run)) for run in mine]) for row in rows.values()]


# ----------------------------------------------------------------------------------------------------------------- data
def chart_data(collected: Collected, view: dict) -> dict:
    """What the charts draw."""
    found = []
    for task in view['tasks']:
        index = {group['name']: number for number, group in enumerate(task['groups'])}
        runs = []
        for run, drawn in zip(task['runs'], task['curves']):
            runs.append(dict(name=run.name, group=index[run.group], seed=run.seed, **drawn))
        found.append(
            dict(
                id=task['id'],
                name=task['name'],
                unit=task['unit'],
                groups=[dict(name=group['name'], colour=group['colour']) for group in task['groups']],
                runs=runs,
                charts=charts_of(task),
            )
        )
    return dict(live=view['live'], tasks=found, authors=AUTHORS)


def charts_of(task: dict) -> List[dict]:
    """Which charts a task has, in order, each with its section and what else it shows."""
    main = task['measure'].key if task['measure'] else None
    val = list(dict.fromkeys(key for run in task['curves'] for key in run['val']['keys']))
    train = list(dict.fromkeys(key for run in task['curves'] for key in run['train']['keys']))
    val.sort(key=lambda key: key != main)
    sections: Dict[str, List[Tuple[str, List[str]]]] = {
        'Validation': [('val', [key]) for key in val],
        'Training': [],
        'RecursiveMix': [],
        'Machine and schedule': [],
    }
    for key in sorted(train, key=lambda key: key != 'loss'):
        if key in ('rm_kl_blind', 'base_lr'):
            continue
        both = [key, 'rm_kl_blind'] if key == 'rm_kl' and 'rm_kl_blind' in train else [key]
        if key.startswith('rm_') or key == 'loss_consistency':
            sections['RecursiveMix'].append(('train', both))
        elif key in ('lr', 'time', 'data_time', 'memory', 'grad_norm'):
            sections['Machine and schedule'].append(('train', both))
        else:
            sections['Training'].append(('train', both))
    charts = []
    for section, members in sections.items():
        for part, keys in members:
            chart = dict(id=f'{task["id"]}-{len(charts)}', section=section, part=part, keys=keys)
            chart['title'] = measure_of(keys[0]).label
            if len(keys) > 1:
                chart['title'] += ', dotted: its bound without a look at the region'
            if keys == [main]:
                chart.update(_lines(task))
            charts.append(chart)
    return charts[:MOST_CHARTS]


def _lines(task: dict) -> dict:
    """The published numbers and the authors' curves of a task's main result."""
    papers, theirs = [], {}
    far = 1.25 * max((step for run in task['runs'] for step in run.log.validations), default=0)
    for number, group in enumerate(task['groups']):
        paper = next((run['paper'] for run in group['runs'] if run['paper']), None)
        if paper:
            papers.append(dict(group=number, value=round(paper.value, 4)))
    for run in task['runs']:
        found = configs.authors(run.base)
        if found and task['measure'] and found.key == task['measure'].key and run.base.config not in theirs:
            steps = sorted({step for values in found.runs.values() for step in values if step <= far})
            bands = [found.band(step) for step in steps]
            low, high = [band[0] for band in bands], [band[1] for band in bands]
            theirs[run.base.config] = dict(name=f"the authors' {found.name}", x=steps, low=low, high=high)
    return dict(papers=papers, authors=list(theirs.values()))


__all__ = ['beside', 'build', 'check_page', 'fragments', 'is_report', 'last_lines', 'write_report']
