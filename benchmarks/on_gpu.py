"""The first things to run on a GPU: its tests, then what RM costs there, in one table to paste into an issue.

    python benchmarks/on_gpu.py                         # about 10 minutes; with two GPUs also two processes
    python benchmarks/on_gpu.py --device cpu --quick    # whether this script runs

A measurement that fails is a row with its error, and the others continue.
"""

import argparse
import copy
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import numpy as np
import torch
import torch.distributed as dist
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import build_optim_wrapper

from benchmarks.common import imagenet_config, milliseconds, show, times
from mmrm.engine.compiled import compile_losses
from tools.analysis import classifiers, efficiency
from tools.analysis.timing import interleaved

ROOT = Path(__file__).resolve().parents[1]
PRECISIONS = dict(
    float32=dict(type='OptimWrapper'),
    bfloat16=dict(type='BFloat16OptimWrapper'),
    float16=dict(type='AmpOptimWrapper', loss_scale='dynamic'),
)


def stepper(method: str, args, precision: str = 'float32', compiled: Optional[dict] = None, rank: Optional[int] = None):
    """A function that trains one step on noise and returns its logged losses, when the device is done."""
    torch.manual_seed(0)
    device = args.device if rank is None or args.device == 'cpu' else f'{args.device}:{rank}'
    cfg = imagenet_config(method, args.depth, args.classes)
    model = classifiers.build_training_model(cfg).to(device).train()
    if compiled:
        compile_losses(model, compiled)
    if rank is not None:
        devices = None if args.device == 'cpu' else [rank]
        model = MMDistributedDataParallel(model, device_ids=devices, broadcast_buffers=False)
    optimizer = dict(type='SGD', lr=1e-3, momentum=0.9)
    wrapper = build_optim_wrapper(model, dict(PRECISIONS[precision], optimizer=optimizer))
    data = efficiency.random_batch(args.batch, (args.size, args.size), args.classes)

    def step() -> dict:
        losses = model.train_step(copy.deepcopy(data), wrapper)
        return {name: float(value.detach()) for name, value in losses.items()}  # waits for the device

    return step


def compare(args, **options) -> list:
    """Milliseconds of a baseline step and of one with RM, and their ratio."""
    seconds = interleaved({method: stepper(method, args, **options) for method in ('baseline', 'rm')}, args.rounds)
    return [*map(milliseconds, seconds.values()), times(seconds['rm'], seconds['baseline'])]


def memory(args) -> list:
    """MiB at the peak of a step."""
    size = (args.size, args.size)
    configs = [imagenet_config(method, args.depth, args.classes) for method in ('baseline', 'rm')]
    found = [efficiency.step_memory(cfg, args.batch, size, args.device) / 2**20 for cfg in configs]
    return [f'{found[0]:.0f} MiB', f'{found[1]:.0f} MiB', f'+{found[1] - found[0]:.1f} MiB']


def compiled(args) -> list:
    """RM eager and compiled; with CUDA graphs on a GPU. The losses must be finite, with a history in the graph."""
    options = dict(backend='aot_eager') if args.device == 'cpu' else dict(mode='reduce-overhead')
    steps = {name: stepper('rm', args, compiled=each) for name, each in dict(eager=None, compiled=options).items()}
    start = time.perf_counter()
    losses = [steps['compiled']() for _ in range(4)]
    compiling = time.perf_counter() - start
    assert np.isfinite([value for each in losses for value in each.values()]).all(), losses
    seconds = interleaved(steps, args.rounds)
    ratio = f'{times(seconds["compiled"], seconds["eager"])} of eager, {compiling:.0f} s to compile'
    return [*map(milliseconds, seconds.values()), ratio]


def ddp_worker(rank: int, args, folder: str) -> None:
    backend = 'gloo' if args.device == 'cpu' else 'nccl'
    if backend == 'nccl':
        torch.cuda.set_device(rank)
    os.environ.update(RANK=str(rank), WORLD_SIZE='2')
    dist.init_process_group(backend, init_method=f'file://{folder}/store', rank=rank, world_size=2)
    found = compare(args, rank=rank)
    if rank == 0:
        torch.save(found, f'{folder}/found.pth')
    dist.destroy_process_group()


def two_processes(args) -> list:
    if args.device != 'cpu' and torch.cuda.device_count() < 2:
        return ['', '', 'not measured: one GPU']
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(ddp_worker, (args, folder), nprocs=2)
        return torch.load(f'{folder}/found.pth')


def run_tests(args) -> list:
    """The last line of ``pytest -m cuda``."""
    command = [sys.executable, '-m', 'pytest', '-q', '-m', 'cuda', 'tests/models' if args.quick else 'tests']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith('FAILED')]
    return ['', '', '; '.join([done.stdout.strip().splitlines()[-1].strip('= '), *failed])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', default='cuda', choices=('cuda', 'cpu'))
    parser.add_argument('--quick', action='store_true', help='a small network and two rounds')
    args = parser.parse_args()
    small = dict(depth=18, batch=2, size=32, classes=10, rounds=2)
    vars(args).update(small if args.quick else dict(depth=50, batch=64, size=224, classes=1000, rounds=20))
    if args.device == 'cuda' and not torch.cuda.is_available():
        parser.error('torch.cuda.is_available() is false')
    precisions = [name for name in PRECISIONS if args.device == 'cuda' or name == 'float32']
    work = {'tests': run_tests}
    work.update({f'ms per step, {name}': lambda args, name=name: compare(args, precision=name) for name in precisions})
    work.update(
        {'memory': memory, 'ms per step, RM eager and compiled': compiled, 'ms per step, two processes': two_processes}
    )
    rows = []
    for name, measure in work.items():
        print(f'{name} ...', file=sys.stderr)
        try:
            rows.append([name, *measure(args)])
        except Exception as error:
            rows.append([name, '', '', f'failed: {type(error).__name__}: {" ".join(str(error).split())[:200]}'])
    kind = 'CPU' if args.device == 'cpu' else f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}'
    title = f'{kind}, ResNet-{args.depth} at {args.size}, batch {args.batch}'
    show(title, ('', 'baseline', 'RM', 'ratio (95 % interval)'), rows)


if __name__ == '__main__':
    main()
