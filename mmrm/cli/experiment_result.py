"""The table of the CIFAR-10 experiment and, if asked for, its figure."""

from pathlib import Path
from typing import Optional, Sequence

from ..analysis import experiment_result as analysis
from ..experiments.cifar10 import default_root, read_results
from ..report import grids
from ..report.tables import show_path
from ..utils import figures
from ..utils.errors import UserFileError, UserValueError, cli
from ..utils.files import check_out, write_text
from ..utils.paths import home
from .options import Parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm experiment-result', description=__doc__, allow_abbrev=False)
    parser.add_argument(
        'results',
        nargs='?',
        help="file of results (default: your own run's, "
        'work_dirs/experiment/results.jsonl; without one, the published docs/experiment.jsonl)',
    )
    parser.add_argument(
        '--follow-ups',
        nargs='+',
        default=[],
        metavar='FILE',
        help='files of exploratory runs, one '
        'for each change of the settings: a second table, beside the same seeds of the first',
    )
    parser.add_argument('--figure', help='also draw the curves: .png, .svg or .pdf')
    parser.add_argument('--format', choices=grids.FORMATS, help='default: terminal, or by the ending of --out')
    parser.add_argument('--out', help='write the table to a file, .md, .csv or .tex')
    parser.add_argument('--overwrite', action='store_true', help='replace existing files')
    args = parser.parse_args(argv)
    form = grids.choose_format(args.format, args.out)
    if args.follow_ups and form == 'csv':
        raise UserValueError('--follow-ups makes two tables and csv holds one; leave it out, or choose another format.')
    if args.out:
        check_out(args.out, args.overwrite)
    if args.figure:
        figures.check_picture(args.figure, args.overwrite)
    own, published = default_root() / 'results.jsonl', home() / 'docs' / 'experiment.jsonl'
    found = own if own.is_file() or not published.is_file() else published
    path = Path(args.results).expanduser() if args.results else found
    others = [Path(name).expanduser() for name in args.follow_ups]
    for each in (path, *others):
        if not each.is_file():
            raise UserFileError(f'there is no file of results {each}. It comes from: python tools/experiment.py')
    results = read_results(path)
    lines = grids.render(form, analysis.HEADERS, analysis.table_lines(results), right=range(1, len(analysis.HEADERS)))
    if form == 'terminal':
        note = f'{len(results)} runs of {show_path(path)}; test accuracy in percent, mean ± standard deviation'
        lines = [note, *lines, *analysis.comparisons(results)]
    if len({each.stem for each in others}) < len(others):
        raise UserValueError('--follow-ups: two files have the same name, and it is the name of their rows.')
    if others:
        more = analysis.follow_up_lines(results, {each.stem: read_results(each) for each in others})
        headers = analysis.FOLLOW_UP_HEADERS
        lines += [
            '',
            *(['exploratory, under other settings:'] if form == 'terminal' else []),
            *grids.render(form, headers, more, right=range(2, len(headers))),
        ]
    if args.out:
        print(write_text(args.out, '\n'.join(lines) + '\n', args.overwrite))
    else:
        print('\n'.join(lines))
    if args.figure:
        foot = [f'{len(results)} runs of {show_path(path)}; lines are means over seeds, bands standard deviations']
        print(figures.save(analysis.draw(results, foot), args.figure, args.overwrite))
