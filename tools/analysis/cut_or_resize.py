#!/usr/bin/env python
"""Why history needs resizing: with cutting, the label soon names what the image no longer shows.

Both ways run on the same boxes. A map beside every image keeps, pixel by pixel, which input it came from, so that the
share that a class has in the label can be compared with the share that it has in the image.
"""

import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import numpy as np
import torch
from mmengine.config import Config

from mmrm.cli.options import natural, positive
from mmrm.core import Box, mix_labels, resize_fill, sample_box, sample_lambda
from mmrm.utils import figures
from mmrm.utils.errors import UserValueError, cli
from mmrm.utils.figures import Panel, draw_panel
from mmrm.utils.paths import show_path
from tools.analysis import classifiers, plots
from tools.analysis.options import picture_parser

WAYS = ('cut', 'resize')


class Step(NamedTuple):
    """One iteration of one way, for one sample.

    Args:
        image (Tensor): Shape ``(C, H, W)``.
        origin (Tensor): Which iteration each pixel came from, shape ``(H, W)``.
        label (Tensor): Share of every iteration's input in the label, shape ``(iterations, )``.
        box (Box): What was filled.
    """

    image: torch.Tensor
    origin: torch.Tensor
    label: torch.Tensor
    box: Box

    @property
    def visible(self) -> torch.Tensor:
        """Share of every iteration's input in the image, shape ``(iterations, )``."""
        return torch.bincount(self.origin.flatten().long(), minlength=len(self.label)) / self.origin.numel()

    @property
    def mismatch(self) -> float:
        """The part of the label that the image does not show, in [0, 1]."""
        return float((self.label - self.visible).clamp(min=0).sum())


def recurse(images: torch.Tensor, way: str, alpha: float = 0.5, seed: int = 0) -> List[Step]:
    """Mix every image with the mixed one before it, as RecursiveMix does.

    Args:
        images (Tensor): One for each iteration, float, shape ``(T, C, H, W)``.
        way (str): 'resize': the whole historical image fills the box. 'cut': the part of it that lies there, as in
            CutMix.
        alpha (float): Of RecursiveMix. Defaults to 0.5.
        seed (int): Of the boxes, which are the same for both ways. Defaults to 0.
    """
    if way not in WAYS:
        raise UserValueError(f'way={way!r} must be one of {", ".join(WAYS)}.')
    rng, (number, _, height, width) = np.random.RandomState(seed), images.shape
    steps: List[Step] = []
    for index in range(number):
        # The origin goes along as a channel: what moves the pixels moves it.
        origin = torch.full((1, 1, height, width), float(index))
        current, label = torch.cat([images[index : index + 1], origin], 1), torch.eye(number)[index : index + 1]
        box = Box(0, 0, 0, 0)
        if steps:
            box = sample_box(sample_lambda(alpha, rng), height, width, rng)
        if box.area:
            past = torch.cat([steps[-1].image, steps[-1].origin[None]])[None]
            if way == 'resize':
                resize_fill(current, past, box)
            else:
                place = (..., slice(box.y1, box.y2), slice(box.x1, box.x2))
                current[place] = past[place]
            label = mix_labels(label, steps[-1].label[None], box.area / (height * width))
        steps.append(Step(current[0, :-1], current[0, -1], label[0], box))
    return steps


def mismatches(
    iterations: int = 20, runs: int = 100, size: int = 224, alpha: float = 0.5, seed: int = 0
) -> Dict[str, np.ndarray]:
    """The mean part of the label that the image does not show, after each of ``iterations``, by way."""
    blank = torch.zeros(iterations, 1, size, size)
    return {
        way: np.mean([[step.mismatch for step in recurse(blank, way, alpha, seed + run)] for run in range(runs)], 0)
        for way in WAYS
    }


def draw(cfg: Config, iterations: int = 5, seed: int = 0, curves: Optional[dict] = None, foot: Sequence[str] = ()):
    """Both ways on the training images of a config, label and image compared, and the mean mismatch over time.

    Args:
        cfg (Config): Of a classifier, with ``part='train'`` of :func:`tools.analysis.classifiers.load_config`.
        iterations (int): Columns. Defaults to 5.
        seed (int): Of images and boxes. Defaults to 0.
        curves (dict, optional): From :func:`mismatches`. Defaults to None, computed at the size of the images.
        foot (Sequence[str]): Lines below the figure.
    """
    preprocessor, dataset = classifiers.build_preprocessor(cfg), classifiers.build_dataset(cfg, 'train')
    order = figures.channel_order(cfg, preprocessor)
    with classifiers.seeded(seed):
        data = preprocessor(next(classifiers.read_batches(dataset, iterations, seed)), training=True)
    names = figures.class_names(dataset)
    labels = [int(sample.gt_label) for sample in data['data_samples']]
    # With its number, as the same class twice would hide what happens to each image.
    called = [
        f'{place}: {figures.short_name(names[label], 10) if names else f"class {label}"}'
        for place, label in enumerate(labels, 1)
    ]
    rows = []
    for way in WAYS:
        steps = recurse(data['inputs'], way, seed=seed)
        images = figures.to_images(torch.stack([step.image for step in steps]), preprocessor, order)
        boxes = [step.box if step.box.area else None for step in steps]
        rows.append((way, [Panel(*each) for each in zip(images, (_lines(step, called) for step in steps), boxes)]))
    return _figure(rows, curves or mismatches(size=data['inputs'].shape[-1]), iterations, foot)


def _lines(step: Step, names: Sequence[str]) -> List[str]:
    """A line for each input that the label names: its share there, and in the image."""
    shown = [index for index in range(len(names)) if step.label[index] >= 0.005][::-1][:4]
    return ['label → image'] + [
        f'{names[index]} {step.label[index]:.2f} → {step.visible[index]:.2f}' for index in shown
    ]


def _figure(rows, curves: Dict[str, np.ndarray], columns: int, foot: Sequence[str]):
    lines = max(len(panel.lines) for _, shown in rows for panel in shown)
    figure = figures.new_figure(1.5 * columns + 3.2, len(rows) * (1.45 + 0.135 * lines) + 0.35 + 0.12 * len(foot))
    grid = figure.add_gridspec(len(rows), columns + 2)
    for row, (name, shown) in enumerate(rows):
        for column, panel in enumerate(shown):
            axes = figure.add_subplot(grid[row, column])
            draw_panel(axes, panel, lines)
            if column == 0:
                axes.set_ylabel(name, fontsize=9)
            if row == 0:
                axes.set_title(f't = {column + 1}', fontsize=8)
    axes = figure.add_subplot(grid[:, columns:])
    for index, (way, values) in enumerate(curves.items()):
        plots.curve(axes, np.arange(1, len(values) + 1), [100 * values], way, index, color=plots.PALETTE[3 - 3 * index])
    axes.set_ylim(0, None)
    axes.legend(frameon=False)
    plots.tidy(axes, 'iteration', 'label that the image does not show (%)')
    plots.provenance(figure, foot)
    return figure


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = picture_parser(__doc__, config=True)
    parser.add_argument('--iterations', type=positive, default=5, help='columns (default: 5)')
    parser.add_argument('--seed', type=natural, default=0, help='random seed (default: 0)')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    cfg = classifiers.load_config(args.config, args.cfg_options, 'train')
    foot = [
        f'data: {classifiers.data_name(cfg, "train")}, config {show_path(Path(cfg.filename))}, seed {args.seed}; '
        'curves: mean of 100 runs'
    ]
    figure = draw(cfg, args.iterations, seed=args.seed, foot=foot)
    print(figures.save(figure, args.out, args.overwrite))


if __name__ == '__main__':
    main()
