"""Say what is in images: the classes that a trained classifier finds likeliest, and where it sees them."""

import json
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from ..utils.errors import UserError, UserFileError, cli, one_line
from .options import Parser, positive

UNREADABLE = 1  # exit code where an image could not be read; the others were predicted
# What OpenCV and Pillow read.
ENDINGS = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm', '.gif')


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

    from ..utils.files import check_out, write_text
    from ..weights.build import choose_device, open_run

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
    unreadable = sum(bool(each.error) for each in predictions)
    if args.cam:
        print(f'{len(files) - unreadable} pictures in {args.cam}', file=sys.stderr)
    if unreadable:
        print(f'{unreadable} of {len(files)} images could not be read', file=sys.stderr)
        sys.exit(UNREADABLE)


class Prediction(NamedTuple):
    """The likeliest classes of one file.

    Args:
        file (Path): The image.
        classes (list[tuple]): Name, index and score of the likeliest classes, the likeliest first; empty for a file
            that could not be read.
        error (str): Why it could not be read; '' if it could.
    """

    file: Path
    classes: List[Tuple[str, int, float]]
    error: str = ''

    def plain(self) -> Dict[str, Any]:
        """As JSON has it."""
        if self.error:
            return dict(file=str(self.file), error=self.error)
        classes = [dict(name=name, index=index, score=round(score, 6)) for name, index, score in self.classes]
        return dict(file=str(self.file), classes=classes)


def find_images(given: Sequence[Union[str, Path]]) -> List[Path]:
    """The files that are given, and all images below the folders that are.

    Raises:
        UserFileError: If a path does not exist, or a folder has no image.
    """
    found: List[Path] = []
    for each in given:
        path = Path(each).expanduser()
        if path.is_dir():
            images = sorted(file for file in path.rglob('*') if file.suffix.lower() in ENDINGS and file.is_file())
            if not images:
                raise UserFileError(f'{path} is a folder without images ({", ".join(ENDINGS)}).')
            found += images
        elif path.exists():
            found.append(path)
        else:
            raise UserFileError(f'image {each} does not exist.')
    return list(dict.fromkeys(found))


def predict(run, files: Sequence[Path], top: int = 5) -> Iterator[Prediction]:
    """The classes of files, one by one; an unreadable file does not end it.

    Args:
        run (mmrm.weights.build.Run): The classifier.
        files: Images.
        top: How many classes.
    """
    import torch

    from ..weights.inputs import Reader, normalise

    reader = Reader(run.cfg)
    for file in files:
        try:
            image = reader(file)
        except UserError as error:
            yield Prediction(file, [], one_line(error))
            continue
        with torch.no_grad():
            scores = run.model(normalise(image, run.model), mode='tensor').float().softmax(1)[0].cpu()
        best = scores.topk(min(top, len(scores)))
        classes = [
            (run.classes[index], index, score) for score, index in zip(best.values.tolist(), best.indices.tolist())
        ]
        yield Prediction(file, classes)


def show(predictions: Sequence[Prediction]) -> None:
    """Print a table: an image per row, then its classes with their scores."""
    found = [each for each in predictions if not each.error]
    width = max([len('image'), *(len(str(each.file)) for each in found)])
    if found:
        print(f'{"image":{width}}  classes')
    for each in found:
        print(f'{each.file!s:{width}}  ' + '   '.join(f'{name} {score:.3f}' for name, _, score in each.classes))


# ------------------------------------------------------------------------------------------------------ activation maps
def map_files(folder: Optional[str], files: Sequence[Path], overwrite: bool) -> List[Path]:
    """The picture of each image, in a folder; images of one name in several folders get a number."""
    if folder is None:
        return []
    from ..report.cam import grad_cam
    from ..utils.files import check_out

    grad_cam()
    target = Path(folder).expanduser()
    if target.is_file():
        raise UserFileError(f'--cam {folder} is a file: name a folder.')
    found: List[Path] = []
    for file in files:
        out, number = target / f'{file.stem}_cam.png', 2
        while out in found:
            out, number = target / f'{file.stem}_{number}_cam.png', number + 1
        found.append(check_out(out, overwrite))
    return found


def write_maps(run, prediction: Prediction, out: Path, overwrite: bool = False) -> Path:
    """Draw the image and, for each class of a prediction, where in the image it is seen (GradCAM)."""
    from ..report import cam
    from ..utils import figures
    from ..weights.inputs import Reader, normalise

    reader = Reader(run.cfg)
    image = reader(prediction.file)
    shown = reader.to_rgb(image)
    indices = [index for _, index, _ in prediction.classes]
    maps, _ = cam.activation_maps(run.model, normalise(image, run.model), indices)
    side = 1.6
    wide = shown.shape[1] / shown.shape[0]
    figure = figures.new_figure((len(indices) + 1) * side * wide + 0.2, side + 0.5, images=True)
    axes = figure.subplots(1, len(indices) + 1, squeeze=False)[0]
    axes[0].imshow(shown, interpolation='nearest')
    axes[0].set_title(figures.short_name(prediction.file.name, 24), fontsize=7)
    for place, heat, (name, _, score) in zip(axes[1:], maps, prediction.classes):
        heat = heat[: shown.shape[0], : shown.shape[1]]
        place.imshow(cam.overlay(shown, heat), interpolation='nearest')
        nothing = '' if heat.any() else '\nnothing in the image speaks for it'
        place.set_title(f'{figures.short_name(name)} {figures.share_text(score)}{nothing}', fontsize=7)
    for place in axes:
        figures.hide_axes(place)
    return figures.save(figure, out, overwrite)
