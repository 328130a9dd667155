"""What a training step of every regulariser costs beside the baseline's, all in turn.

    python benchmarks/regularisers.py                                  # ResNet-50 at 224, batch 8
    python benchmarks/regularisers.py --depth 18 --size 64 --batch 16  # a smaller one

Each is the shipped ImageNet config, its network as deep and its images as large as asked for. What cannot be built here
(a package or a file that is missing) is left out and named.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip

from benchmarks.common import add_depth, imagenet_config, make_parser, milliseconds, show, times
from mmrm.report.published import FOLDERS
from mmrm.utils.errors import UserError, one_line
from mmrm.utils.paths import shipped
from tools.analysis import classifiers, efficiency
from tools.analysis.timing import interleaved

HEADERS = ('Regulariser', 'Step (ms)', 'Beside the baseline (95 % interval)')


def steppers(args) -> dict:
    """Name of a regulariser -> a function that trains one step."""
    found = {}
    for name, folder in FOLDERS.items():
        if not (shipped() / 'configs' / folder / 'resnet50_8xb64_in1k.py').is_file():
            continue
        try:
            step = efficiency.stepper(imagenet_config(folder, args.depth), args.batch, (args.size, args.size))
            step()
        except (UserError, ImportError, OSError) as error:
            print(f'{name}: left out, {one_line(error)}', file=sys.stderr)
            continue
        found[name] = step
    return found


def main() -> None:
    parser = make_parser(__doc__, rounds=10)
    add_depth(parser)
    parser.add_argument('--size', type=int, default=224, help='side of the images in pixels (default: 224)')
    parser.add_argument('--batch', type=int, default=8, help='images of a step (default: 8)')
    args = parser.parse_args()
    with classifiers.seeded(0):
        seconds = interleaved(steppers(args), args.rounds)
    rows = [[name, milliseconds(values), times(values, seconds['Baseline'])] for name, values in seconds.items()]
    title = f'ResNet-{args.depth}, {args.size} x {args.size}, batch {args.batch}, {args.rounds} rounds'
    show(title, HEADERS, rows)


if __name__ == '__main__':
    main()
