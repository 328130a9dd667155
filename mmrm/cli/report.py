"""One page of runs: curves, results beside the paper's, differences, configs. A file, or live."""

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

from ..utils.errors import UserValueError, cli
from ..utils.paths import find, show_path
from .options import Parser


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'{text!r} is not a port, 0 to 65535')
    return int(text)


def parser() -> argparse.ArgumentParser:
    parser = Parser(prog='mmrm report', description=__doc__, allow_abbrev=False)
    parser.add_argument('runs', nargs='+', metavar='RUN', help='folder of a run, or one that holds runs at any depth')
    parser.add_argument(
        '--out', default='report.html', help='the page (default: report.html); an older report is replaced'
    )
    parser.add_argument('--overwrite', action='store_true', help='replace --out also if it is no report')
    parser.add_argument(
        '--pictures',
        action='store_true',
        help='add what needs the checkpoints and the data: mixed batches, activation maps, confusions, predictions; '
        'kept in each run, so that it is computed once',
    )
    parser.add_argument('--device', default='cpu', help='for --pictures (default: cpu)')
    parser.add_argument('--serve', action='store_true', help='show the page at an address and refresh it as logs grow')
    parser.add_argument('--host', default='127.0.0.1', help='for --serve (default: 127.0.0.1, this machine alone)')
    parser.add_argument('--port', type=port, default=8765, help='for --serve (default: 8765; 0: any that is free)')
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parser().parse_args(argv)
    from ..report import page
    from ..report.collect import collect

    if args.serve and args.overwrite:
        raise UserValueError('--overwrite is for a file, and --serve writes none.')
    folders = [find(each) for each in args.runs]
    if not args.serve:
        out = page.check_page(args.out, args.overwrite)
    found = collect(folders)
    for line in found.left_out:
        print(f'note: left out: {line}', file=sys.stderr)
    pictures = None
    if args.pictures:
        from ..report.pictures import of_runs

        beside = Path(args.out).expanduser().absolute().parent
        pictures = of_runs(found.runs, args.device, beside, tell=lambda line: print(line, file=sys.stderr, flush=True))
    if args.serve:
        from ..report.live import serve

        serve(folders, args.host, args.port, pictures)
        return
    path = page.write_report(folders, out, args.overwrite, pictures, found)
    print(f'{show_path(path)} ({path.stat().st_size / 1e6:.1f} MB, {len(found.runs)} runs)')
