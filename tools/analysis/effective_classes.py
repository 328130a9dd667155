#!/usr/bin/env python
"""How many classes a fused label really holds: those whose share is above a threshold.

Only labels matter, so nothing is trained: the augments run on blank images of the training size.
"""

import sys
from pathlib import Path
from typing import Callable, Dict, NamedTuple, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import numpy as np
import torch
import torch.nn.functional as F
from mmpretrain.registry import BATCH_AUGMENTS
from torch import nn

from mmrm.cli.options import natural, positive
from mmrm.models.regularisers import BoundAugment
from mmrm.utils import figures
from mmrm.utils.errors import UserValueError, cli
from tools.analysis import plots
from tools.analysis.classifiers import seeded
from tools.analysis.options import picture_parser

# What a run of ResNet-50 on ImageNet uses. Manifold Mixup has Mixup's labels, Feature CutMix about those of CutMix.
METHODS = {
    'baseline': None,
    'Mixup': dict(type='Mixup', alpha=1.0),
    'CutMix': dict(type='CutMix', alpha=1.0),
    'MoEx': dict(type='MoEx', lam=0.9, layer='0'),
    'CutMix + MoEx': dict(type='CutMixMoEx', lam=0.9, moex_prob=0.25, layer='0'),
    'RM': dict(type='RecursiveMix', alpha=0.5),
}
THRESHOLDS = tuple(float(f'{10 ** -(power / 4):.3g}') for power in range(4, 17))  # 1e-1 ... 1e-4, four a decade
LABEL_SMOOTHING = 1e-4  # the share that label smoothing 0.1 gives to each of 1000 classes


class Counts(NamedTuple):
    """Effective classes of one method: ``runs[i, j]`` is the mean of run ``i`` above ``thresholds[j]``."""

    thresholds: np.ndarray
    runs: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return self.runs.mean(0)

    @property
    def deviation(self) -> np.ndarray:
        return self.runs.std(0, ddof=1) if len(self.runs) > 1 else np.zeros(self.runs.shape[1])

    def above(self, threshold: float) -> float:
        """The mean over runs above one of the thresholds."""
        return float(self.mean[np.flatnonzero(np.isclose(self.thresholds, threshold))[0]])


def _identity(images, scores):
    return images, scores


def one_run(
    augment: Callable, thresholds: Sequence[float], iterations: int, num_classes: int, size: int, batch: int
) -> np.ndarray:
    """Mean number of classes above each threshold, over the samples of ``iterations`` batches of random labels."""
    found = torch.zeros(len(thresholds), dtype=torch.float64)
    limits = torch.tensor(thresholds)
    for _ in range(iterations):
        images = torch.zeros(batch, 1, size, size, dtype=torch.uint8)
        _, scores = augment(images, F.one_hot(torch.randint(num_classes, (batch,)), num_classes).float())
        found += (scores[scores > 0][:, None] > limits).sum(0) / batch
    return (found / iterations).numpy()


def effective_classes(
    methods: Dict[str, dict] = METHODS,
    thresholds: Sequence[float] = THRESHOLDS,
    runs: int = 3,
    iterations: int = 100,
    num_classes: int = 1000,
    size: int = 224,
    batch: int = 64,
    seed: int = 0,
) -> Dict[str, Counts]:
    """Count the classes above each threshold in the labels of several augments.

    Args:
        methods (dict): Name -> config of a batch augment, or None for plain labels.
        thresholds (Sequence[float]): In (0, 1).
        runs (int): Independent runs, each from an empty history. Defaults to 3.
        iterations (int): Of a run, all of which count. Defaults to 100.
        num_classes (int): Labels are drawn evenly from so many. Defaults to 1000.
        size (int): Side of the images in pixels: it rounds the boxes. Defaults to 224.
        batch (int): Samples an iteration; they share one box. Defaults to 64.
        seed (int): Of the first run; the next ones count up. Defaults to 0.
    """
    for name, value in dict(runs=runs, iterations=iterations, num_classes=num_classes, size=size, batch=batch).items():
        if value < 1:
            raise UserValueError(f'{name}={value} must be 1 or more.')
    if not all(0 < threshold < 1 for threshold in thresholds):
        raise UserValueError(f'thresholds={tuple(thresholds)} must lie in (0, 1).')
    results = {}
    for name, config in methods.items():
        means = []
        for run in range(runs):
            augment = _identity if config is None else BATCH_AUGMENTS.build(dict(config))
            if isinstance(augment, BoundAugment):
                augment.bind(nn.Sequential(nn.Identity()))  # no features pass, only labels are mixed
            with seeded(seed + run):
                means.append(one_run(augment, thresholds, iterations, num_classes, size, batch))
        results[name] = Counts(np.asarray(thresholds), np.stack(means))
    return results


def draw(results: Dict[str, Counts], foot: Sequence[str] = ()):
    """Effective classes against the threshold, mean over runs with the deviation as a band."""
    figure = figures.new_figure(5.6, 3.8)
    axes = figure.subplots()
    for index, (name, counts) in enumerate(results.items()):
        plots.curve(axes, counts.thresholds, counts.runs, name, index, label=f'{name}: {counts.mean[-1]:.2f} at 1e-4')
    axes.set_xscale('log')
    axes.invert_xaxis()
    axes.set_ylim(0, None)
    axes.axvline(LABEL_SMOOTHING, color='#999999', linewidth=0.8, linestyle=':', label='label smoothing 0.1')
    axes.legend(frameon=False, loc='upper left', fontsize=8)
    plots.tidy(axes, "threshold on a class's share of the label", 'effective classes')
    plots.provenance(figure, foot)
    return figure


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = picture_parser(__doc__)
    for name, default, text in (
        ('runs', 3, 'runs'),
        ('iterations', 100, 'iterations of a run'),
        ('num-classes', 1000, 'classes'),
        ('size', 224, 'side of an image in pixels'),
        ('batch', 64, 'images an iteration'),
    ):
        parser.add_argument(f'--{name}', type=positive, default=default, metavar='N', help=f'{text} ({default})')
    parser.add_argument('--seed', type=natural, default=0, help='random seed of the first run (default: 0)')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    results = effective_classes(
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
    print(figures.save(draw(results, foot), args.out, args.overwrite))


if __name__ == '__main__':
    main()
