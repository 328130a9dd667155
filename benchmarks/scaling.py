"""How RM's cost grows: with the batch, the resolution, the classes, and the processes.

    python benchmarks/scaling.py                    # the table of sizes, 2048 channels, some minutes on two cores
    python benchmarks/scaling.py --processes 2      # RM's share of a DDP step, gloo

The table of sizes times the parts that RM adds (see benchmarks/cost.py) beside one another in turn: each figure is the
median over the rounds, with a 95 % interval by bootstrap. At many classes ``fc_roi`` is the cost; ``share_fc`` goes
without it. Under DDP a step of the baseline and one of RM run in turn in every process.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import numpy as np
import torch
import torch.distributed as dist
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper

from benchmarks.common import add_depth, imagenet_config, make_parser, milliseconds, show, times
from benchmarks.cost import added_seconds, added_work
from tools.analysis import classifiers, efficiency
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


def report_sizes(args) -> None:
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


def ddp_step(folder: str, args):
    cfg = imagenet_config(folder, args.depth, args.classes[0])
    wrapped = MMDistributedDataParallel(classifiers.build_training_model(cfg), device_ids=None, broadcast_buffers=False)
    optimizer = OptimWrapper(torch.optim.SGD(wrapped.parameters(), lr=1e-3, momentum=0.9))
    size = (args.sizes[0], args.sizes[0])
    return lambda: wrapped.train_step(efficiency.random_batch(args.batches[0], size, args.classes[0]), optimizer)


def ddp_worker(rank: int, args, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(args.processes))
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=args.processes)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(rank)
    steps = {name: ddp_step(name, args) for name in ('baseline', 'rm')}
    seconds = interleaved(steps, args.rounds)  # the same seed, the same order in every process
    if rank == 0:
        torch.save(seconds, f'{folder}/seconds.pth')
    dist.destroy_process_group()


def report_processes(args) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(ddp_worker, (args, folder), nprocs=args.processes)
        found = torch.load(f'{folder}/seconds.pth')
    rows = [[name, milliseconds(seconds), times(seconds, found['baseline'])] for name, seconds in found.items()]
    title = f'{args.processes} processes, ResNet-{args.depth} at {args.sizes[0]}, batch {args.batches[0]} each'
    show(title, ('method', 'ms a step', 'ratio to baseline (95 % interval)'), rows)


def main() -> None:
    parser = make_parser(__doc__, rounds=15)
    parser.add_argument('--batches', type=int, nargs='+', default=[32, 16, 64, 128], help='the first is for the rest')
    parser.add_argument('--sizes', type=int, nargs='+', default=[224, 160, 288, 384])
    parser.add_argument('--classes', type=int, nargs='+', default=[1000, 10, 100, 10_000, 21_841])
    parser.add_argument('--channels', type=int, default=2048)
    add_depth(parser)
    parser.add_argument('--processes', type=int, default=0, help='a DDP step in that many processes instead')
    args = parser.parse_args()
    (report_processes if args.processes else report_sizes)(args)


if __name__ == '__main__':
    main()
