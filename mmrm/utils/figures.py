"""What pictures of network inputs share: the images themselves, labels as text, rows of images."""

import contextlib
import tempfile
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from PIL import Image

from ..core import Box
from .config import pipeline_of, test_steps
from .errors import UserValueError
from .files import atomic_write, check_out
from .random_state import kept_generators

PICTURES = ('.png', '.svg', '.pdf')


def new_figure(width: float, height: float, images: bool = False):
    """An empty figure of so many inches, apart from pyplot's global ones; of ``images`` the shape is kept."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100)
    figure.set_layout_engine('compressed' if images else 'constrained', h_pad=0.06)
    return figure


def check_picture(path: Union[str, Path], overwrite: bool = False) -> Path:
    """:func:`~mmrm.utils.files.check_out` for a picture: PNG, SVG or PDF."""
    return check_out(path, overwrite, PICTURES)


def save(figure, path: Union[str, Path], overwrite: bool = False) -> Path:
    """Write a figure as PNG, SVG or PDF, by the ending of ``path``."""
    import matplotlib
    from PIL import Image

    path = check_picture(path, overwrite)
    # No dates and no random names, so that the same figure is the same file.
    metadata = {'.svg': {'Date': None}, '.pdf': {'CreationDate': None}}.get(path.suffix)
    with atomic_write(path, overwrite) as part, matplotlib.rc_context({'svg.hashsalt': 'mmrm'}):
        figure.savefig(part, format=path.suffix[1:], metadata=metadata)
        if path.suffix == '.png':  # with 256 colours, a third of the size
            Image.open(part).convert('RGB').quantize(256).save(part, 'PNG')
    return path


def to_array(figure) -> np.ndarray:
    """A figure as an image: uint8 RGB, shape ``(height, width, 3)``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def channel_order(cfg: Config, preprocessor=None) -> str:
    """'rgb' or 'bgr': the order of the channels that come out of a config's test pipeline, measured on a red image.

    Args:
        cfg (Config): Without a test pipeline, that of training counts.
        preprocessor (ClsDataPreprocessor, optional): Behind the pipeline; ``to_rgb`` swaps the channels.
    """
    with tempfile.TemporaryDirectory() as folder, kept_generators():
        file, red = Path(folder) / 'red.png', np.full((300, 400, 3), (255, 0, 0), np.uint8)
        Image.fromarray(red).save(file)
        pixels = torch.from_numpy(red).permute(2, 0, 1)
        data = dict(img_path=str(file), img=red, inputs=pixels)  # a data set that holds its pixels has them in RGB
        with contextlib.suppress(Exception):  # of a pipeline that needs more than an image
            pixels = Compose(test_steps(cfg) or pipeline_of(cfg, 'train'))(data)['inputs']
    is_bgr = pixels[-1].float().mean() > pixels[0].float().mean()
    return 'bgr' if is_bgr != bool(getattr(preprocessor, 'to_rgb', False)) else 'rgb'


def to_images(inputs: torch.Tensor, preprocessor, order: str = 'rgb') -> np.ndarray:
    """Undo the normalisation: what the network sees, as people do.

    Args:
        inputs (Tensor): Normalised, shape ``(N, C, H, W)``.
        preprocessor (ClsDataPreprocessor): With the ``mean`` and ``std`` that normalised them, or without.
        order (str): 'rgb' or 'bgr', of the channels of ``inputs``.

    Returns:
        ndarray: uint8 RGB, shape ``(N, H, W, 3)``.
    """
    if inputs.ndim != 4 or inputs.shape[1] not in (1, 3):
        raise UserValueError(f'images must have shape (N, 1 or 3, H, W), but got {tuple(inputs.shape)}.')
    images = inputs.detach().float().cpu()
    if getattr(preprocessor, '_enable_normalize', False):
        images = images * preprocessor.std.float().cpu() + preprocessor.mean.float().cpu()
    images = images.round().clamp(0, 255).to(torch.uint8)
    if images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    elif order == 'bgr':
        images = images.flip(1)
    return images.permute(0, 2, 3, 1).numpy()


def short_name(name: str, length: int = 16) -> str:
    """The first of a class's names, cut to ``length``."""
    name = str(name).split(',')[0].strip()
    return name if len(name) <= length else f'{name[: length - 1]}…'


def label_text(scores: Sequence[float], classes: Optional[Sequence[str]] = None, most: int = 4) -> List[str]:
    """A soft label in words, the greatest share first: ``['cat 0.62', 'dog 0.38']``.

    Args:
        scores (Sequence[float]): One for each class.
        classes (Sequence[str], optional): Their names. Defaults to None, their numbers.
        most (int): Lines at most; the rest is summed up. Defaults to 4.
    """
    order = [int(index) for index in np.argsort(scores, kind='stable')[::-1] if scores[index] > 0]
    shown = order if len(order) <= most else order[: most - 1]
    names = [short_name(classes[index]) if classes else f'class {index}' for index in shown]
    lines = [f'{name} {share_text(scores[index])}' for name, index in zip(names, shown)]
    if len(shown) < len(order):
        rest = order[len(shown) :]
        lines.append(f'{len(rest)} more {share_text(sum(float(scores[index]) for index in rest))}')
    return lines


def share_text(share: float) -> str:
    """A share with two digits, ``<0.01`` where that would be a false 0."""
    return '<0.01' if 0 < share < 0.005 else f'{share:.2f}'


def hide_axes(axes) -> None:
    """An image's axes: no ticks, no frame."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


# ------------------------------------------------------------------------------------------------------ rows of images
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
            raise UserValueError('the data set has no labels to mix or compare.')
    return scores


def draw_panel(axes, panel: Panel, lines: int) -> None:
    """Draw one image with its lines; room is left for ``lines``, so that all images have the same size."""
    from matplotlib.patches import Rectangle

    axes.imshow(panel.image, interpolation='nearest')
    hide_axes(axes)
    axes.set_xlabel('\n'.join([*panel.lines, *[''] * (lines - len(panel.lines))]), fontsize=7, labelpad=2)
    if panel.box is not None:
        x1, y1, x2, y2 = panel.box
        for colour, width in (('black', 2.2), ('white', 1.0)):
            axes.add_patch(
                Rectangle((x1 - 0.5, y1 - 0.5), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=width)
            )


def draw_rows(rows: Sequence[Tuple[str, Sequence[Panel]]], titles: Sequence[str] = ()):
    """Draw rows of images with their labels.

    Args:
        rows (Sequence): (name of the row, its panels), all rows of the same length.
        titles (Sequence[str]): Of the columns.
    """
    columns = max(len(panels) for _, panels in rows)
    lines = max(len(panel.lines) for _, panels in rows for panel in panels)
    side = 1.35
    height = len(rows) * (side + 0.13 * lines + 0.08) + 0.35
    figure = new_figure(max((side + 0.1) * columns + 0.5, 4), height, images=True)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for number, ((name, panels), axes_row) in enumerate(zip(rows, grid)):
        for column, (axes, panel) in enumerate(zip(axes_row, panels)):
            draw_panel(axes, panel, lines)
            if column == 0:
                axes.set_ylabel(name, fontsize=8)
            if number == 0 and column < len(titles):
                axes.set_title(titles[column], fontsize=8)
    return figure
