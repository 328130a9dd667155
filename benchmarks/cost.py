"""What RM adds to a baseline step: its own work, timed by itself, as a share of the step.

    python benchmarks/cost.py               # ResNet-50 at 224, a few minutes on two cores
    python benchmarks/cost.py --batch 64

How that grows with batch, resolution and classes: benchmarks/scaling.py. Whole steps of all regularisers in turn:
benchmarks/regularisers.py. Memory: tools/analysis/efficiency.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.common import add_depth, imagenet_config, make_parser, milliseconds, show
from mmrm import RecursiveMix
from mmrm.core import Box, Consistency, Mix, pool
from tools.analysis import efficiency
from tools.analysis.timing import interleaved, ratio


def added_work(number: int, size: int, classes: int, channels: int, stride: int = 32, share_fc: bool = False):
    """The parts of a step that RM adds or replaces, each a function to time.

    ``mixing``; ``pooling with RM``, the mean of the map and the region, KL, backward to the map, and the update of
    ``fc_roi``; both also with a box per sample; ``pooling``, what a baseline does in its place: the mean of the map,
    and backward to the map.
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

    each = RecursiveMix(alpha=0.5, per_sample=True)

    boxes, lams = np.tile(box, (number, 1)), torch.full((number,), 0.25)

    def pooling_with_rm(**more):
        mix = Mix(0.25, number, box, (size, size), history, **more)
        mean, region = pool(features, mix)
        torch.autograd.backward([mean, consistency(mix, region, logits)], [gradient, torch.ones(())])
        features.grad = None
        optimizer.step()
        optimizer.zero_grad()

    def pooling():
        F.adaptive_avg_pool2d(features, 1).flatten(1).backward(gradient)
        features.grad = None

    return {
        'mixing': lambda: rm.mix(images, labels),
        'mixing, a box per sample': lambda: each.mix(images, labels),
        'pooling with RM': pooling_with_rm,
        'pooling with RM, a box per sample': lambda: pooling_with_rm(boxes=boxes, lams=lams),
        'pooling': pooling,
    }


def added_seconds(seconds: dict, suffix: str = '') -> list:
    """What RM adds in all, in each round: its own work without the pooling that a baseline has, too."""
    parts = (seconds[f'mixing{suffix}'], seconds[f'pooling with RM{suffix}'], seconds['pooling'])
    return [mixing + pooling - baseline for mixing, pooling, baseline in zip(*parts)]


def main() -> None:
    parser = make_parser(__doc__, rounds=15)
    parser.add_argument('--batch', type=int, default=16)
    parser.add_argument('--size', type=int, default=224)
    parser.add_argument('--classes', type=int, default=1000)
    add_depth(parser)
    args = parser.parse_args()
    cfg = imagenet_config('baseline', args.depth, args.classes)
    parts = added_work(args.batch, args.size, args.classes, cfg.model.head.in_channels)
    step = efficiency.stepper(cfg, args.batch, (args.size, args.size))
    seconds = interleaved(dict(step=step, **parts), args.rounds)
    rows = []
    timed = {part: seconds[part] for part in parts}
    timed['RM in all, without the last'] = added_seconds(seconds)
    timed['the same, a box per sample'] = added_seconds(seconds, ', a box per sample')
    for name, values in timed.items():
        middle, low, high = ratio(values, seconds['step'])
        rows.append([name, milliseconds(values, 2), f'{middle:.3%} ({low:.3%} to {high:.3%})'])
    rows.append(['baseline step', milliseconds(seconds['step']), ''])
    title = f'Added work, ResNet-{args.depth} at {args.size}, batch {args.batch}, {args.classes} classes'
    show(title, ('part', 'median ms', 'share of a baseline step (95 % interval)'), rows)


if __name__ == '__main__':
    main()
