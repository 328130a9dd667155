"""Options that the scripts of figures and tables share, and what they do."""

from pathlib import Path
from typing import Optional, Sequence

from mmrm.cli.options import Parser
from mmrm.report import grids
from mmrm.utils import figures
from mmrm.utils.errors import UserFileError
from mmrm.utils.files import check_out, write_text


def picture_parser(doc: str, config: bool = False) -> Parser:
    """A parser for a script that writes a picture, with ``config``: of a classifier's training data."""
    parser = Parser(description=doc, allow_abbrev=False)
    if config:
        parser.add_argument('config', help="a classifier's config; its training data is shown")
        parser.add_cfg_options('settings that replace those of the config')
    parser.add_argument('out', help='picture to write: .png, .svg or .pdf')
    parser.add_argument('--overwrite', action='store_true', help='replace existing files')
    return parser


def add_models(parser: Parser) -> None:
    """``--model NAME CONFIG CHECKPOINT`` (:func:`tools.analysis.classifiers.parse_models`) and ``--device``."""
    parser.add_argument(
        '--model',
        nargs=3,
        action='append',
        default=[],
        metavar=('NAME', 'CONFIG', 'CHECKPOINT'),
        help='a checkpoint (or the folder of a run) and what to call it; may be repeated',
    )
    parser.add_argument('--device', choices=('cpu', 'cuda'), help='default: cuda if there is one')


def add_table(parser: Parser) -> None:
    """``--format`` and ``--out`` of a script that prints a table, and ``--overwrite``."""
    parser.add_argument('--format', choices=grids.FORMATS, help='default: terminal, or by the ending of --out')
    parser.add_argument('--out', help='write the table to a file, .md, .csv or .tex')
    parser.add_argument('--overwrite', action='store_true', help='replace existing files')


def table_format(out: Optional[str], overwrite: bool, form: Optional[str] = None) -> str:
    """The format of a table, after a look at whether it can be written to ``out``."""
    found = grids.choose_format(form, out)
    if out:
        check_out(out, overwrite)
    return found


def write_table(lines: Sequence[str], out: Optional[str], overwrite: bool) -> None:
    """Write a table to a file and print its name, or print the table."""
    text = '\n'.join(lines)
    print(write_text(out, text + '\n', overwrite) if out else text)


def results_parser(doc: str, default: str, figure: str) -> Parser:
    """A parser for the table and the figure of a study."""
    parser = Parser(description=doc, allow_abbrev=False)
    parser.add_argument(
        'results', nargs='?', help=f"file of results (default: your own run's, {default}; without one, the published)"
    )
    parser.add_argument('--figure', help=f'also draw {figure}: .png, .svg or .pdf')
    add_table(parser)
    return parser


def check_results(args, own: Path, published: Path) -> Path:
    """The file of results to show: the one that was asked for, the user's own or the published one.

    Raises:
        UserFileError: If it is not there, or what is asked for cannot be written.
    """
    if args.figure:
        figures.check_picture(args.figure, args.overwrite)
    found = own if own.is_file() or not published.is_file() else published
    path = Path(args.results).expanduser() if args.results else found
    if not path.is_file():
        raise UserFileError(
            f'there is no file of results {path}. It comes from: python projects/{published.parent.name}/run.py'
        )
    return path
