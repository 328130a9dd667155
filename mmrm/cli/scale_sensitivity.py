"""Accuracy of classifiers when the test image is shrunk and pasted on grey or on an image of another class."""

import sys
from typing import Optional, Sequence

from ..analysis import scale_sensitivity
from ..analysis.efficiency import choose_device
from ..report import grids
from ..utils import figures
from ..utils.errors import cli
from ..utils.files import check_out, write_text
from ..weights import classifiers
from .options import Parser, natural, positive


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm scale-sensitivity', description=__doc__, allow_abbrev=False)
    parser.add_argument('out', help='picture to write: .png, .svg or .pdf')
    parser.add_argument(
        '--model',
        nargs=3,
        action='append',
        default=[],
        metavar=('NAME', 'CONFIG', 'CHECKPOINT'),
        help='a checkpoint (or the folder of a run) and what to call it; may be repeated, checkpoints '
        'of one name are seeds',
    )
    parser.add_argument(
        '--scales',
        nargs='+',
        type=float,
        default=scale_sensitivity.SCALES,
        metavar='S',
        help='side of the pasted image over the side of the whole',
    )
    parser.add_argument(
        '--backgrounds',
        nargs='+',
        choices=(*scale_sensitivity.BACKGROUNDS, scale_sensitivity.NOTHING),
        default=scale_sensitivity.BACKGROUNDS,
        help="what is around the image (default: grey, 'other class'); 'nothing' needs a network for any size",
    )
    parser.add_argument('--images', type=positive, default=1000, help='test images (default: 1000, or all there are)')
    parser.add_argument(
        '--interpolation',
        choices=scale_sensitivity.INTERPOLATIONS,
        default='bilinear',
        help='default: bilinear, antialiased; nearest is what RM trains on',
    )
    parser.add_argument('--seed', type=natural, default=0, help='of images, places and backgrounds (default: 0)')
    parser.add_argument('--table', help='also write the numbers, .csv, .md or .tex')
    parser.add_argument('--device', choices=('cpu', 'cuda'), help='default: cuda if there is one')
    parser.add_argument('--overwrite', action='store_true', help='replace existing files')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    form = grids.choose_format(None, args.table)
    if args.table:
        check_out(args.table, args.overwrite)
    models = classifiers.parse_models(args.model, choose_device(args.device))
    images = scale_sensitivity.number_of_images(models[0])
    if images < args.images:
        print(f'note: the test data has {images} images, fewer than {args.images}; all are used', file=sys.stderr)
    images = min(images, args.images)
    points = scale_sensitivity.measure(
        models, args.scales, images, args.interpolation, args.seed, backgrounds=args.backgrounds
    )
    cfg = classifiers.load_config(models[0].cfg.filename, part='test')
    foot = [
        *(trained.origin for trained in models),
        f'data: {classifiers.data_name(cfg, "test")}, {images} '
        f'images, {args.interpolation}, seed {args.seed}. RM trains on pasted images.',
    ]
    lines = grids.render(form, scale_sensitivity.HEADERS, scale_sensitivity.table_lines(points), right=range(3, 7))
    if args.table:
        print(write_text(args.table, '\n'.join(lines) + '\n', args.overwrite))
    else:
        print('\n'.join(lines))
    print(figures.save(scale_sensitivity.draw(points, foot), args.out, args.overwrite))
