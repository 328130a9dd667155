#!/usr/bin/env python
"""Why history needs resizing: cutting leaves classes in the label that the image no longer shows."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.analysis import classifiers, cut_or_resize  # noqa: E402
from mmrm.analysis.tables import show_path  # noqa: E402
from mmrm.apis.launch import KeyValues, Parser, natural, positive  # noqa: E402
from mmrm.utils.errors import cli  # noqa: E402
from mmrm.visualization import figures  # noqa: E402


@cli
def main() -> None:
    parser = Parser(prog='cut_or_resize.py', description=__doc__, allow_abbrev=False)
    parser.add_argument('config', help="a classifier's config; its training data is shown")
    parser.add_argument('out', help='picture to write: .png, .svg or .pdf')
    parser.add_argument('--iterations', type=positive, default=5, help='columns (default: 5)')
    parser.add_argument('--seed', type=natural, default=0, help='of images and boxes (default: 0)')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing picture')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=KeyValues,
        default={},
        metavar='KEY=VALUE',
        help='settings that replace those of the config',
    )
    args = parser.parse_args()
    figures.check_picture(args.out, args.overwrite)
    cfg = classifiers.load_config(args.config, args.cfg_options, 'train')
    foot = [
        f'data: {classifiers.data_name(cfg, "train")}, config {show_path(Path(cfg.filename))}, seed {args.seed}; '
        'curves: mean of 100 runs'
    ]
    figure = cut_or_resize.draw(cfg, args.iterations, seed=args.seed, foot=foot)
    print(figures.save(figure, args.out, args.overwrite))


if __name__ == '__main__':
    main()
