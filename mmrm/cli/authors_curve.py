"""A run's validation curve over those of RecursiveMix's authors, also of a run that is still under way."""

from typing import Optional, Sequence

from ..report import authors_curves, grids
from ..utils import figures
from ..utils.errors import cli
from ..utils.paths import find
from .options import Parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm authors-curve', description=__doc__, allow_abbrev=False)
    parser.add_argument('run', help='folder of the run')
    parser.add_argument('out', nargs='?', help='picture to write: .png, .svg or .pdf (default: none, only the table)')
    parser.add_argument(
        '--config', help='its config, where the folder does not tell, e.g. configs/rm/resnet50_8xb64_in1k.py'
    )
    parser.add_argument(
        '--loss',
        action='store_true',
        help='compare the training loss of the first epochs instead; the run must log rm_entropy',
    )
    parser.add_argument('--overwrite', action='store_true', help='replace an existing picture')
    args = parser.parse_args(argv)
    if args.out:
        figures.check_picture(args.out, args.overwrite)
    run, curves = authors_curves.read(find(args.run), args.config)
    if args.loss:
        lines = authors_curves.loss_lines(run, curves)
        print('\n'.join(grids.render('terminal', authors_curves.LOSS_HEADERS, lines, right=range(7))))
        print(authors_curves.loss_verdict(run, curves) or "no iteration yet at which the authors' loss is known")
    else:
        lines = authors_curves.table_lines(run, curves)
        print('\n'.join(grids.render('terminal', authors_curves.HEADERS, lines, right=range(4))))
        print(authors_curves.beside(run, curves) or 'no validation yet that the authors have, too')
    if args.out:
        draw = authors_curves.draw_loss if args.loss else authors_curves.draw
        print(figures.save(draw(run, curves), args.out, args.overwrite))
