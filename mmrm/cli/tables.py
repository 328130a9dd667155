"""The paper's tables, your runs next to the published numbers; what is missing comes with its command."""

import sys
from pathlib import Path
from typing import Optional, Sequence

from ..report.grids import FORMATS
from ..report.published import TABLES
from ..utils.errors import cli, printable
from .options import Parser


def parser() -> Parser:
    parser = Parser(prog='mmrm tables', description=__doc__, allow_abbrev=False)
    parser.add_argument('tables', nargs='*', metavar='TABLE', help=f'some of {", ".join(TABLES)} (default: all)')
    parser.add_argument('--work-dir', help='folder of the runs (default: work_dirs of the project)')
    run = 'a run at another place, e.g. configs/rm/resnet18_2xb64_cifar100.py=my/run'
    parser.add_argument('--run', nargs='+', default=[], metavar='CONFIG=FOLDER', help=run)
    parser.add_argument('--results', nargs='+', default=[], metavar='FILE', help="others' runs, written by --save")
    parser.add_argument('--save', metavar='FILE', help='write the runs behind the tables to a .json file, for others')
    parser.add_argument('--format', choices=FORMATS, help='default: terminal, or by the ending of --out')
    parser.add_argument('--out', help='write to a file, .md, .csv, .tex or .txt')
    parser.add_argument('--overwrite', action='store_true', help='replace existing files')
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parser().parse_args(argv)
    from ..report import grids, results, tables
    from ..utils.files import check_out, write_text
    from ..utils.paths import home

    names = tables.choose_tables(args.tables)
    form = grids.choose_format(args.format, args.out)
    given = tables.parse_given(args.run)
    for path in args.results:
        for config, runs in results.read_results(path).items():
            given.setdefault(config, []).extend(runs)
    # Others' runs are not mixed with one's own.
    root = Path(args.work_dir or home() / ('results' if args.results else 'work_dirs'))
    for path, endings in ((args.out, ()), (args.save, ('.json',))):
        if path:
            check_out(path, args.overwrite, endings)
    for note in tables.check_given(given, names) if args.results else tables.check_root(root, bool(args.work_dir)):
        print(printable(f'note: {note}'), file=sys.stderr)
    filled = {name: tables.fill(TABLES[name], root, given) for name in names}
    if args.save:
        runs = {each.config: each.runs for rows in filled.values() for each in rows if each.config}
        print(results.write_results(args.save, runs, args.overwrite), file=sys.stderr)
    text = printable(tables.render_all(filled, form))  # names of folders and metrics are anybody's
    if args.out:
        write_text(args.out, text, args.overwrite)
        print(args.out)
    else:
        print(text, end='')
