"""Every result table of the paper, read from ``published.json``: numbers, metrics, and the configs that fill the rows.

A row's configs are in the order in which their runs are looked for. A row of the ablations names the method of
``mmrm compare`` that its config is trained with. Errors are 100 - accuracy. Whether the paper's HTC had its semantic
branch is not known, so that its rows have both configs.
"""

import json
from pathlib import Path
from typing import NamedTuple

from .runs import Metric


class Row(NamedTuple):
    """One line of a table.

    Args:
        labels (tuple[str, ...]): One for each of the table's ``columns``.
        published (tuple[float, ...]): One for each of its ``metrics``.
        configs (tuple[str, ...]): What fills it.
        method (str): Of ``mmrm compare``, where the config is not trained as it is.
        options (dict, optional): What that method sets in the config.
        runs (int, optional): Of how many runs it is the mean, where that differs from the table's.
        recipe (str): Of :data:`RECIPES`: how the published number was trained, where rows of a table differ in that.
    """

    labels: tuple[str, ...]
    published: tuple[float, ...]
    configs: tuple[str, ...] = ()
    method: str = ''
    options: dict | None = None
    runs: int | None = None
    recipe: str = ''

    @property
    def name(self) -> str:
        return ' '.join(self.labels)


class Table(NamedTuple):
    """One table of the paper.

    Args:
        title (str): What it compares.
        label (str): Its label in the paper's source.
        columns (tuple[str, ...]): Headers of the rows' labels.
        metrics (tuple[str, ...]): Of :data:`METRICS`; the first one decides which epoch is the best.
        rows (tuple[Row, ...]): Top to bottom as in the paper.
        runs (int): Of how many runs the published numbers are the mean.
        reported (str): 'best' over epochs or 'last' epoch, whichever the published numbers are.
    """

    title: str
    label: str
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    runs: int = 1
    reported: str = 'best'


def _tuples(entry: dict) -> dict:
    """JSON's lists as tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


_DATA = json.loads(Path(__file__).with_suffix('.json').read_text(encoding='utf-8'))
METRICS = {name: Metric(**entry) for name, entry in _DATA['metrics'].items()}
TABLES = {
    name: Table(**_tuples(dict(entry, rows=[Row(**_tuples(row)) for row in entry['rows']])))
    for name, entry in _DATA['tables'].items()
}
# How a published number was trained. The paper took some from other papers, which trained otherwise than RM.
RECIPES = _DATA['recipes']
# How many samples of a data set are read, by the end of a config's name. COCO's: those with a box.
SAMPLES = _DATA['samples']
# The paper's names of what a folder of configs/ trains.
FOLDERS = _DATA['folders']
# The only points of the paper's two curves (error against alpha and omega) that its text and tables give, by config.
CURVES, CHOSEN = _DATA['curves'], _DATA['chosen']
