"""Error against alpha and omega from the results of tools/sweep.py, mean and deviation over seeds."""

from typing import Optional, Sequence

from ..analysis import sweep_curves
from ..report import grids
from ..utils import figures
from ..utils.errors import UserFileError, cli
from ..utils.files import check_out, write_text
from .options import Parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm sweep-curves', description=__doc__, allow_abbrev=False)
    parser.add_argument('out', help='picture to write: .png, .svg or .pdf')
    parser.add_argument('--sweeps', nargs='+', choices=sweep_curves.SWEEPS, help='default: those with results')
    parser.add_argument('--setting', nargs='+', metavar='SETTING', help='some of the settings (default: all)')
    parser.add_argument('--work-dir', help='holds <sweep>/<setting>/<value>/seed<N> (default: work_dirs/sweep)')
    parser.add_argument(
        '--kind',
        choices=sweep_curves.KINDS,
        default='best',
        help='best over epochs, as the paper reports, or the last epoch (default: best)',
    )
    parser.add_argument('--table', help='also write the numbers, .csv, .md or .tex')
    parser.add_argument('--overwrite', action='store_true', help='replace existing files')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    form = grids.choose_format(None, args.table)
    if args.table:
        check_out(args.table, args.overwrite)
    results, errors = {}, []
    for sweep in args.sweeps or sweep_curves.SWEEPS:
        try:
            results[sweep] = sweep_curves.read_sweep(sweep, args.work_dir, args.setting, args.kind)
        except UserFileError as error:
            errors.append(error)
            if args.sweeps:
                raise
    if not results:
        raise errors[0]
    lines = grids.render(form, sweep_curves.HEADERS, sweep_curves.table_lines(results), right=range(2, 7))
    if args.table:
        print(write_text(args.table, '\n'.join(lines) + '\n', args.overwrite))
    else:
        print('\n'.join(lines))
    foot = [
        f"{args.kind} epoch of each run, mean and deviation over seeds; published: only what the paper's text and "
        'tables give'
    ]
    print(figures.save(sweep_curves.draw(results, foot), args.out, args.overwrite))
