"""A gallery of what RecursiveMix feeds the network over successive iterations, next to other regularisers."""

import sys
from pathlib import Path
from typing import Optional, Sequence

from ..analysis import mixed_batches
from ..report.tables import show_path
from ..utils import figures
from ..utils.errors import cli
from ..weights import classifiers
from .options import Parser, natural, positive


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm mixed-batches', description=__doc__, allow_abbrev=False)
    parser.add_argument('config', help="a classifier's config; its training data is shown")
    parser.add_argument('out', help='picture to write: .png, .svg or .pdf')
    parser.add_argument('--iterations', type=positive, default=6, help='columns (default: 6)')
    parser.add_argument(
        '--samples', type=positive, default=1, help='samples of the batch, a row for each method (default: 1)'
    )
    parser.add_argument('--batch', type=positive, default=8, help='images an iteration (default: 8)')
    parser.add_argument('--all', action='store_true', help='also DropBlock, MoEx and CutMix + MoEx, at the input')
    parser.add_argument('--seed', type=natural, default=0, help='of everything that is drawn (default: 0)')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing picture')
    parser.add_cfg_options('settings that replace those of the config')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    cfg = classifiers.load_config(args.config, args.cfg_options, 'train')
    if not mixed_batches.recursive_mix_of(cfg)[1]:
        print(f'note: {args.config} has no RecursiveMix; its defaults are shown', file=sys.stderr)
    gallery = mixed_batches.collect(cfg, args.iterations, max(args.batch, args.samples), args.seed, args.all)
    foot = [f'data: {classifiers.data_name(cfg, "train")}, config {show_path(Path(cfg.filename))}, seed {args.seed}']
    print(figures.save(mixed_batches.draw_gallery(gallery, args.samples, foot), args.out, args.overwrite))
