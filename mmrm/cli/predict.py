"""Say what is in images: the classes that a trained classifier finds likeliest, and where it sees them."""

import json
import sys
from pathlib import Path
from typing import List, Optional, Sequence

from ..utils.errors import UserFileError, cli
from ..utils.files import check_out, write_text
from .options import Parser, positive

BROKEN = 1  # exit code where an image could not be read; the others were predicted


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(
        prog='mmrm predict',
        description=__doc__,
        allow_abbrev=False,
        epilog='Exit code: 0, or 1 if an image could not be read (a line on stderr each), or 2 for a mistake.',
    )
    parser.add_argument(
        'source', metavar='RUN', help="a run's folder (its best checkpoint, else its last), or a checkpoint"
    )
    parser.add_argument('images', nargs='+', metavar='IMAGE', help='image files, or folders of them')
    parser.add_argument('--config', help='of RUN, where the checkpoint does not carry it')
    parser.add_argument('--top', type=positive, default=3, metavar='N', help='classes per image (default: 3)')
    parser.add_argument('--json', nargs='?', const='-', metavar='FILE', help='as JSON, to a file or to stdout')
    parser.add_argument(
        '--cam', metavar='FOLDER', help='write a picture per image: where its classes are seen (GradCAM)'
    )
    parser.add_argument('--overwrite', action='store_true', help='replace files that exist')
    parser.add_argument('--device', choices=('cpu', 'cuda'), help='default: cuda if there is one')
    args = parser.parse_args(argv)

    from ..weights.build import open_run
    from ..weights.classifiers import choose_device
    from .prediction import Prediction, find_images, predict, write_maps

    files = find_images(args.images)
    if args.json not in (None, '-'):
        check_out(args.json, args.overwrite, ('.json',))
    maps = map_files(args.cam, files, args.overwrite)
    run = open_run(args.source, args.config, choose_device(args.device))
    predictions: List[Prediction] = []
    for number, prediction in enumerate(predict(run, files, args.top)):
        predictions.append(prediction)
        if prediction.error:
            print(f'error: {prediction.error}', file=sys.stderr, flush=True)
        elif maps:
            write_maps(run, prediction, maps[number], args.overwrite)
    text = json.dumps([prediction.plain() for prediction in predictions], indent=2, ensure_ascii=False)
    if args.json == '-':
        print(text)
    elif args.json:
        print(write_text(args.json, text + '\n', args.overwrite))
    else:
        show(predictions)
    if args.cam:
        print(f'{sum(not each.error for each in predictions)} pictures in {args.cam}', file=sys.stderr)
    broken = sum(bool(each.error) for each in predictions)
    if broken:
        print(f'{broken} of {len(files)} images could not be read', file=sys.stderr)
        sys.exit(BROKEN)


def map_files(folder: Optional[str], files: Sequence[Path], overwrite: bool) -> List[Path]:
    """The picture of each image, in a folder; images of one name in several folders have a number."""
    if folder is None:
        return []
    from ..report.cam import grad_cam

    grad_cam()
    if Path(folder).expanduser().is_file():
        raise UserFileError(f'--cam {folder} is a file: name a folder.')
    found: List[Path] = []
    for file in files:
        out = Path(folder).expanduser() / f'{file.stem}_cam.png'
        number = 2
        while out in found:
            out = Path(folder).expanduser() / f'{file.stem}_{number}_cam.png'
            number += 1
        found.append(check_out(out, overwrite))
    return found


def show(predictions) -> None:
    """Print a table: an image a row, its classes with their scores beside it."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column('image', overflow='fold')
    table.add_column('classes', overflow='fold')
    for each in predictions:
        if not each.error:
            table.add_row(str(each.file), '   '.join(f'{name} {score:.3f}' for name, _, score in each.classes))
    console = Console()
    console = console if console.is_terminal else Console(width=200)  # a pipe has no width
    if table.row_count:
        console.print(table, markup=False, highlight=False)
