"""One page of runs: curves, results next to the paper's, differences, configs."""

import sys
from typing import Optional, Sequence

from ..utils.errors import cli, printable
from .options import Parser


def parser() -> Parser:
    parser = Parser(prog='mmrm report', description=__doc__, allow_abbrev=False)
    parser.add_argument('runs', nargs='+', metavar='RUN', help='folder of a run, or one that holds runs at any depth')
    parser.add_argument('--out', default='report.html', help='the page (default: report.html); replaces a report')
    parser.add_argument('--overwrite', action='store_true', help='replace --out even if it is not a report')
    pictures = 'add activation maps and confusions of classifiers, which need checkpoints and data; kept in each run'
    parser.add_argument('--pictures', action='store_true', help=pictures)
    parser.add_argument('--device', default='cpu', help='for --pictures (default: cpu)')
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parser().parse_args(argv)
    from ..report import page
    from ..report.collect import collect
    from ..utils.paths import find, show_path

    out = page.check_page(args.out, args.overwrite)
    found = collect([find(each) for each in args.runs])
    for line in found.left_out:
        print(printable(f'note: left out: {line}'), file=sys.stderr)
    pictures = None
    if args.pictures:
        from ..report.pictures import of_runs

        pictures = of_runs(found, args.device, lambda line: print(printable(line), file=sys.stderr, flush=True))
    path = page.write_report(found, out, args.overwrite, pictures)
    print(f'{show_path(path)} ({path.stat().st_size / 1e6:.1f} MB, {len(found.runs)} runs)')
