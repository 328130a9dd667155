"""How RM's cost grows: with the batch, the resolution, the classes, and the processes.

    python benchmarks/scaling.py                    # the table of sizes, 2048 channels, some minutes on two cores
    python benchmarks/scaling.py --processes 2      # RM's share of a DDP step, gloo, and the collectives of a step

The table of sizes times the parts that RM adds (see benchmarks/cost.py) beside one another in turn: each figure is the
median over the rounds, with a 95 % interval by bootstrap. At many classes ``fc_roi`` is the cost; ``share_fc`` goes
without it. Under DDP a step of the baseline and one of RM run in turn in every process, and every call of a collective
of torch.distributed is counted: RM must add none, only ``fc_roi`` to what the gradients carry.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import numpy as np
import torch
import torch.distributed as dist
from cost import added_seconds, added_work, build, make_batch
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from rich.console import Console
from rich.table import Table

from tools.analysis.timing import interleaved, ratio

COLLECTIVES = ('all_reduce', 'broadcast', 'all_gather', 'reduce', 'reduce_scatter', 'gather', 'scatter', 'barrier')


def grid(args) -> list:
    """(batch, resolution, classes), one of them growing at a time."""
    batch, size, classes = args.batches[0], args.sizes[0], args.classes[0]
    found = [(number, size, classes) for number in args.batches]
    found += [(batch, pixels, classes) for pixels in args.sizes[1:]]
    return found + [(batch, size, number) for number in args.classes[1:]]


def interval(milliseconds: list) -> str:
    """The median and its 95 % interval, by bootstrap."""
    values = np.array(milliseconds)
    picks = values[np.random.RandomState(0).randint(0, len(values), (2000, len(values)))]
    low, high = np.percentile(np.median(picks, axis=1), [2.5, 97.5])
    return f'{np.median(values):.2f} ({low:.2f} to {high:.2f})'


def report_sizes(console: Console, args) -> None:
    table = Table(title=f'Added work alone, ms (95 % interval), {args.channels} channels, {args.rounds} rounds')
    for column in ('batch', 'pixels', 'classes', 'mixing', 'pooling with RM', 'pooling', 'RM adds', 'with share_fc'):
        table.add_column(column)
    for number, size, classes in grid(args):
        parts = added_work(number, size, classes, args.channels)
        shared = added_work(number, size, classes, args.channels, share_fc=True)['pooling with RM']
        seconds = interleaved({**parts, 'shared': shared}, args.rounds)
        columns = [seconds[name] for name in ('mixing', 'pooling with RM', 'pooling')]
        columns.append(added_seconds(seconds))
        columns.append(added_seconds({**seconds, 'pooling with RM': seconds['shared']}))
        rows = [interval([1000 * value for value in column]) for column in columns]
        table.add_row(str(number), str(size), f'{classes:,}', *rows)
    console.print(table)


def count_collectives(step) -> dict:
    """How often a step calls each collective from Python, and how many buckets of gradients DDP sends."""
    calls, kept = dict.fromkeys(COLLECTIVES, 0), {}

    def counted(name):
        def call(*args, **kwargs):
            calls[name] += 1
            return kept[name](*args, **kwargs)

        return call

    for name in COLLECTIVES:
        kept[name] = getattr(dist, name)
        setattr(dist, name, counted(name))
    try:
        step()
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)
    return {name: number for name, number in calls.items() if number}


def ddp_step(method: str, args):
    model = build(method, args.depth, args.classes[0])
    wrapped = MMDistributedDataParallel(model, device_ids=None, broadcast_buffers=False)
    optimizer = OptimWrapper(torch.optim.SGD(wrapped.parameters(), lr=1e-3, momentum=0.9))
    return lambda: wrapped.train_step(make_batch(args.batches[0], args.sizes[0], args.classes[0]), optimizer)


def ddp_worker(rank: int, args, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(args.processes))
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=args.processes)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(rank)
    steps = {name: ddp_step(name, args) for name in ('baseline', 'RM')}
    seconds = interleaved(steps, args.rounds)  # the same seed, the same order in every process
    found = dict(seconds=seconds, collectives={name: count_collectives(step) for name, step in steps.items()})
    if rank == 0:
        torch.save(found, f'{folder}/found.pth')
    dist.destroy_process_group()


def report_processes(console: Console, args) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(ddp_worker, (args, folder), nprocs=args.processes)
        found = torch.load(f'{folder}/found.pth')
    table = Table('method', 'ms a step', 'ratio to baseline (95 % interval)', 'collectives called in a step')
    for name, seconds in found['seconds'].items():
        middle, low, high = ratio(seconds, found['seconds']['baseline'])
        calls = ', '.join(f'{call} {number}' for call, number in found['collectives'][name].items())
        table.add_row(
            name, f'{1000 * np.median(seconds):.0f}', f'{middle:.4f} ({low:.4f} to {high:.4f})', calls or 'none'
        )
    console.print(f'{args.processes} processes, ResNet-{args.depth} at {args.sizes[0]}, batch {args.batches[0]} each')
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--batches', type=int, nargs='+', default=[32, 16, 64, 128], help='the first is for the rest')
    parser.add_argument('--sizes', type=int, nargs='+', default=[224, 160, 288, 384])
    parser.add_argument('--classes', type=int, nargs='+', default=[1000, 10, 100, 10_000, 21_841])
    parser.add_argument('--channels', type=int, default=2048)
    parser.add_argument('--depth', type=int, default=50, choices=(18, 34, 50, 101))
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--processes', type=int, default=0, help='a DDP step in that many processes instead')
    args = parser.parse_args()
    console = Console(width=150)
    console.print(f'torch {torch.__version__}, {torch.get_num_threads()} thread(s), {os.cpu_count()} cores, CPU')
    (report_processes if args.processes else report_sizes)(console, args)


if __name__ == '__main__':
    main()
