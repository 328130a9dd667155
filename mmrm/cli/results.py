"""Write results.csv: one row per checkpoint with its accuracy, parameters, image size, hash and command."""

from typing import Optional, Sequence

from ..utils.errors import UserFileError, cli
from ..utils.files import check_out
from .options import Parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm results', description=__doc__, allow_abbrev=False)
    parser.add_argument('out', metavar='OUT', help='file to write, .csv')
    parser.add_argument('runs', nargs='*', metavar='FOLDER', help='runs, or folders of runs (default: work_dirs)')
    parser.add_argument('--overwrite', action='store_true', help='replace OUT if it exists')
    args = parser.parse_args(argv)
    check_out(args.out, args.overwrite, ('.csv',))

    from ..weights.results import collect, write_results

    rows = collect(args.runs or ['work_dirs'])
    if not rows:
        raise UserFileError('no checkpoint that its run validated was found: there is nothing to write.')
    write_results(rows, args.out, args.overwrite)
    print(f'{args.out}: {len(rows)} checkpoints')
