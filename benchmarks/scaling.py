"""How RM's cost grows with the batch, the resolution and the classes.

    python benchmarks/scaling.py                    # 2048 channels, some minutes on two cores

The parts that RM adds (see benchmarks/cost.py) are timed beside one another in turn: each figure is the median over the
rounds, with a 95 % interval by bootstrap. At many classes ``fc_roi`` is the cost; ``share_fc`` goes without it. Steps
of two processes: benchmarks/on_gpu.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import numpy as np

from benchmarks.common import make_parser, show
from benchmarks.cost import added_seconds, added_work
from tools.analysis.timing import interleaved


def grid(args) -> list:
    """(batch, resolution, classes), one of them growing at a time."""
    batch, size, classes = args.batches[0], args.sizes[0], args.classes[0]
    found = [(number, size, classes) for number in args.batches]
    found += [(batch, pixels, classes) for pixels in args.sizes[1:]]
    return found + [(batch, size, number) for number in args.classes[1:]]


def interval(seconds: list) -> str:
    """The median and its 95 % interval in milliseconds, by bootstrap."""
    values = 1000 * np.array(seconds)
    picks = values[np.random.RandomState(0).randint(0, len(values), (2000, len(values)))]
    low, high = np.percentile(np.median(picks, axis=1), [2.5, 97.5])
    return f'{np.median(values):.2f} ({low:.2f} to {high:.2f})'


def main() -> None:
    parser = make_parser(__doc__, rounds=15)
    parser.add_argument(
        '--batches',
        type=int,
        nargs='+',
        default=[32, 16, 64, 128],
        help='batch sizes; the first is used for the other tables',
    )
    parser.add_argument('--sizes', type=int, nargs='+', default=[224, 160, 288, 384])
    parser.add_argument('--classes', type=int, nargs='+', default=[1000, 10, 100, 10_000, 21_841])
    parser.add_argument('--channels', type=int, default=2048)
    args = parser.parse_args()
    rows = []
    for number, size, classes in grid(args):
        parts = added_work(number, size, classes, args.channels)
        shared = added_work(number, size, classes, args.channels, share_fc=True)['pooling with RM']
        seconds = interleaved({**parts, 'shared': shared}, args.rounds)
        columns = [seconds[name] for name in ('mixing', 'pooling with RM', 'pooling')]
        columns.append(added_seconds(seconds))
        columns.append(added_seconds({**seconds, 'pooling with RM': seconds['shared']}))
        rows.append([str(number), str(size), f'{classes:,}', *map(interval, columns)])
    headers = ('batch', 'pixels', 'classes', 'mixing', 'pooling with RM', 'pooling', 'RM adds', 'with share_fc')
    show(f'Added work alone, ms (95 % interval), {args.channels} channels, {args.rounds} rounds', headers, rows)


if __name__ == '__main__':
    main()
