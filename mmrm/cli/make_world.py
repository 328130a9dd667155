"""Generate the embedded data set: drawn objects in the layouts of ImageNet, COCO and ADE20K."""

import argparse
from typing import Optional, Sequence

from ..demo import make_world
from ..utils.errors import cli
from .options import Parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm make-world', description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('root', help='folder to make; the same world is reused, anything else there is an error')
    parser.add_argument('--seed', type=int, default=0, help='of all random choices')
    parser.add_argument(
        '--classification',
        type=int,
        nargs=2,
        default=(1600, 400),
        metavar=('TRAIN', 'VAL'),
        help='classification images',
    )
    parser.add_argument(
        '--scenes',
        type=int,
        nargs=2,
        default=(240, 80),
        metavar=('TRAIN', 'VAL'),
        help='images of the COCO and the ADE20K layout',
    )
    parser.add_argument('--image-size', type=int, default=64, help='side of the classification images in pixels')
    parser.add_argument(
        '--scene-size',
        type=int,
        nargs=2,
        default=(128, 96),
        metavar=('WIDTH', 'HEIGHT'),
        help='of the scenes in pixels',
    )
    print(make_world(**vars(parser.parse_args(argv))))
