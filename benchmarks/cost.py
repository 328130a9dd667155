"""What RM costs on top of a baseline step.

    python benchmarks/cost.py            # ResNet-50 at 224, a few minutes on two cores
    python benchmarks/cost.py --memory   # only the memory
    python benchmarks/cost.py --added --batch 64     # only the added work

How the cost grows with batch, resolution and classes: benchmarks/scaling.py.

Three tables: the added work timed by itself as a share of a baseline step; whole steps of baseline, Mixup, CutMix and
RM run in turn; and the memory of a step at batch 64 (allocations counted without computing them).
"""

import argparse
import copy
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.optim import OptimWrapper
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample
from rich.console import Console
from rich.table import Table

from mmrm import RecursiveMix
from mmrm.core import Box, Consistency, Mix, pool
from tools.analysis.memory import peak_memory
from tools.analysis.timing import interleaved, ratio

METHODS = dict(
    baseline=None,
    Mixup=dict(type='Mixup', alpha=0.2),
    CutMix=dict(type='CutMix', alpha=1.0),
    RM=dict(type='RecursiveMix', alpha=0.5),
)


def build(method: str, depth: int, classes: int) -> torch.nn.Module:
    """mmpretrain's ResNet with one of the four regularisers."""
    head = dict(num_classes=classes, in_channels=512 if depth < 50 else 2048)
    augments = METHODS[method]
    return MODELS.build(
        dict(
            type='ImageClassifier',
            data_preprocessor=dict(
                type='RMDataPreprocessor' if method == 'RM' else 'ClsDataPreprocessor',
                num_classes=classes,
                mean=[123.675, 116.28, 103.53],
                std=[58.395, 57.12, 57.375],
                to_rgb=True,
                batch_augments=augments and dict(augments=augments),
            ),
            backbone=dict(type='ResNet', depth=depth, out_indices=(3,)),
            neck=None if method == 'RM' else dict(type='GlobalAveragePooling'),
            head=dict(type='RMConsistencyHead', omega=0.5, **head)
            if method == 'RM'
            else dict(type='LinearClsHead', loss=dict(type='CrossEntropyLoss'), **head),
        )
    )


def make_batch(number: int, size: int, classes: int) -> dict:
    images = torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8)
    samples = [DataSample().set_gt_label(int(label)) for label in torch.randint(0, classes, (number,))]
    return dict(inputs=list(images), data_samples=samples)


def stepper(method: str, args, data: dict):
    """A function that trains one step, as mmengine's loop does."""
    model = build(method, args.depth, args.classes)
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4))
    return lambda: model.train_step(copy.deepcopy(data), wrapper)


def added_work(number: int, size: int, classes: int, channels: int, stride: int = 32, share_fc: bool = False):
    """The parts of a step that RM adds or replaces, each a function to time.

    ``mixing``; ``pooling with RM``, the mean of the map and the region, KL, backward to the map, and the update of
    ``fc_roi``; ``pooling``, what a baseline does in its place: the mean of the map, and backward to the map.
    """
    rm, consistency = RecursiveMix(alpha=0.5), Consistency(channels, classes, omega=0.5)
    images, labels = torch.randn(number, 3, size, size), F.one_hot(torch.randint(0, classes, (number,)), classes)
    parameters = [torch.nn.Parameter(torch.zeros(1))] if share_fc else consistency.parameters()
    optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4)
    cells = max(size // stride, 1)
    features = torch.randn(number, channels, cells, cells, requires_grad=True)
    logits, history = torch.randn(number, classes), F.softmax(torch.randn(number, classes), 1)
    gradient = torch.randn(number, channels)  # of the mean, as the classifier gives it
    side = int(size * 0.5)  # lambda 0.25, the mean of U(0, 0.5)
    box = Box(size // 4, size // 4, size // 4 + side, size // 4 + side)

    def mixing():
        rm.mix(images, labels)

    def pooling_with_rm():
        mix = Mix(0.25, number, box, (size, size), history)
        mean, region = pool(features, mix)
        torch.autograd.backward([mean, consistency(mix, region, logits)], [gradient, torch.ones(())])
        features.grad = None
        optimizer.step()
        optimizer.zero_grad()

    def pooling():
        F.adaptive_avg_pool2d(features, 1).flatten(1).backward(gradient)
        features.grad = None

    return {'mixing': mixing, 'pooling with RM': pooling_with_rm, 'pooling': pooling}


def added_seconds(seconds: dict) -> list:
    """What RM adds in all, in each round: its own work without the pooling that a baseline has, too."""
    return [a + b - c for a, b, c in zip(seconds['mixing'], seconds['pooling with RM'], seconds['pooling'])]


def report_added_work(console: Console, args) -> None:
    data = make_batch(args.batch, 224, args.classes)
    parts = added_work(args.batch, 224, args.classes, 512 if args.depth < 50 else 2048)
    seconds = interleaved(dict(step=stepper('baseline', args, data), **parts), args.rounds)
    table = Table(title=f'Added work, ResNet-{args.depth} at 224, batch {args.batch}, {args.classes} classes')
    for column in ('part', 'median ms', 'share of a baseline step (95 % interval)'):
        table.add_column(column)
    rows = [(part, seconds[part]) for part in parts]
    for name, values in (*rows, ('RM in all: the first two without the third', added_seconds(seconds))):
        middle, low, high = ratio(values, seconds['step'])
        table.add_row(name, f'{1000 * np.median(values):.2f}', f'{middle:.3%} ({low:.3%} to {high:.3%})')
    table.add_row('baseline step', f'{1000 * np.median(seconds["step"]):.0f}', '')
    console.print(table)


def report_steps(console: Console, args) -> None:
    data = make_batch(args.batch, 224, args.classes)
    seconds = interleaved({name: stepper(name, args, data) for name in METHODS}, args.rounds)
    table = Table(title=f'Whole steps in turn, ResNet-{args.depth} at 224, batch {args.batch}, {args.rounds} rounds')
    for column in ('method', 'median ms', 'ratio to baseline (95 % interval)'):
        table.add_column(column)
    for name, values in seconds.items():
        middle, low, high = ratio(values, seconds['baseline'])
        table.add_row(name, f'{1000 * np.median(values):.0f}', f'{middle:.4f} ({low:.4f} to {high:.4f})')
    console.print(table)


def report_memory(console: Console, args) -> None:
    np.random.seed(1)
    peaks = {name: peak_memory(build(name, args.depth, args.classes), 64, (224, 224), args.classes) for name in METHODS}
    table = Table(title=f'Memory of a step, ResNet-{args.depth} at 224, batch 64, float32')
    for column in ('method', 'peak MB', 'above baseline'):
        table.add_column(column)
    for name, peak in peaks.items():
        table.add_row(name, f'{peak / 2**20:.1f}', f'{(peak - peaks["baseline"]) / peaks["baseline"]:.2%}')
    console.print(table)
    mib = 4 / 2**20  # float32
    channels = 512 if args.depth < 50 else 2048
    extra = {
        'fc_roi: weights, gradient, momentum': 3 * (channels + 1) * args.classes * mib,
        'y^h, p^h and p~': 3 * 64 * args.classes * mib,
        'x^h (is the mixed input itself)': 0.0,
    }
    table = Table(title='The extra tensors of RM at batch 64')
    for column in ('tensor', 'MB'):
        table.add_column(column)
    for name, size in (*extra.items(), ('sum', sum(extra.values()))):
        table.add_row(name, f'{size:.1f}')
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--batch', type=int, default=16)
    parser.add_argument('--classes', type=int, default=1000)
    parser.add_argument('--depth', type=int, default=50, choices=(18, 34, 50, 101))
    parser.add_argument('--rounds', type=int, default=15)
    only = parser.add_mutually_exclusive_group()
    only.add_argument('--memory', action='store_true', help='only the table of memory')
    only.add_argument('--added', action='store_true', help='only the table of the added work')
    args = parser.parse_args()
    console = Console(width=110)
    console.print(f'torch {torch.__version__}, {torch.get_num_threads()} thread(s), {os.cpu_count()} cores, CPU')
    if not args.memory:
        report_added_work(console, args)
    if not args.memory and not args.added:
        report_steps(console, args)
    if not args.added:
        report_memory(console, args)


if __name__ == '__main__':
    main()
