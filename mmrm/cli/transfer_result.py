"""The tables of the transfer experiment and, if asked for, its figure."""

from pathlib import Path
from typing import Optional, Sequence

from ..analysis import transfer_result as analysis
from ..experiments.transfer import RESULTS, default_root, read_results
from ..report import grids
from ..report.tables import show_path
from ..utils import figures
from ..utils.errors import UserFileError, cli
from ..utils.files import check_out, write_text
from .options import Parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm transfer-result', description=__doc__, allow_abbrev=False)
    parser.add_argument(
        'results',
        nargs='?',
        help="file of results (default: your own run's, work_dirs/transfer/results.jsonl; "
        'without one, those of docs/transfer.md)',
    )
    table = parser.add_mutually_exclusive_group()
    table.add_argument('--sizes', action='store_true', help='AP by the size of the objects instead')
    table.add_argument(
        '--alone', action='store_true', help='top-1 of the pretrained classifiers on whole, shrunken images instead'
    )
    parser.add_argument(
        '--figure',
        help="also draw RM's differences and the curves of --alone, or with --sizes AP by size: .png, .svg or .pdf",
    )
    parser.add_argument('--format', choices=grids.FORMATS, help='default: terminal, or by the ending of --out')
    parser.add_argument('--out', help='write the table to a file, .md, .csv or .tex')
    parser.add_argument('--overwrite', action='store_true', help='replace existing files')
    args = parser.parse_args(argv)
    form = grids.choose_format(args.format, args.out)
    if args.out:
        check_out(args.out, args.overwrite)
    if args.figure:
        figures.check_picture(args.figure, args.overwrite)
    own = default_root() / 'results.jsonl'
    found = own if own.is_file() or not RESULTS.is_file() else RESULTS
    path = Path(args.results).expanduser() if args.results else found
    if not path.is_file():
        raise UserFileError(f'there is no file of results {path}. It comes from: mmrm transfer')
    results = read_results(path)
    if args.alone:
        headers, lines, words = analysis.ALONE_HEADERS, analysis.alone_lines(results), 0
    elif args.sizes:
        headers, lines, words = analysis.SIZE_HEADERS, analysis.size_lines(results), 3
    else:
        headers, lines, words = analysis.HEADERS, analysis.table_lines(results), 2
    text = grids.render(form, headers, lines, right=range(words, len(headers)))
    if form == 'terminal':
        changed = {f'{key}={value}' for result in results for key, value in result.get('pretraining', {}).items()}
        note = f'; pretrained with {", ".join(sorted(changed))}' if changed else ''
        text = [
            f'{len(results)} runs of {show_path(path)}; mean ± standard deviation (seeds), 95 % intervals{note}',
            *text,
        ]
    if args.out:
        print(write_text(args.out, '\n'.join(text) + '\n', args.overwrite))
    else:
        print('\n'.join(text))
    if args.figure:
        draw = analysis.draw if args.sizes else analysis.draw_summary
        foot = [f'{len(results)} runs of {show_path(path)}; points are means over seeds, bars of curves deviations']
        print(figures.save(draw(results, foot), args.figure, args.overwrite))
