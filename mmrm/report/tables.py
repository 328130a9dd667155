"""The paper's tables with the numbers of your own runs beside the published ones.

:func:`fill` looks for the runs of every row, :func:`render` writes the result for a terminal or as a file.
"""

import functools
import json
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from ..utils.errors import UserFileError, UserValueError
from ..utils.paths import default_work_dir, home, shipped, show_path
from ..utils.settings import differences, result_settings
from . import grids
from .authors_curves import beside, curves_of
from .published import METRICS, RECIPES, TABLES, Metric, Row, Table
from .runs import RunLog, find_runs, read_run

EFFICIENCY_FILE = 'efficiency.json'
OTHER_SETTINGS = 'other settings'
# Folders of work_dirs/ that other tools fill.
OWN = (('sweep',), ('experiment',), ('transfer',), ('demo',), ('demo-quick',))


class Stat(NamedTuple):
    """Mean over runs, sample deviation (0 for one run) and number of runs."""

    mean: float
    deviation: float
    count: int


@dataclass
class Cell:
    """One published number and what was reproduced of it.

    Args:
        metric (Metric): What it is.
        published (float): The paper's.
        best (Stat, optional): At the epoch that is best in the table's first metric; of a cost, what was measured.
        last (Stat, optional): At the last epoch.
        reported (str): Which of the two the paper reports: 'best' or 'last'.
    """

    metric: Metric
    published: float
    best: Optional[Stat] = None
    last: Optional[Stat] = None
    reported: str = 'best'

    @property
    def difference(self) -> Optional[float]:
        """Reproduced minus published."""
        stat = self.best if self.reported == 'best' else self.last
        return None if stat is None else stat.mean - self.published


@dataclass
class Filled:
    """One row with what was found for it.

    Args:
        row (Row): The published row.
        cells (list[Cell]): One for each metric of the table.
        state (str): 'finished', '57 of 200 epochs', 'missing' ...
        config (str, optional): The config behind the numbers.
        runs (list[RunLog]): The runs behind the numbers.
        checkpoints (list[Path | None]): Of each of ``runs``, the one that the paper's kind of number stands for.
        commands (list[str]): What fills the rest.
        notes (list[str]): What to know about the runs.
    """

    row: Row
    cells: List[Cell]
    state: str
    config: Optional[str] = None
    runs: List[RunLog] = field(default_factory=list)
    checkpoints: List[Optional[Path]] = field(default_factory=list)
    commands: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)


# -------------------------------------------------------------------------------------------------------------- filling
def fill(
    table: Table,
    root: Union[str, Path, None] = None,
    given: Optional[Dict[str, Sequence[Union[str, Path]]]] = None,
    read: Callable[[Path], RunLog] = read_run,
) -> List[Filled]:
    """Look for the runs of every row of a table.

    Args:
        table (Table): One of :data:`mmrm.report.published.TABLES`.
        root (str | Path, optional): Folder of the runs: ``<regulariser>/<config>[/seed<N>]`` and the sweeps below
            ``sweep/``. Defaults to None, ``work_dirs`` of the project.
        given (dict, optional): Further runs, config -> folders, e.g. ``{'configs/rm/x.py': ['elsewhere/x']}``, or
            ``sweep/<sweep>/<setting>/<value>`` -> folders.
        read (callable): Reads a run, for one who has read them already; raises UserFileError where there is none.

    Returns:
        list[Filled]: In the order of the table.
    """
    root = Path(root) if root is not None else home() / 'work_dirs'
    return [_fill_row(table, row, root, given or {}, read) for row in table.rows]


def _fill_row(table: Table, row: Row, root: Path, given: dict, read: Callable[[Path], RunLog] = read_run) -> Filled:
    cells = [
        Cell(METRICS[metric], value, reported=table.reported) for metric, value in zip(table.metrics, row.published)
    ]
    config, runs, notes = _choose(_candidates(row, root, given), read)
    filled = Filled(row, cells, _state(runs), config, runs, notes=notes)
    counted = [run for run in runs if run.finished] or runs
    first = METRICS[table.metrics[0]]
    picks = {kind: [_pick(run, first, kind) for run in counted] for kind in ('best', 'last')}
    for cell in cells:
        if cell.metric.source == 'validation':
            cell.best, cell.last = (_stat(cell.metric, picks[kind]) for kind in ('best', 'last'))
        else:
            found = [run.training for run in counted] if cell.metric.source == 'training' else _efficiency(row, root)
            cell.best = _stat(cell.metric, found)
    if counted and cells[0].last is None:
        measured = sorted({key for run in counted for metrics in run.validations.values() for key in metrics})
        filled.notes.append(
            f'no {first.key} in its log'
            + (f", but {', '.join(measured[:6])}: another project's?" if measured else ' yet')
        )
    filled.runs = counted
    filled.checkpoints = [run.checkpoint(_step(run, first, table.reported), table.reported) for run in counted]
    differ = [note for run in counted for note in _different(run, row, config)]
    if any(OTHER_SETTINGS in note for note in differ):
        filled.state += f', {OTHER_SETTINGS}'
    filled.notes += differ
    curves = curves_of(config)
    if curves:
        told = {show_path(run.folder): beside(run, curves) for run in runs}
        filled.notes += [f'{folder}: {line}' for folder, line in told.items() if line]
    filled.commands = _commands(table, row, config, runs, cells)
    return filled


def _candidates(row: Row, root: Path, given: dict) -> Iterable[Tuple[Optional[str], List[Path]]]:
    """(config, folders of its runs) of a row, the preferred ones first."""
    for config in row.configs:
        path = Path(config)
        folder = root / path.parent.name / path.stem
        yield config, [folder, *sorted(folder.glob('seed*'), key=_number), *map(Path, given.get(config, ()))]
    if row.sweep:
        folder = root.joinpath('sweep', *row.sweep)
        more = given.get('/'.join(('sweep', *row.sweep)), ())
        yield None, [*sorted(folder.glob('seed*'), key=_number), *map(Path, more)]


def _number(path: Path) -> int:
    return int(re.sub(r'\D', '', path.name) or 0)


def _choose(
    candidates: Iterable[Tuple[Optional[str], List[Path]]], read: Callable[[Path], RunLog] = read_run
) -> Tuple[Optional[str], List[RunLog], List[str]]:
    """The candidate with most finished runs, the first of equals, and what was left out of it."""
    chosen, best = (None, [], []), (0, 0)
    for config, folders in candidates:
        runs, notes = [], []
        for folder in folders:
            try:
                runs.append(read(folder))
            except UserFileError:
                continue
        by_seed: Dict[object, RunLog] = {}
        for run in runs:
            seed = run.folder if run.seed is None else run.seed
            rival = by_seed.get(seed)
            if rival is not None:
                run, rival = (run, rival) if run.finished >= rival.finished else (rival, run)
                notes.append(f'{show_path(rival.folder)} left out: the same seed as {show_path(run.folder)}')
            by_seed[seed] = run
        score = (sum(run.finished for run in by_seed.values()), len(by_seed))
        if score > best:
            chosen, best = (config, list(by_seed.values()), notes), score
    return chosen


def _state(runs: List[RunLog]) -> str:
    if not runs:
        return 'missing'
    finished = sum(run.finished for run in runs)
    open_runs = [run.state for run in runs if not run.finished]
    if not open_runs:
        return 'finished' if finished == 1 else f'{finished} runs finished'
    return ', '.join([*([f'{finished} finished'] if finished else []), *open_runs])


def _step(run: RunLog, metric: Metric, kind: str) -> Optional[int]:
    # Of the logged number: an error is best where the accuracy is highest.
    return run.best(metric.key, lower=metric.lower == (metric.factor > 0)) if kind == 'best' else run.last(metric.key)


def _pick(run: RunLog, metric: Metric, kind: str) -> dict:
    return run.validations.get(_step(run, metric, kind), {})


def _stat(metric: Metric, found: List[dict]) -> Optional[Stat]:
    values = [metric.shown(record[metric.key]) for record in found if isinstance(record.get(metric.key), (int, float))]
    if not values:
        return None
    return Stat(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


def _efficiency(row: Row, root: Path) -> List[dict]:
    """What tools/analysis/efficiency.py measured for a row."""
    path = root / EFFICIENCY_FILE
    if not path.is_file():
        return []
    try:
        measured = json.loads(path.read_text())['configs']
        return [measured[config] for config in row.configs if config in measured][:1]
    except (ValueError, KeyError, TypeError) as error:
        raise UserFileError(f'{path} is not a result of tools/analysis/efficiency.py --json: {error!r}') from error


# ---------------------------------------------------------------------------------------------------------- same config
def _different(run: RunLog, row: Row, config: Optional[str]) -> List[str]:
    """In which settings a run differs from the config (or the sweep's value) that it stands for."""
    if run.settings is None:
        return [f'{show_path(run.folder)}: no config in the folder, so its length and settings are not known']
    try:
        wanted = _wanted(config, row.sweep if config is None else None)
    except Exception as error:  # a toolbox that is not installed, a config that is gone
        return [f'{show_path(run.folder)}: not compared with its config ({type(error).__name__})']
    found = result_settings(run.settings, length=True, weights=True)
    told = sorted(f'{each.key}={each.new} instead of {each.old}' for each in differences(wanted, found))
    if not told:
        return []
    more = f' and {len(told) - 3} more' if len(told) > 3 else ''
    return [f'{show_path(run.folder)}: {OTHER_SETTINGS} than the config: {"; ".join(told[:3])}{more}']


@functools.lru_cache(maxsize=64)
def _wanted(config: Optional[str], sweep: Optional[Tuple[str, str, str]]) -> dict:
    """The deciding settings of a shipped config or of a sweep's value; read once, as many runs are of one config."""
    from mmengine.config import Config

    if config is None:
        from .ablations import SETTINGS, SWEEPS

        cfg = Config.fromfile(shipped() / SETTINGS[sweep[1]])
        cfg.merge_from_dict(SWEEPS[sweep[0]].values[sweep[2]])
    else:
        cfg = Config.fromfile(shipped() / config)
    return result_settings(cfg.to_dict(), length=True, weights=True)


# ------------------------------------------------------------------------------------------------------------- commands
def train_command(config: str) -> str:
    """The command that trains a shipped config on the number of GPUs that its recipe is for."""
    named = re.search(r'_(\d+)xb\d+', config)
    gpus = int(named[1]) if named else 8 if '_1x_coco' in config else 1
    return f'python tools/train.py {config}' if gpus == 1 else f'tools/dist_train.sh {config} {gpus}'


def _commands(table: Table, row: Row, config: Optional[str], runs: List[RunLog], cells: List[Cell]) -> List[str]:
    """What fills the rest of a row: resume what is unfinished, start what is missing."""
    commands, wanted = [], row.runs or table.runs
    if config is None and row.sweep and (runs or not row.configs):
        if sum(run.finished for run in runs) < wanted:
            sweep, setting, value = row.sweep
            seeds = '' if wanted == 3 else f' --seeds {" ".join(map(str, range(wanted)))}'
            commands.append(f'python tools/analysis/sweep.py {sweep} --setting {setting} --values {value}{seeds}')
    else:
        config = config or row.configs[0]
        start = train_command(config)
        commands += [f'{start}{_where(run, config)} --resume' for run in runs if not run.finished]
        if not runs and wanted > 1:
            commands.append(f'for seed in {" ".join(map(str, range(wanted)))}; do {start} --seed $seed; done')
        elif len(runs) < wanted:
            known = {run.seed for run in runs}
            missing = [seed for seed in range(wanted + len(runs)) if seed not in known][: wanted - len(runs)]
            commands += [start if wanted == 1 else f'{start} --seed {seed}' for seed in missing]
    if any(cell.metric.source == 'efficiency' and cell.best is None for cell in cells):
        commands.append(f'python tools/analysis/efficiency.py --json work_dirs/{EFFICIENCY_FILE}')
    return commands


def _where(run: RunLog, config: str) -> str:
    for seed in (None, run.seed):
        if run.folder.resolve() == default_work_dir(shipped() / config, seed).resolve():
            return '' if seed is None else f' --seed {seed}'
    return f' --work-dir {show_path(run.folder)}'


# ------------------------------------------------------------------------------------------------------------- scanning
def check_root(root: Union[str, Path], asked: bool = True) -> List[str]:
    """Look at a folder of runs before any table is filled.

    Args:
        root (str | Path): The folder.
        asked (bool): Whether the user named it: it must hold a run then. Defaults to True.

    Returns:
        list[str]: What to tell: that it is empty, or which runs belong to no table.

    Raises:
        UserFileError: If it does not exist, is a file or holds no log.
    """
    root = Path(root)
    found = find_runs(root) if root.is_dir() else []
    if not found:
        what = (
            'holds no log of mmengine (<run>/<time>/vis_data/scalars.json)'
            if root.is_dir()
            else 'is a file, not a folder'
            if root.exists()
            else 'does not exist'
        )
        if asked or root.is_file():
            raise UserFileError(f'{root} {what}. Give the folder of your runs: --work-dir PATH')
        return [f'{show_path(root)} {what}: every cell is missing.']
    known = {
        path
        for table in TABLES.values()
        for row in table.rows
        for _, folders in _candidates(row, root, {})
        for path in folders
    }
    strangers = [folder for folder in found if folder not in known and folder.relative_to(root).parts[:1] not in OWN]
    notes = []
    if len(strangers) == len(found):
        notes.append(
            f'none of the {len(found)} runs in {show_path(root)} is at the place of a row '
            '(<regulariser>/<config name>[/seed<N>]): the logs of another project?'
        )
    if strangers:
        shown = ', '.join(show_path(folder) for folder in strangers[:5])
        notes.append(
            f'in no table: {shown}{" ..." if len(strangers) > 5 else ""}. '
            'A run at another place is assigned by --run CONFIG=FOLDER.'
        )
    return notes


def choose_tables(names: Sequence[str]) -> List[str]:
    """``names``, or all tables; raises for a name that is none."""
    for name in names:
        if name not in TABLES:
            raise UserValueError(f'unknown table {name!r}; allowed: {", ".join(TABLES)}')
    return list(dict.fromkeys(names)) or list(TABLES)


def parse_given(pairs: Sequence[str]) -> Dict[str, List[Path]]:
    """``CONFIG=FOLDER`` pairs of the command line as :func:`fill` takes them; raises for what is none."""
    known = {config for table in TABLES.values() for row in table.rows for config in row.configs}
    given: Dict[str, List[Path]] = {}
    for pair in pairs:
        config, _, folder = pair.partition('=')
        config = next((each for each in known if each in (config, f'configs/{config}', f'{config}.py')), config)
        if config not in known or not folder:
            raise UserValueError(
                f'--run {pair}: CONFIG=FOLDER is allowed, with a config that is in one of the tables '
                '(configs/<regulariser>/<name>.py).'
            )
        read_run(folder)  # raises if there is no log
        given.setdefault(config, []).append(Path(folder))
    return given


# ------------------------------------------------------------------------------------------------------------ rendering
def render(name: str, filled: List[Filled], form: str = 'markdown') -> str:
    """Write a filled table as text.

    Args:
        name (str): Of the table, in :data:`mmrm.report.published.TABLES`.
        filled (list[Filled]): From :func:`fill`.
        form (str): One of :data:`mmrm.report.grids.FORMATS`. Defaults to 'markdown'.
    """
    table = TABLES[name]
    if form == 'csv':
        return '\n'.join(grids.render(form, CSV_HEADER, _records(name, filled))) + '\n'
    headers, lines = _lines(table, filled)
    recipes = _recipes(filled)
    end = headers.index('State')
    grid = grids.render(form, headers, lines, right=range(end - 4, end))
    title, behind, commands = f'{name}: {table.title}', _behind(filled), _all_commands(filled)
    if form == 'latex':
        parts = [
            f'% {title} ({table.label} of the paper); needs the package booktabs.',
            *(f'% {line}' for line in behind),
            *(f'% to fill: {line}' for line in commands),
            *grid,
            f'% {_explained(table)}',
            *(f'% {line}' for line in recipes),
        ]
    elif form == 'markdown':
        parts = [f'### {title}', '', *grid, '', _explained(table).replace('*', '\\*', 1)]
        parts += ['', 'Published with:', '', *(f'- {line}' for line in recipes)] if recipes else []
        parts += ['', 'Behind the numbers:', '', *(f'- {line}' for line in behind)] if behind else []
        parts += ['', 'To fill the rest:', '', '```bash', *commands, '```'] if commands else []
    else:
        parts = [title, *grid, _explained(table)]
        parts += ['Published with:', *(f'  {line}' for line in recipes)] if recipes else []
        parts += ['Behind the numbers:', *(f'  {line}' for line in behind)] if behind else []
        parts += ['To fill the rest:', *(f'  {line}' for line in commands)] if commands else []
    return '\n'.join(parts) + '\n'


def render_all(names: Sequence[str], root: Path, given: dict, form: str) -> str:
    """Fill and write several tables one below the other; a CSV has one header."""
    texts = [render(name, fill(TABLES[name], root, given), form) for name in names]
    if form == 'csv':
        return texts[0] + ''.join(text.partition('\n')[2] for text in texts[1:])
    return '\n'.join(texts)


def _number_text(stat: Optional[Stat], metric: Metric) -> str:
    if stat is None:
        return ''
    text = f'{stat.mean:.{metric.decimals}f}'
    return text if stat.count == 1 else f'{text} ± {stat.deviation:.{metric.decimals}f} (n={stat.count})'


def _lines(table: Table, filled: List[Filled]) -> Tuple[List[str], List[List[str]]]:
    """Headers and texts of the table itself; a row has a line for each metric, labelled once."""
    several = len(table.metrics) > 1
    names = dict(best='Best', last='Last')
    names[table.reported] += '*'
    headers = [*table.columns, 'Metric', 'Published', names['best'], names['last'], 'Difference', 'State']
    lines = []
    for each in filled:
        for index, cell in enumerate(each.cells):
            labels = each.row.labels if index == 0 else [''] * len(table.columns)
            difference = '' if cell.difference is None else f'{cell.difference:+.{cell.metric.decimals}f}'
            lines.append(
                [
                    *labels,
                    cell.metric.header,
                    f'{cell.published:.{cell.metric.decimals}f}',
                    _number_text(cell.best, cell.metric),
                    _number_text(cell.last, cell.metric),
                    difference,
                    each.state if index == 0 else '',
                ]
            )
    if not several:  # said once
        place = len(table.columns)
        headers[place : place + 2] = [f'{METRICS[table.metrics[0]].header} published']
        lines = [line[:place] + line[place + 1 :] for line in lines]
    if _recipes(filled):
        headers.append('Published with')
        told = [each.row.recipe if index == 0 else '' for each in filled for index, _ in enumerate(each.cells)]
        lines = [[*line, recipe] for line, recipe in zip(lines, told)]
    return headers, lines


def _recipes(filled: List[Filled]) -> List[str]:
    """What the recipes of the published numbers are, a line each; none where all rows have one and the same."""
    found = list(dict.fromkeys(each.row.recipe for each in filled if each.row.recipe))
    return [f'{name}: {RECIPES[name]}.' for name in found]


def _explained(table: Table) -> str:
    runs = f', mean of {table.runs} runs' if table.runs > 1 else ''
    kind = 'best over epochs' if table.reported == 'best' else 'last epoch'
    first = METRICS[table.metrics[0]].header
    return (
        f'* what the paper reports ({kind}{runs}) and the difference refers to; best: the epoch with the best {first}.'
    )


def _behind(filled: List[Filled]) -> List[str]:
    """What stands behind the numbers, a line a run."""
    lines = []
    for each in filled:
        for run, checkpoint in zip(each.runs, each.checkpoints):
            source = each.config or f'sweep {"/".join(each.row.sweep)}'
            file = show_path(checkpoint) if checkpoint else f'{show_path(run.folder)} (checkpoint not kept)'
            lines.append(f'{each.row.name}: {source} -> {file}')
        lines += [f'{each.row.name}: {note}' for note in each.notes]
    return lines


def _all_commands(filled: List[Filled]) -> List[str]:
    return list(dict.fromkeys(command for each in filled for command in each.commands))


CSV_HEADER = (
    'table',
    'row',
    'metric',
    'published',
    'best',
    'best_deviation',
    'last',
    'last_deviation',
    'runs',
    'reported',
    'difference',
    'state',
    'config',
    'folders',
    'checkpoints',
    'commands',
    'notes',
    'recipe',
)


def _records(name: str, filled: List[Filled]) -> List[List[str]]:
    """The lines of the CSV: a number of the paper each."""
    lines = []
    for each in filled:
        config = each.config or (
            each.row.configs[0] if each.row.configs and not each.runs else '/'.join(each.row.sweep or ())
        )
        for cell in each.cells:
            digits = cell.metric.decimals + 2
            best, last = (
                [f'{stat.mean:.{digits}f}', f'{stat.deviation:.{digits}f}'] if stat else ['', '']
                for stat in (cell.best, cell.last)
            )
            stat = cell.best or cell.last
            lines.append(
                [
                    name,
                    each.row.name,
                    cell.metric.header,
                    str(cell.published),
                    *best,
                    *last,
                    str(stat.count if stat else 0),
                    cell.reported,
                    '' if cell.difference is None else f'{cell.difference:.{digits}f}',
                    each.state,
                    config,
                    ' '.join(show_path(run.folder) for run in each.runs),
                    ' '.join(show_path(path) for path in each.checkpoints if path),
                    '; '.join(each.commands),
                    '; '.join(each.notes),
                    each.row.recipe,
                ]
            )
    return lines
