"""Rows of images with their labels and boxes."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from ..core import Box
from . import figures
from .errors import UserValueError


class Panel(NamedTuple):
    """One image of a gallery: uint8 RGB ``(H, W, 3)``, the lines below it, and a box to outline."""

    image: np.ndarray
    lines: List[str]
    box: Optional[Box] = None


def class_names(dataset) -> Optional[Sequence[str]]:
    """The names of a data set's classes, None if it has none."""
    return (getattr(dataset, 'metainfo', None) or {}).get('classes')


def soft_labels(samples: Sequence, num_classes: int) -> torch.Tensor:
    """The labels of data samples as scores, shape ``(N, num_classes)``."""
    scores = torch.zeros(len(samples), num_classes)
    for row, sample in zip(scores, samples):
        if 'gt_score' in sample:
            row += sample.gt_score.cpu().float()
        elif 'gt_label' in sample:
            row[sample.gt_label.cpu()] = 1.0
        else:
            raise UserValueError('the data set has no labels: there is nothing to fuse or to compare.')
    return scores


def draw_panel(axes, panel: Panel, lines: int) -> None:
    """Draw one image with its lines; room is left for ``lines``, so that all images have the same size."""
    from matplotlib.patches import Rectangle

    axes.imshow(panel.image, interpolation='nearest')
    figures.hide_axes(axes)
    axes.set_xlabel('\n'.join([*panel.lines, *[''] * (lines - len(panel.lines))]), fontsize=7, labelpad=2)
    if panel.box is not None:
        x1, y1, x2, y2 = panel.box
        for colour, width in (('black', 2.2), ('white', 1.0)):
            axes.add_patch(
                Rectangle((x1 - 0.5, y1 - 0.5), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=width)
            )


def draw(rows: Sequence[Tuple[str, Sequence[Panel]]], titles: Sequence[str] = (), foot: Sequence[str] = ()):
    """Draw rows of images with their labels.

    Args:
        rows (Sequence): (name of the row, its panels), all rows of the same length.
        titles (Sequence[str]): Of the columns.
        foot (Sequence[str]): Lines below the figure: what made it.
    """
    columns = max(len(panels) for _, panels in rows)
    lines = max(len(panel.lines) for _, panels in rows for panel in panels)
    side = 1.35
    height = len(rows) * (side + 0.13 * lines + 0.08) + 0.35 + 0.12 * len(foot)
    figure = figures.new_figure(max((side + 0.1) * columns + 0.5, 4), height, images=True)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for number, ((name, panels), axes_row) in enumerate(zip(rows, grid)):
        for axes in axes_row[len(panels) :]:
            axes.set_visible(False)
        for column, (axes, panel) in enumerate(zip(axes_row, panels)):
            draw_panel(axes, panel, lines)
            if column == 0:
                axes.set_ylabel(name, fontsize=8)
            if number == 0 and column < len(titles):
                axes.set_title(titles[column], fontsize=8)
    if foot:
        figures.provenance(figure, foot)
    return figure
