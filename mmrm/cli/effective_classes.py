"""How many classes the labels of Mixup, CutMix and RecursiveMix hold above a threshold; nothing is trained."""

from typing import Optional, Sequence

from ..analysis import effective_classes
from ..utils import figures
from ..utils.errors import cli
from .options import Parser, natural, positive


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm effective-classes', description=__doc__, allow_abbrev=False)
    parser.add_argument('out', help='picture to write: .png, .svg or .pdf')
    for name, default, text in (
        ('runs', 3, 'runs'),
        ('iterations', 100, 'iterations of a run'),
        ('num-classes', 1000, 'classes'),
        ('size', 224, 'side of an image in pixels'),
        ('batch', 64, 'images an iteration'),
    ):
        parser.add_argument(f'--{name}', type=positive, default=default, metavar='N', help=f'{text} ({default})')
    parser.add_argument('--seed', type=natural, default=0, help='of the first run (default: 0)')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing picture')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    results = effective_classes.effective_classes(
        runs=args.runs,
        iterations=args.iterations,
        num_classes=args.num_classes,
        size=args.size,
        batch=args.batch,
        seed=args.seed,
    )
    for name, counts in results.items():
        shown = ', '.join(f'{counts.above(limit):.2f} above {limit:g}' for limit in (1e-1, 1e-2, 1e-3, 1e-4))
        print(f'{name}: {shown} (deviation {counts.deviation[-1]:.2f} at 1e-4)')
    foot = [
        f'{args.runs} runs of {args.iterations} iterations, {args.num_classes} classes, {args.size} px, '
        f'batch {args.batch}, seed {args.seed}'
    ]
    print(figures.save(effective_classes.draw(results, foot), args.out, args.overwrite))
