#!/usr/bin/env python
"""A run's validation curve over those of RecursiveMix's authors, also of a run that is still under way."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.analysis import authors_curves  # noqa: E402
from mmrm.apis.launch import Parser  # noqa: E402
from mmrm.utils.errors import cli  # noqa: E402
from mmrm.utils.paths import find  # noqa: E402
from mmrm.visualization import figures, grids  # noqa: E402


@cli
def main() -> None:
    parser = Parser(prog='authors_curve.py', description=__doc__, allow_abbrev=False)
    parser.add_argument('run', help='folder of the run')
    parser.add_argument('out', nargs='?', help='picture to write: .png, .svg or .pdf (default: none, only the table)')
    parser.add_argument(
        '--config', help='its config, where the folder does not tell, e.g. configs/rm/resnet50_8xb64_in1k.py'
    )
    parser.add_argument('--overwrite', action='store_true', help='replace an existing picture')
    args = parser.parse_args()
    if args.out:
        figures.check_picture(args.out, args.overwrite)
    run, curves = authors_curves.read(find(args.run), args.config)
    print(
        '\n'.join(
            grids.render('terminal', authors_curves.HEADERS, authors_curves.table_lines(run, curves), right=range(4))
        )
    )
    print(authors_curves.beside(run, curves) or 'no validation yet that the authors have, too')
    if args.out:
        print(figures.save(authors_curves.draw(run, curves), args.out, args.overwrite))


if __name__ == '__main__':
    main()
