"""The paper's tables, your runs next to the published numbers; what is missing comes with its command."""

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

from ..report.grids import FORMATS
from ..report.published import TABLES
from ..utils.errors import cli, printable
from .options import Parser


def parser() -> argparse.ArgumentParser:
    parser = Parser(prog='mmrm tables', description=__doc__, allow_abbrev=False)
    parser.add_argument('tables', nargs='*', metavar='TABLE', help=f'some of {", ".join(TABLES)} (default: all)')
    parser.add_argument('--work-dir', help='folder of the runs (default: work_dirs of the project)')
    parser.add_argument(
        '--run',
        nargs='+',
        default=[],
        metavar='CONFIG=FOLDER',
        help='a run at another place, e.g. configs/rm/resnet18_2xb64_cifar100.py=my/run',
    )
    parser.add_argument('--format', choices=FORMATS, help='default: terminal, or by the ending of --out')
    parser.add_argument('--out', help='write to a file, .md, .csv, .tex or .txt')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing --out file')
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parser().parse_args(argv)
    from ..report import grids, tables
    from ..utils.files import check_out, write_text
    from ..utils.paths import home

    names = tables.choose_tables(args.tables)
    form = grids.choose_format(args.format, args.out)
    given = tables.parse_given(args.run)
    root = Path(args.work_dir) if args.work_dir else home() / 'work_dirs'
    if args.out:
        check_out(args.out, args.overwrite)
    for note in tables.check_root(root, asked=args.work_dir is not None):
        print(printable(f'note: {note}'), file=sys.stderr)
    text = printable(tables.render_all(names, root, given, form))  # names of folders and metrics are anybody's
    if args.out:
        write_text(args.out, text, args.overwrite)
        print(args.out)
    else:
        print(text, end='')
