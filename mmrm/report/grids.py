"""Rows of texts as a table for a terminal, as Markdown, CSV or LaTeX."""

import csv
import io
import shutil
from pathlib import Path
from typing import List, Optional, Sequence

from ..utils.errors import UserValueError

FORMATS = ('terminal', 'markdown', 'csv', 'latex')
SUFFIXES = {'.md': 'markdown', '.csv': 'csv', '.tex': 'latex', '.txt': 'terminal'}


def choose_format(form: Optional[str], out: Optional[str]) -> str:
    """The format that was asked for, else the one of the file's ending, else 'terminal'."""
    if form is not None and form not in FORMATS:
        raise UserValueError(f'format {form!r} must be one of {", ".join(FORMATS)}.')
    if form or not out:
        return form or 'terminal'
    if Path(out).suffix not in SUFFIXES:
        raise UserValueError(f'{out}: the name must end in {", ".join(SUFFIXES)}, or give --format.')
    return SUFFIXES[Path(out).suffix]


def render(form: str, headers: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[int] = ()) -> List[str]:
    """Lines of text.

    Args:
        form (str): One of :data:`FORMATS`.
        headers (Sequence[str]): Of the columns.
        lines (Sequence[Sequence[str]]): The rows.
        right (Sequence[int]): Numbers of the columns that are aligned to the right.
    """
    choose_format(form, None)
    return dict(terminal=_terminal, markdown=_markdown, csv=_csv, latex=_latex)[form](headers, lines, right)


def _terminal(headers: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[int]) -> List[str]:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    width = max(100, shutil.get_terminal_size((120, 40)).columns)
    console = Console(record=True, file=io.StringIO(), width=width, highlight=False)
    shown = Table(box=box.SIMPLE_HEAD)
    for index, header in enumerate(headers):
        shown.add_column(header, justify='right' if index in right else 'left', overflow='fold')
    for line in lines:
        shown.add_row(*line)
    console.print(shown, markup=False)
    return [line.rstrip() for line in console.export_text().splitlines() if line.strip()]


def _markdown(headers: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[int]) -> List[str]:
    rule = ['---:' if index in right else '---' for index in range(len(headers))]
    return [f'| {" | ".join(line)} |' for line in (headers, rule, *lines)]


def _csv(headers: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[int]) -> List[str]:
    out = io.StringIO()
    csv.writer(out, lineterminator='\n').writerows([headers, *lines])
    return out.getvalue().splitlines()


_ESCAPES = {
    '\\': r'\textbackslash{}',
    '~': r'\textasciitilde{}',
    '^': r'\textasciicircum{}',
    '±': r'$\pm$',
    'α': r'$\alpha$',
    'λ': r'$\lambda$',
    'ω': r'$\omega$',
    **{char: f'\\{char}' for char in '%#_&${}'},
}


def _tex(text: str) -> str:
    return ''.join(_ESCAPES.get(char, char) for char in text)


def _latex(headers: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[int]) -> List[str]:
    shape = ''.join('r' if index in right else 'l' for index in range(len(headers)))
    rows = [' & '.join(map(_tex, line)) + r' \\' for line in (headers, *lines)]
    return [
        rf'\begin{{tabular}}{{{shape}}}',
        r'\toprule',
        rows[0],
        r'\midrule',
        *rows[1:],
        r'\bottomrule',
        r'\end{tabular}',
    ]
