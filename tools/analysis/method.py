#!/usr/bin/env python
"""One drawing of RecursiveMix: what is pasted, and what is compared.

    python tools/analysis/method.py method.svg PHOTOGRAPH PHOTOGRAPH PHOTOGRAPH

Three iterations with a photograph each. The boxes are fixed; the pixels are pasted by mmrm.core.
"""

import functools
import sys
from pathlib import Path
from typing import List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import cv2
import numpy as np
import torch
from matplotlib.patches import Rectangle

from mmrm.core import Box, resize_fill
from mmrm.utils import figures
from mmrm.utils.errors import UserFileError, cli
from tools.analysis.options import picture_parser
from tools.analysis.plots import PALETTE

SIDE, CELLS = 224, 7
BOXES = (Box(16, 112, 120, 216), Box(104, 24, 208, 128))  # of the second and the third iteration
COLOURS = (PALETTE[1], PALETTE[2], PALETTE[0])  # of the three photographs
INK = '#333333'
WIDTH, TOP = 200, 60  # of an image in the figure
MIXED_LABEL = 'label $\\lambda y^h + (1 - \\lambda) y$,  $\\lambda$ = {lam:.2f}: the area'
REGION = """mean of the box → prediction, compared
with $p^h$, the prediction for the whole
history one iteration ago: consistency"""


def read_square(path: str) -> torch.Tensor:
    """The centre of a photograph, float RGB ``(1, 3, SIDE, SIDE)``."""
    image = cv2.imread(path)
    if image is None:
        raise UserFileError(f'{path} does not exist or is not an image.')
    side = min(image.shape[:2])
    top, left = ((length - side) // 2 for length in image.shape[:2])
    image = cv2.resize(image[top : top + side, left : left + side, ::-1], (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float()


def draw(photographs: Sequence[torch.Tensor]):
    """The figure: the mixed image of iteration t - 1, the photograph of t, their mix, and the two losses."""
    history, mixed = photographs[1].clone(), photographs[2].clone()
    resize_fill(history, photographs[0], BOXES[0])
    resize_fill(mixed, history, BOXES[1])
    share, lam = (box.area / SIDE**2 for box in BOXES)
    labels = [share, 1 - share], [lam * share, lam * (1 - share), 1 - lam]

    figure = figures.new_figure(11.6, 3.7)
    figure.set_layout_engine('none')
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set(xlim=(0, 1160), ylim=(370, 0))
    axes.axis('off')
    write = functools.partial(axes.text, fontsize=9.5, color=INK)
    for image, x, title, parts, text in (
        (history, 20, 'history $x^h$: the mixed image\nof the previous iteration', labels[0], 'label $y^h$'),
        (photographs[2], 265, 'current image $x$', [0, 0, 1], 'label $y$'),
        (mixed, 575, 'mixed image: the network trains on it,\nand it is the next history', labels[1], MIXED_LABEL),
    ):
        picture = image[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy()
        axes.imshow(picture, extent=(x, x + WIDTH, TOP + WIDTH, TOP), aspect='auto')
        write(x, TOP - 10, title, va='bottom')
        _bar(axes, x, parts)
        write(x, TOP + 238, text.replace('{lam:.2f}', f'{lam:.2f}'), va='top')
    write(242, TOP + 100, '+', fontsize=18, ha='center', va='center')
    _arrow(axes, 475, 565)
    write(520, TOP + 90, 'resize $x^h$,\npaste it into\na random box', ha='center', va='bottom', fontsize=8.5)
    _arrow(axes, 785, 855)
    write(820, TOP + 90, 'network', ha='center', va='bottom', fontsize=8.5)
    _box(axes, 575, 'white')

    grid = 865
    for place in np.linspace(0, WIDTH, CELLS + 1):
        axes.plot([grid, grid + WIDTH], [TOP + place] * 2, color='#aaaaaa', linewidth=0.8)
        axes.plot([grid + place] * 2, [TOP, TOP + WIDTH], color='#aaaaaa', linewidth=0.8)
    _box(axes, grid, PALETTE[3], alpha=0.2)
    write(grid, TOP - 10, 'last feature map', va='bottom')
    write(grid, TOP + 210, 'mean of all cells → prediction, compared\nwith the label: cross entropy', va='top')
    write(grid, TOP + 252, REGION, va='top', color=PALETTE[3])
    return figure


def _bar(axes, x: float, parts: List[float]) -> None:
    """A label as a bar: the share of each photograph in its colour."""
    for part, colour in zip(parts, COLOURS):
        axes.add_patch(Rectangle((x, TOP + 210), WIDTH * part, 18, facecolor=colour))
        if part > 0.06:
            axes.text(
                x + WIDTH * part / 2, TOP + 219, f'{part:.2f}', fontsize=8.5, color='white', ha='center', va='center'
            )
        x += WIDTH * part


def _box(axes, x: float, colour: str, alpha: float = 0) -> None:
    """The outline of the third iteration's box on an image that begins at ``x``."""
    scale, box = WIDTH / SIDE, BOXES[1]
    place = (x + box.x1 * scale, TOP + box.y1 * scale), (box.x2 - box.x1) * scale, (box.y2 - box.y1) * scale
    axes.add_patch(Rectangle(*place, facecolor=colour, alpha=alpha))
    axes.add_patch(Rectangle(*place, fill=False, edgecolor=colour, linewidth=2))


def _arrow(axes, start: float, end: float) -> None:
    axes.annotate('', (end, TOP + 100), (start, TOP + 100), arrowprops=dict(arrowstyle='-|>', linewidth=1.4, color=INK))


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = picture_parser(__doc__)
    parser.add_argument('photographs', nargs=3, metavar='PHOTOGRAPH')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    print(figures.save(draw([read_square(path) for path in args.photographs]), args.out, args.overwrite))


if __name__ == '__main__':
    main()
