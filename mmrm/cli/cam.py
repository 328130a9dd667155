"""Class activation maps of several checkpoints side by side: of image files, or of RM-mixed test images."""

from pathlib import Path
from typing import Optional, Sequence

from ..report import cam
from ..report.tables import show_path
from ..utils import figures
from ..utils.errors import cli
from ..weights import classifiers
from .options import Parser, natural, positive


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm cam', description=__doc__, allow_abbrev=False)
    parser.add_argument('out', help='picture to write: .png, .svg or .pdf')
    parser.add_argument(
        '--model',
        nargs=3,
        action='append',
        default=[],
        metavar=('NAME', 'CONFIG', 'CHECKPOINT'),
        help='a checkpoint (or the folder of a run) and what to call it; may be repeated',
    )
    parser.add_argument(
        '--images',
        nargs='+',
        metavar='FILE[=CLASS,CLASS]',
        help='images and the classes to map; without classes, the three that the first model finds likeliest',
    )
    parser.add_argument(
        '--mixed',
        type=positive,
        metavar='N',
        help="so many RM-mixed images of the first config's test data, with the map of every class in them",
    )
    parser.add_argument('--iterations', type=positive, default=4, help='mixing steps of --mixed (default: 4)')
    parser.add_argument('--seed', type=natural, default=0, help='of --mixed (default: 0)')
    parser.add_argument('--method', choices=cam.METHODS, default='GradCAM', help='default: GradCAM')
    parser.add_argument('--device', choices=('cpu', 'cuda'), help='default: cuda if there is one')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing picture')
    args = parser.parse_args(argv)
    if bool(args.images) == bool(args.mixed):
        parser.error('give either --images or --mixed')
    figures.check_picture(args.out, args.overwrite)
    cam.grad_cam()
    models = classifiers.parse_models(args.model, classifiers.choose_device(args.device))
    if args.images:
        subjects = cam.natural_subjects(args.images, models[0])
        data = ', '.join(dict.fromkeys(show_path(Path(each.partition('=')[0])) for each in args.images))
    else:
        subjects = cam.mixed_subjects(models[0], args.mixed, args.iterations, args.seed)
        cfg = classifiers.load_config(models[0].cfg.filename, part='test')
        data = f'{classifiers.data_name(cfg, "test")}, RM-mixed {args.iterations} times, seed {args.seed}'
    print(figures.save(cam.draw(models, subjects, args.method, data), args.out, args.overwrite))
