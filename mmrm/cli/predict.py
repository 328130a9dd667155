"""Say what is in images: the classes that a trained classifier finds likeliest, and where it sees them."""

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from ..utils.errors import UserError, UserFileError, cli, one_line, printable
from .options import Parser, positive


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(
        prog='mmrm predict',
        description=__doc__,
        allow_abbrev=False,
        epilog='Exit code: 0, or 1 if an image could not be read (a line on stderr each), or 2 for a mistake.',
    )
    parser.add_argument('source', metavar='RUN', help="checkpoint, or a run's folder (its best, else its last)")
    parser.add_argument('images', nargs='+', metavar='IMAGE', help='image files, or folders of them')
    parser.add_argument('--config', help='config of RUN, if the checkpoint has none')
    parser.add_argument('--top', type=positive, default=3, metavar='N', help='classes per image (default: 3)')
    parser.add_argument('--json', nargs='?', const='-', metavar='FILE', help='as JSON, to a file or to stdout')
    parser.add_argument('--cam', metavar='FOLDER', help='write a picture per image: where its classes are seen')
    parser.add_argument('--overwrite', action='store_true', help='replace files that exist')
    parser.add_argument('--device', choices=('cpu', 'cuda'), help='default: cuda if there is one')
    args = parser.parse_args(argv)

    from ..utils.files import check_out, write_text
    from ..weights.build import choose_device, open_run
    from ..weights.inputs import Reader

    files = find_images(args.images)
    if args.json not in (None, '-'):
        check_out(args.json, args.overwrite, ('.json',))
    maps = map_files(args.cam, files, args.overwrite) if args.cam else {}
    run = open_run(args.source, args.config, choose_device(args.device))
    reader, rows, unreadable = Reader(run.cfg), [], 0
    for file in files:
        try:
            image = reader(file)
        except UserError as error:
            rows.append(dict(file=str(file), error=one_line(error)))
            print(f'error: {printable(one_line(error))}', file=sys.stderr, flush=True)
            unreadable += 1
            continue
        classes = predict(run, image, args.top)
        rows.append(dict(file=str(file), classes=classes))
        if maps:
            write_maps(run, reader, image, file.name, classes, maps[file], args.overwrite)
    if args.json == '-':
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif args.json:
        print(write_text(args.json, json.dumps(rows, indent=2, ensure_ascii=False) + '\n', args.overwrite))
    else:
        show([row for row in rows if 'classes' in row])
    if args.cam:
        print(f'{len(files) - unreadable} pictures in {args.cam}', file=sys.stderr)
    if unreadable:
        print(f'{unreadable} of {len(files)} images could not be read', file=sys.stderr)
        sys.exit(1)  # the others were predicted


def find_images(given: Sequence[str]) -> List[Path]:
    """The files that are given, and all images below the folders that are.

    Raises:
        UserFileError: If a path does not exist, or a folder has no image.
    """
    from ..datasets.images import EXTENSIONS

    found: List[Path] = []
    for each in given:
        path = Path(each).expanduser()
        if path.is_dir():
            images = sorted(file for file in path.rglob('*') if file.suffix.lower() in EXTENSIONS and file.is_file())
            if not images:
                raise UserFileError(f'{path} is a folder without images ({", ".join(EXTENSIONS)}).')
            found += images
        elif path.exists():
            found.append(path)
        else:
            raise UserFileError(f'image {each} does not exist.')
    return list(dict.fromkeys(found))


def predict(run, image, top: int) -> List[Dict[str, Any]]:
    """The likeliest classes of an image, the likeliest first: ``name``, ``index`` and ``score`` of each.

    Args:
        run (mmrm.weights.build.Run): The classifier.
        image (np.ndarray): As :class:`~mmrm.weights.inputs.Reader` reads it, ``(H, W, 3)``.
        top (int): How many classes.
    """
    import torch

    from ..weights.inputs import normalise

    with torch.no_grad():
        scores = run.model(normalise(image, run.model.data_preprocessor), mode='tensor').float().softmax(1)[0].cpu()
    if not scores.isfinite().all():
        raise UserFileError(f'the network of {run.checkpoint} returns NaN: its weights or its normalization are wrong.')
    best = scores.topk(min(top, len(scores)))
    return [
        dict(name=run.classes[index], index=index, score=round(score, 6))
        for score, index in zip(best.values.tolist(), best.indices.tolist())
    ]


def show(rows: Sequence[Dict[str, Any]]) -> None:
    """Print a table: an image per row, then its classes with their scores."""
    if rows:
        width = max(len('image'), *(len(row['file']) for row in rows))
        print(f'{"image":{width}}  classes')
    for row in rows:
        found = '   '.join(f'{each["name"]} {each["score"]:.3f}' for each in row['classes'])
        print(f'{" ".join(printable(row["file"]).split()):{width}}  {found}')


# ------------------------------------------------------------------------------------------------------ activation maps
def map_files(folder: str, files: Sequence[Path], overwrite: bool) -> Dict[Path, Path]:
    """The picture of each image, in a folder; images of one name in several folders get a number."""
    from ..report.cam import grad_cam
    from ..utils.files import check_out

    grad_cam()
    target = Path(folder).expanduser()
    if target.is_file():
        raise UserFileError(f'--cam {folder} is a file: name a folder.')
    found: Dict[Path, Path] = {}
    for file in files:
        out, number = target / f'{file.stem}_cam.png', 2
        while out in found.values():
            out, number = target / f'{file.stem}_{number}_cam.png', number + 1
        found[file] = check_out(out, overwrite)
    return found


def write_maps(run, reader, image, name: str, classes: List[Dict[str, Any]], out: Path, overwrite: bool) -> None:
    """Draw an image and, for each of its classes, where in the image it is seen (GradCAM)."""
    from ..report import cam
    from ..utils import figures
    from ..weights.inputs import normalise

    shown = reader.to_rgb(image)
    maps, _ = cam.activation_maps(
        run.model, normalise(image, run.model.data_preprocessor), [each['index'] for each in classes]
    )
    side, wide = 1.6, shown.shape[1] / shown.shape[0]
    figure = figures.new_figure((len(classes) + 1) * side * wide + 0.2, side + 0.5, images=True)
    axes = figure.subplots(1, len(classes) + 1, squeeze=False)[0]
    axes[0].imshow(shown, interpolation='nearest')
    axes[0].set_title(figures.short_name(name, 24), fontsize=7)
    for place, heat, each in zip(axes[1:], maps, classes):
        heat = heat[: shown.shape[0], : shown.shape[1]]
        place.imshow(cam.overlay(shown, heat), interpolation='nearest')
        nothing = '' if heat.any() else '\nempty map'
        title = f'{figures.short_name(each["name"])} {figures.share_text(each["score"])}{nothing}'
        place.set_title(title, fontsize=7)
    for place in axes:
        figures.hide_axes(place)
    figures.save(figure, out, overwrite)
