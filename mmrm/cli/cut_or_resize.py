"""Why history needs resizing: cutting leaves classes in the label that the image no longer shows."""

from pathlib import Path
from typing import Optional, Sequence

from ..analysis import cut_or_resize
from ..report.tables import show_path
from ..utils import figures
from ..utils.errors import cli
from ..weights import classifiers
from .options import Parser, natural, positive


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm cut-or-resize', description=__doc__, allow_abbrev=False)
    parser.add_argument('config', help="a classifier's config; its training data is shown")
    parser.add_argument('out', help='picture to write: .png, .svg or .pdf')
    parser.add_argument('--iterations', type=positive, default=5, help='columns (default: 5)')
    parser.add_argument('--seed', type=natural, default=0, help='of images and boxes (default: 0)')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing picture')
    parser.add_cfg_options('settings that replace those of the config')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    cfg = classifiers.load_config(args.config, args.cfg_options, 'train')
    foot = [
        f'data: {classifiers.data_name(cfg, "train")}, config {show_path(Path(cfg.filename))}, seed {args.seed}; '
        'curves: mean of 100 runs'
    ]
    figure = cut_or_resize.draw(cfg, args.iterations, seed=args.seed, foot=foot)
    print(figures.save(figure, args.out, args.overwrite))
