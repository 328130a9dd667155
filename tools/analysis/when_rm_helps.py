#!/usr/bin/env python
"""The figure of docs/when_rm_helps.md, from that page's table: RM minus no mixing and minus CutMix, with intervals."""

import re
import sys
import textwrap
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

from mmrm.utils import figures
from mmrm.utils.errors import cli
from tools.analysis import plots
from tools.analysis.options import picture_parser

PAGE = Path(__file__).resolve().parents[2] / 'docs' / 'when_rm_helps.md'
RIVALS = ('no mixing', 'CutMix')


class Row(NamedTuple):
    """A row of the table: what was trained, and RM minus each of ``RIVALS``: (difference, low, high)."""

    label: str
    values: Tuple[Tuple[float, ...], ...]


def read_rows(text: str) -> List[Row]:
    """The rows of the page's table."""
    cells = [[cell.strip() for cell in line.strip('|').split('|')] for line in text.splitlines() if line[:1] == '|']
    number = r'[-+][\d.]+'
    return [Row(row[0], tuple(tuple(map(float, re.findall(number, cell))) for cell in row[1:3])) for row in cells[2:]]


def draw(rows: Sequence[Row]):
    """A point per row, filled with its interval where it was measured, hollow where it is published."""
    figure = figures.new_figure(8, 0.42 * len(rows) + 0.7)
    colour = plots.COLOURS['RM']
    for column, axes in enumerate(figure.subplots(1, len(RIVALS), sharex=True, sharey=True)):
        for place, row in enumerate(rows):
            mean, *interval = row.values[column]
            axes.plot(interval, [place] * len(interval), color=colour, linewidth=1.4)
            axes.plot(mean, place, 'o', color=colour, markersize=5, markerfacecolor=colour if interval else 'white')
        axes.axvline(0, color='black', linewidth=0.8)
        plots.tidy(axes, f'RM minus {RIVALS[column]}, percentage points')
    axes.set_yticks(range(len(rows)), [textwrap.fill(row.label, 48) for row in rows], fontsize=7)
    axes.invert_yaxis()
    plots.provenance(figure, ['Filled: measured, with 95 % interval. Hollow: published.'])
    return figure


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = picture_parser(__doc__).parse_args(argv)
    print(figures.save(draw(read_rows(PAGE.read_text(encoding='utf-8'))), args.out, args.overwrite))


if __name__ == '__main__':
    main()
