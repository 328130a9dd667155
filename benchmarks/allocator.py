"""A training step on the CPU with glibc's usual memory, and with memory that is kept, in huge pages.

    taskset -c 1 python benchmarks/allocator.py            # the CIFAR-10 experiment's network, one thread, two minutes

Large tensors come and go with every step. glibc gives their pages back to the system, which has to empty new ones; the
runs of the experiments and of the demo keep them (mmrm.cli.jobs.KEEP_MEMORY). Two processes take the same
steps in turn, a few at a time; their losses must be equal to the last bit.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import make_parser, times
from mmrm.cli.jobs import KEEP_MEMORY
from projects.cifar10.run import CONFIG
from tools.analysis.timing import interleaved
from tools.runs.processes import environment


def work(config: str, batch: int, side: int, steps: int) -> None:
    """Take some steps for every line that comes, then print the losses."""
    import torch

    from tools.analysis.classifiers import build_training_model, load_config

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build_training_model(load_config(config)).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randint(0, 256, (batch, 3, side, side)).float(), torch.arange(batch) % 10
    for _ in sys.stdin:
        losses = []
        for _ in range(steps):
            features = model.backbone(((images - 127) / 60).contiguous(memory_format=torch.channels_last))[-1]
            loss = torch.nn.functional.cross_entropy(model.head.fc(features.mean((2, 3))), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(json.dumps(losses), flush=True)


class Worker:
    """A process that steps when it is told to."""

    def __init__(self, variables: dict, arguments: list):
        plain = {key: value for key, value in environment().items() if key not in KEEP_MEMORY}
        self.process = subprocess.Popen(
            [sys.executable, __file__, '--worker', *arguments],
            env=dict(plain, OMP_NUM_THREADS='1', **variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.losses: list = []

    def __call__(self) -> None:
        self.process.stdin.write('go\n')
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f'the process of {self.process.args} ended')
        self.losses += json.loads(line)


def main() -> None:
    parser = make_parser(__doc__, rounds=12)
    parser.add_argument('--config', default=f'configs/baseline/{CONFIG}.py', help='of a classifier with a linear head')
    parser.add_argument('--batch', type=int, default=64)
    parser.add_argument('--side', type=int, default=32, help='of the images, in pixels')
    parser.add_argument('--steps', type=int, default=10, help='in turn')
    parser.add_argument('--worker', action='store_true', help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.config, args.batch, args.side, args.steps)
        return
    arguments = [f'--{name}={getattr(args, name)}' for name in ('config', 'batch', 'side', 'steps')]
    workers = {'usual': Worker({}, arguments), 'kept': Worker(KEEP_MEMORY, arguments)}
    try:
        seconds = interleaved(workers, args.rounds)
    finally:
        for worker in workers.values():
            worker.process.kill()
    if workers['usual'].losses != workers['kept'].losses:
        sys.exit('the losses differ')
    each = 1000 * min(seconds['usual']) / args.steps
    print(f'{args.config}, batch {args.batch}, {args.side} pixels: {each:.0f} ms a step with the usual memory')
    print(f'kept memory: {times(seconds["kept"], seconds["usual"])} of its time, {args.rounds} rounds; equal losses')
    print(f'load of the machine: {os.getloadavg()[0]:.1f}')


if __name__ == '__main__':
    main()
