"""The paper's tables with the numbers of your own runs next to the published ones.

:func:`fill` looks for the runs of every row, :func:`render` writes the result for a terminal or as a file.
"""

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from ..utils.errors import UserFileError, UserValueError, abbreviate, check_names
from ..utils.paths import home, show_path
from . import grids
from .configs import differences_to, other_data, read_shipped
from .published import METRICS, RECIPES, TABLES, Row, Table
from .runs import Metric, RunLog, find_runs, read_run, sessions

EFFICIENCY_FILE = 'efficiency.json'
OTHER_SETTINGS, OTHER_DATA = 'other settings', 'other data'
# The configs that have a row; a row with a method has runs of `mmrm compare` instead.
KNOWN = {config for table in TABLES.values() for row in table.rows for config in row.configs if not row.method}
# Folders of work_dirs/ that studies and `mmrm compare` fill.
STUDIES = re.compile(r'(sweep|experiment|transfer|demo|demo-quick)/|[^/]+/[^/]+-compare/')


class Stat(NamedTuple):
    """Mean over runs, sample deviation (0 for one run) and number of runs."""

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> 'Stat':
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


@dataclass
class Cell:
    """One published number and what was reproduced of it.

    Args:
        metric (Metric): What it is.
        published (float): The paper's.
        reported (str): Which of the two the paper reports: 'best' or 'last'.
        best (Stat, optional): At the epoch that is best in the table's first metric; of a cost, what was measured.
        last (Stat, optional): At the last epoch.
    """

    metric: Metric
    published: float
    reported: str
    best: Optional[Stat] = None
    last: Optional[Stat] = None

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
        config (str, optional): The config of the runs; None of runs of ``mmrm compare`` and of none.
        runs (list[RunLog]): The runs that the numbers are of.
        checkpoints (list[Path | None]): Of each of ``runs``, the one that has the reported number.
        notes (list[str]): What to know about the runs.
        commands (list[str]): What fills the rest.
    """

    row: Row
    cells: List[Cell]
    state: str
    config: Optional[str]
    runs: List[RunLog]
    checkpoints: List[Optional[Path]]
    notes: List[str]
    commands: List[str]


# -------------------------------------------------------------------------------------------------------------- filling
def fill(
    table: Table, root: Union[str, Path, None] = None, given: Optional[Dict[str, List[RunLog]]] = None
) -> List[Filled]:
    """Look for the runs of every row of a table.

    Args:
        table (Table): One of :data:`mmrm.report.published.TABLES`.
        root (str | Path, optional): Folder of the runs: ``<regulariser>/<config>[/seed<N>]``, those of ``mmrm compare``
            in ``<regulariser>/<config>-compare``. Defaults to None, ``work_dirs`` of the project.
        given (dict, optional): Further runs, by config, e.g. ``{'configs/rm/x.py': [read_run('elsewhere/x')]}``.

    Returns:
        list[Filled]: In the order of the table.
    """
    root = Path(root) if root is not None else home() / 'work_dirs'
    return [_fill_row(table, row, root, given or {}) for row in table.rows]


def _fill_row(table: Table, row: Row, root: Path, given: Dict[str, List[RunLog]]) -> Filled:
    config, runs, notes = _choose(row, root, given)
    counted = [run for run in runs if run.finished] or runs
    first = METRICS[table.metrics[0]]
    values = [run.values(first) for run in counted]
    steps = dict(best=[first.best_step(each) for each in values], last=[max(each, default=None) for each in values])
    cells = []
    for metric, value in zip((METRICS[name] for name in table.metrics), row.published):
        cell = Cell(metric, value, table.reported)
        if metric.source == 'validation':
            cell.best, cell.last = (
                _stat(metric, [run.validations.get(step, {}) for run, step in zip(counted, steps[kind])])
                for kind in ('best', 'last')
            )
        else:
            source = [run.training for run in counted] if metric.source == 'training' else _efficiency(row, root)
            cell.best = _stat(metric, source)
        cells.append(cell)
    if counted and cells[0].last is None:
        measured = sorted({key for run in counted for metrics in run.validations.values() for key in metrics})
        others = f", but {', '.join(measured[:6])}: another project's?" if measured else ' yet'
        notes.append(f'no {first.key} in its log{others}')
    notes += [note for run in counted for note in _settings_notes(run, row, config)]
    marks = [mark for mark in (OTHER_SETTINGS, OTHER_DATA) if any(mark in note for note in notes)]
    state = ', '.join([_state(runs), *(f'{mark} left out' if mark == OTHER_DATA else mark for mark in marks)])
    checkpoints = [run.checkpoint(step, table.reported) for run, step in zip(counted, steps[table.reported])]
    commands = _commands(row, row.runs or table.runs, config, runs, cells)
    return Filled(row, cells, state, None if row.method else config, counted, checkpoints, notes, commands)


def _places(row: Row, root: Path) -> Iterable[Tuple[str, List[Path]]]:
    """Where the runs of a row may be, the preferred ones first: (config, folders)."""
    for config in row.configs:
        folder = root / Path(config).parent.name / Path(config).stem
        if row.method:
            yield config, _seeds(folder.with_name(f'{folder.name}-compare') / re.sub('[:,]', '_', row.method))
        else:
            yield config, [folder, *_seeds(folder)]


def _seeds(folder: Path) -> List[Path]:
    return sorted(folder.glob('seed*'), key=lambda path: int(re.sub(r'\D', '', path.name) or 0))


def _choose(row: Row, root: Path, given: Dict[str, List[RunLog]]) -> Tuple[Optional[str], List[RunLog], List[str]]:
    """The config with most finished runs, the first of equals, its runs, and what was left out."""
    chosen, best, refused = (None, [], []), (0, 0), []
    for config, folders in _places(row, root):
        notes: List[str] = []
        by_seed: Dict[object, RunLog] = {}
        others = () if row.method else given.get(config, ())
        for run in (*(read_run(folder) for folder in folders if sessions(folder)), *others):
            differ = other_data(config, run)
            if differ:
                changed = ', '.join(f'{each.new} {each.key} instead of {each.old}' for each in differ)
                refused.append(f'{show_path(run.folder)} left out, {OTHER_DATA}: {changed}')
                continue
            seed = run.folder if run.seed is None else run.seed
            rival = by_seed.get(seed)
            if rival is not None:
                run, rival = (run, rival) if run.finished >= rival.finished else (rival, run)
                notes.append(f'{show_path(rival.folder)} left out: the same seed as {show_path(run.folder)}')
            by_seed[seed] = run
        score = (sum(run.finished for run in by_seed.values()), len(by_seed))
        if score > best:
            chosen, best = (config, list(by_seed.values()), notes), score
    return (*chosen[:2], [*chosen[2], *refused])


def _state(runs: List[RunLog]) -> str:
    finished = sum(run.finished for run in runs)
    unfinished = [run.state for run in runs if not run.finished]
    if unfinished:
        return ', '.join([*([f'{finished} finished'] if finished else []), *unfinished])
    return {0: 'missing', 1: 'finished'}.get(finished, f'{finished} runs finished')


def _stat(metric: Metric, records: List[dict]) -> Optional[Stat]:
    values = [value for value in map(metric.shown, records) if value is not None]
    return Stat.of(values) if values else None


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


def _settings_notes(run: RunLog, row: Row, config: str) -> List[str]:
    """Which settings of a run differ from the config that it stands for."""
    from mmengine.config import Config

    where = show_path(run.folder)
    if run.settings is None:
        return [f'{where}: no config in the folder, so its length and settings are not known']
    wanted = read_shipped(config)
    if wanted is None:  # a toolbox that is not installed
        return [f'{where}: not compared with its config, which cannot be read']
    wanted = Config(wanted)
    wanted.merge_from_dict(row.options or {})
    differ = differences_to(wanted.to_dict(), run.settings)
    found = sorted(f'{each.key}={each.new} instead of {each.old}' for each in differ)
    more = f' and {len(found) - 3} more' if len(found) > 3 else ''
    notes = [f'{where}: {OTHER_SETTINGS} than the config: {"; ".join(found[:3])}{more}'] if found else []
    return notes if run.data else [*notes, f'{where}: its number of samples is not known (no data.json in the folder)']


# ------------------------------------------------------------------------------------------------------------- commands
def gpus_of(config: str) -> int:
    """The number of GPUs that the recipe of a shipped config is for."""
    named = re.search(r'_(\d+)xb\d+', config)
    return int(named[1]) if named else 8 if '_1x_coco' in config else 1


def train_command(config: str) -> str:
    """The command that trains a shipped config."""
    gpus = gpus_of(config)
    return f'python tools/train.py {config}' if gpus == 1 else f'tools/dist_train.sh {config} {gpus}'


def _commands(row: Row, wanted: int, config: Optional[str], runs: List[RunLog], cells: List[Cell]) -> List[str]:
    """What fills the rest of a row of ``wanted`` runs: resume what is unfinished, start what is missing."""
    commands, config = [], config or row.configs[0]
    if not row.method:
        start, known = train_command(config), {run.seed for run in runs}
        commands += [f'{start} --work-dir {show_path(run.folder)} --resume' for run in runs if not run.finished]
        missing = [seed for seed in range(wanted + len(runs)) if seed not in known][: max(wanted - len(runs), 0)]
        commands += [start if wanted == 1 else f'{start} --seed {seed}' for seed in missing]
    elif sum(run.finished for run in runs) < wanted:
        seeds = ' '.join(map(str, range(wanted)))
        commands.append(f'mmrm compare {config} --methods {row.method} --seeds {seeds} --gpus {gpus_of(config)}')
    if any(cell.metric.source == 'efficiency' and cell.best is None for cell in cells):
        commands.append(f'python tools/analysis/efficiency.py --json work_dirs/{EFFICIENCY_FILE}')
    return commands


# ---------------------------------------------------------------------------------------------------------------- input
def check_root(root: Path, asked: bool = True) -> List[str]:
    """Check a folder of runs before any table is filled.

    Args:
        root (Path): The folder.
        asked (bool): Whether the user named it: it must hold a run then. Defaults to True.

    Returns:
        list[str]: Notes: that it is empty, or which runs belong to no table.

    Raises:
        UserFileError: If the user named it, and it holds no log.
    """
    found = find_runs(root)
    if not found:
        text = f'{show_path(root)} holds no log of mmengine (<run>/<time>/vis_data/scalars.json)'
        if asked:
            raise UserFileError(f'{text}. Give the folder of your runs: --work-dir PATH')
        return [f'{text}: every cell is missing.']
    known = {path for table in TABLES.values() for row in table.rows for _, each in _places(row, root) for path in each}
    unknown = [each for each in found if each not in known and not STUDIES.match(f'{each.relative_to(root)}/')]
    note = (
        f'{len(unknown)} of the {len(found)} runs in {show_path(root)} are not at the place of a row '
        f'(<regulariser>/<config name>[/seed<N>]): {abbreviate(map(show_path, unknown))}. '
        'Assign a run at another place by --run CONFIG=FOLDER.'
    )
    return [note] if unknown else []


def choose_tables(names: Sequence[str]) -> List[str]:
    """``names``, or all tables; raises for an unknown name."""
    check_names('table', names, TABLES)
    return list(dict.fromkeys(names)) or list(TABLES)


def check_given(given: Dict[str, List[RunLog]], names: Sequence[str]) -> List[str]:
    """Notes: whose runs :func:`fill` leaves out of these tables."""
    shown = {config for name in names for row in TABLES[name].rows for config in row.configs if not row.method}
    return [f'{config} has no row in {", ".join(names)}: it is left out.' for config in sorted(given.keys() - shown)]


def parse_given(pairs: Sequence[str]) -> Dict[str, List[RunLog]]:
    """``CONFIG=FOLDER`` pairs of the command line as :func:`fill` takes them; raises for any other text."""
    given: Dict[str, List[RunLog]] = {}
    for pair in pairs:
        config, _, folder = pair.partition('=')
        config = next((each for each in KNOWN if each in (config, f'configs/{config}', f'{config}.py')), config)
        if config not in KNOWN or not folder:
            raise UserValueError(f'--run {pair}: CONFIG=FOLDER is allowed, with a config of a table (configs/*/*.py).')
        given.setdefault(config, []).append(read_run(folder))
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
        records = [_record(name, each, cell) for each in filled for cell in each.cells]
        return '\n'.join(grids.render(form, list(records[0]), [list(each.values()) for each in records])) + '\n'
    headers, lines = _lines(table, filled)
    end = headers.index('State')
    sections = {
        'Published with:': recipe_lines(filled),
        'Behind the numbers:': _source_lines(filled),
        'To fill the rest:': list(dict.fromkeys(command for each in filled for command in each.commands)),
    }
    head, item, blank = dict(latex=('% ', '% - ', []), markdown=('', '- ', [''])).get(form, ('', '  ', []))
    title = f'{"### " if form == "markdown" else head}{name}: {table.title}'
    star = explain(table).replace('*', '\\*', 1) if form == 'markdown' else f'{head}{explain(table)}'
    parts = [title, *blank, *grids.render(form, headers, lines, right=range(end - 4, end)), *blank, star]
    for heading, texts in sections.items():
        if texts:
            parts += [*blank, f'{head}{heading}', *blank, *(f'{item}{text}' for text in texts)]
    return '\n'.join(parts) + '\n'


def render_all(filled: Dict[str, List[Filled]], form: str) -> str:
    """Write several filled tables, by name, one below the other; a CSV has one header."""
    texts = [render(name, rows, form) for name, rows in filled.items()]
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
    recipes = bool(recipe_lines(filled))
    best, last = (f'{kind.capitalize()}{"*" * (table.reported == kind)}' for kind in ('best', 'last'))
    measured = ['Metric', 'Published'] if several else [f'{METRICS[table.metrics[0]].header} published']
    headers = [*table.columns, *measured, best, last, 'Difference', 'State', *(['Published with'] if recipes else [])]
    lines = []
    for each in filled:
        for index, cell in enumerate(each.cells):
            metric, first = cell.metric, index == 0
            lines.append(
                [
                    *(label if first else '' for label in each.row.labels),
                    *([metric.header] if several else []),
                    f'{cell.published:.{metric.decimals}f}',
                    _number_text(cell.best, metric),
                    _number_text(cell.last, metric),
                    '' if cell.difference is None else f'{cell.difference:+.{metric.decimals}f}',
                    each.state if first else '',
                    *([each.row.recipe if first else ''] if recipes else []),
                ]
            )
    return headers, lines


def recipe_lines(filled: List[Filled]) -> List[str]:
    """What the recipes of the published numbers are, a line each; none where all rows have the same."""
    found = dict.fromkeys(each.row.recipe for each in filled if each.row.recipe)
    return [f'{name}: {RECIPES[name]}.' for name in found]


def explain(table: Table) -> str:
    """What the star in the headers means."""
    runs = f', mean of {table.runs} runs' if table.runs > 1 else ''
    kind = 'best over epochs' if table.reported == 'best' else 'last epoch'
    first = METRICS[table.metrics[0]].header
    return f'* what the paper reports ({kind}{runs}) and differences refer to; best: the epoch with the best {first}.'


def _source_lines(filled: List[Filled]) -> List[str]:
    """What the numbers are of, a line per run, and the notes."""
    lines = []
    for each in filled:
        for run, checkpoint in zip(each.runs, each.checkpoints):
            source = f'{each.config or each.row.configs[0]} {each.row.method}'.rstrip()
            file = show_path(checkpoint) if checkpoint else f'{show_path(run.folder)} (checkpoint not kept)'
            lines.append(f'{each.row.name}: {source} -> {file}')
        lines += [f'{each.row.name}: {note}' for note in each.notes]
    return lines


def _record(name: str, filled: Filled, cell: Cell) -> Dict[str, object]:
    """The line of the CSV for a number of the paper."""
    row, stat = filled.row, cell.best or cell.last
    numbers = {}
    for kind, each in (('best', cell.best), ('last', cell.last)):
        numbers.update({kind: each and each.mean, f'{kind}_deviation': each and each.deviation})
    numbers['difference'] = cell.difference
    return dict(
        dict(table=name, row=row.name, metric=cell.metric.header, published=cell.published),
        **{key: '' if each is None else f'{each:.{cell.metric.decimals + 2}f}' for key, each in numbers.items()},
        runs=stat.count if stat else 0,
        reported=cell.reported,
        state=filled.state,
        config=f'{filled.config or row.configs[0]} {row.method}'.rstrip(),
        folders=' '.join(show_path(run.folder) for run in filled.runs),
        checkpoints=' '.join(show_path(path) for path in filled.checkpoints if path),
        commands='; '.join(filled.commands),
        notes='; '.join(filled.notes),
        recipe=row.recipe,
    )
