"""Rows of texts as a table for a terminal, as Markdown, CSV or LaTeX."""

import csv
import io
from pathlib import Path
from typing import List, Optional, Sequence

from ..utils.errors import UserValueError

FORMATS = ('terminal', 'markdown', 'csv', 'latex')
SUFFIXES = {'.md': 'markdown', '.csv': 'csv', '.tex': 'latex', '.txt': 'terminal'}
LATEX = str.maketrans(
    {
        '\\': r'\textbackslash{}',
        '~': r'\textasciitilde{}',
        '^': r'\textasciicircum{}',
        '±': r'$\pm$',
        'α': r'$\alpha$',
        'λ': r'$\lambda$',
        'ω': r'$\omega$',
        **{char: f'\\{char}' for char in '%#_&${}'},
    }
)


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
    rows = [headers, *lines]
    if choose_format(form, None) == 'csv':
        out = io.StringIO()
        csv.writer(out, lineterminator='\n').writerows(rows)
        return out.getvalue().splitlines()
    if form == 'latex':
        shape = ''.join('r' if index in right else 'l' for index in range(len(headers)))
        head, *body = (' & '.join(cell.translate(LATEX) for cell in row) + r' \\' for row in rows)
        frame = rf'\begin{{tabular}}{{{shape}}}', r'\toprule', head, r'\midrule'
        return [*frame, *body, r'\bottomrule', r'\end{tabular}']
    if form == 'markdown':
        rule = ['---:' if index in right else '---' for index in range(len(headers))]
        return [f'| {" | ".join(row)} |' for row in (headers, rule, *lines)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    shown = [
        '   '.join(
            f'{cell:>{width}}' if at in right else f'{cell:{width}}'
            for at, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    ]
    rule = '─' * (sum(widths) + 3 * len(widths) - 1)
    return [f'  {shown[0]}'.rstrip(), f' {rule}', *(f'  {row}'.rstrip() for row in shown[1:])]
