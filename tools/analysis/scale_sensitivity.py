#!/usr/bin/env python
"""How small may an object be? Accuracy when the test image is shrunk and pasted on another background.

The whole test image, resized to a share of its side, at a random place: on grey, or on the test image of another class.
This is the paper's claim of multi-scale views, made measurable. To be fair: RM trains on this very operation (the whole
image, resized, inside another one); CutMix and the baseline do not. With 'nothing' around it none has an advantage:
the shrunken image is all that the network gets, at its own small size.
"""

import collections
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import numpy as np
import torch
import torch.nn.functional as F

from mmrm.cli.options import natural, positive
from mmrm.report import grids
from mmrm.utils import figures
from mmrm.utils.errors import UserValueError, cli
from mmrm.utils.paths import show_path
from tools.analysis import classifiers, plots
from tools.analysis.classifiers import Trained
from tools.analysis.options import add_models, picture_parser, table_format, write_table

SCALES = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25)
BACKGROUNDS = ('grey', 'other class')
NOTHING = 'nothing'  # around the image: only for networks that take images of any size
INTERPOLATIONS = ('bilinear', 'nearest')
GREY = 127.5


class Point(NamedTuple):
    """One measurement.

    Args:
        name (str): The model's; several checkpoints of one name are several seeds.
        checkpoint (str): Its file.
        background (str): One of :data:`BACKGROUNDS`, or :data:`NOTHING`.
        scale (float): Side of the pasted image over the side of the whole.
        accuracy (float): Percent of images whose top-1 class is the pasted one's.
        fooled (float): Percent whose top-1 class is the background's; 0 where there is none.
        both (float): Percent whose two likeliest classes are the pasted one's and the background's; 0 likewise.
    """

    name: str
    checkpoint: str
    background: str
    scale: float
    accuracy: float
    fooled: float
    both: float


def paste(
    images: torch.Tensor, backgrounds: torch.Tensor, scale: float, places: torch.Tensor, interpolation: str = 'bilinear'
) -> torch.Tensor:
    """Shrink whole images and put each on its background.

    Args:
        images (Tensor): Float, shape ``(N, C, H, W)``.
        backgrounds (Tensor): Same shape.
        scale (float): Of the side, in (0, 1]; 1 gives the images themselves.
        places (Tensor): In [0, 1], shape ``(N, 2)``: where between the first and the last possible row and column.
        interpolation (str): 'bilinear' (antialiased) or 'nearest' (as RM trains). Defaults to 'bilinear'.

    Returns:
        Tensor: Same shape, new.
    """
    small = shrink(images, scale, interpolation)
    (height, width), (tall, wide) = images.shape[-2:], small.shape[-2:]
    pasted = backgrounds.clone()
    for index, (down, right) in enumerate(places.tolist()):
        top, left = round(down * (height - tall)), round(right * (width - wide))
        pasted[index, :, top : top + tall, left : left + wide] = small[index]
    return pasted


def shrink(images: torch.Tensor, scale: float, interpolation: str = 'bilinear') -> torch.Tensor:
    """Whole images, ``(N, C, H, W)``, with ``scale`` of their side, in (0, 1]."""
    if not 0 < scale <= 1:
        raise UserValueError(f'scale={scale} must be in (0, 1].')
    if interpolation not in INTERPOLATIONS:
        raise UserValueError(f'interpolation={interpolation!r} must be one of {", ".join(INTERPOLATIONS)}.')
    size = [max(1, round(side * scale)) for side in images.shape[-2:]]
    kind = dict(mode='bilinear', antialias=True) if interpolation == 'bilinear' else dict(mode='nearest')
    return F.interpolate(images, size, **kind)


def other_class(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """For each image the index of a random one of another class."""
    draw = np.random.RandomState(seed)
    partners = np.empty(len(labels), int)
    for label in np.unique(labels):
        others, own = np.flatnonzero(labels != label), np.flatnonzero(labels == label)
        if not len(others):
            raise UserValueError('all test images are of one class: there is no other to paste on.')
        partners[own] = draw.choice(others, len(own))
    return partners


def number_of_images(trained: Trained) -> int:
    """How many test images a checkpoint's config has."""
    return len(classifiers.build_dataset(classifiers.load_config(trained.cfg.filename, part='test'), 'test'))


def load_images(trained: Trained, number: int, seed: int = 0) -> Tuple[torch.Tensor, np.ndarray]:
    """Test images of a checkpoint's config before normalisation, uint8 ``(N, C, H, W)``, and their labels."""
    cfg = classifiers.load_config(trained.cfg.filename, part='test')
    dataset = classifiers.build_dataset(cfg, 'test')
    if number > len(dataset):
        raise UserValueError(f'{number} images from a data set of {len(dataset)}: allowed are 1 to {len(dataset)}.')
    chosen = np.random.RandomState(seed).permutation(len(dataset))[:number]
    images, labels = [], []
    for index in chosen:
        item = dataset[int(index)]
        if 'gt_label' not in item['data_samples'] or item['data_samples'].gt_label.numel() != 1:
            raise UserValueError('the test data must have one label per image.')
        images.append(item['inputs'])
        labels.append(int(item['data_samples'].gt_label))
    sizes = {tuple(image.shape) for image in images}
    if len(sizes) > 1:
        raise UserValueError(f'the test images differ in size, {sorted(sizes)[:2]} ...: crop them in test_pipeline.')
    return torch.stack(images), np.array(labels)


def predict(trained: Trained, images: torch.Tensor) -> np.ndarray:
    """The two likeliest classes, ``(N, 2)``, of each image, uint8 ``(N, C, H, W)``."""
    data = dict(inputs=list(images), data_samples=None)
    with torch.no_grad():
        inputs = trained.model.data_preprocessor(data, training=False)['inputs']
        return trained.model(inputs, mode='tensor').topk(2).indices.cpu().numpy()


def measure(
    models: Sequence[Trained],
    scales: Sequence[float] = SCALES,
    images: int = 1000,
    interpolation: str = 'bilinear',
    seed: int = 0,
    batch: int = 100,
    backgrounds: Sequence[str] = BACKGROUNDS,
) -> List[Point]:
    """Measure every model at every scale on every background, on the same images.

    Args:
        models (Sequence[Trained]): Classifiers of the same data; the first one's config names it.
        scales (Sequence[float]): Of the side, in (0, 1].
        images (int): How many test images, drawn from ``seed``. Defaults to 1000.
        interpolation (str): See :func:`paste`. Defaults to 'bilinear'.
        seed (int): Of images, places and backgrounds. Defaults to 0.
        batch (int): Images a forward pass. Defaults to 100.
        backgrounds (Sequence[str]): Some of :data:`BACKGROUNDS` and :data:`NOTHING`.
    """
    for background in backgrounds:
        if background not in (*BACKGROUNDS, NOTHING):
            raise UserValueError(f'background={background!r} must be one of {", ".join((*BACKGROUNDS, NOTHING))}.')
    if images < 2 or not scales:
        raise UserValueError(f'images={images} must be 2 or more, and there must be a scale.')
    for scale in scales:
        if not 0 < scale <= 1:
            raise UserValueError(f'scale={scale} must be in (0, 1].')
    scales, backgrounds = list(dict.fromkeys(scales)), list(dict.fromkeys(backgrounds))  # each once
    classifiers.check_same_classes(models)
    pixels, labels = load_images(models[0], images, seed)
    partners = other_class(labels, seed)
    places = torch.from_numpy(np.random.RandomState(seed).rand(len(pixels), 2))
    counts: Dict[tuple, np.ndarray] = collections.defaultdict(lambda: np.zeros(3))
    for start in range(0, len(pixels), batch):
        part = slice(start, start + batch)
        own, other = pixels[part].float(), pixels[torch.from_numpy(partners[part])].float()
        for background in backgrounds:
            ground = other if background == 'other class' else torch.full_like(own, GREY)
            behind = labels[partners[part]] if ground is other else np.full(len(own), -1)
            for scale in scales:
                if background == NOTHING:
                    view = shrink(own, scale, interpolation)
                else:
                    view = paste(own, ground, scale, places[part], interpolation)
                view = view.round().clamp(0, 255).to(torch.uint8)
                for number, trained in enumerate(models):
                    counts[number, background, scale] += _count(predict(trained, view), labels[part], behind)
    return [
        Point(models[number].name, str(models[number].checkpoint), background, scale, *100 * found / len(pixels))
        for (number, background, scale), found in counts.items()
    ]


def accuracy_by_side(
    models: Sequence[Trained], sides: Sequence[int], whole: int, images: int
) -> Dict[str, Dict[int, float]]:
    """Top-1 in percent on whole test images, shrunk, with nothing around them, by model and side in pixels.

    Args:
        models (Sequence[Trained]): As for :func:`measure`.
        sides (Sequence[int]): In pixels.
        whole (int): The side of the test images.
        images (int): How many of them.
    """
    found: Dict[str, Dict[int, float]] = {trained.name: {} for trained in models}
    for point in measure(models, [side / whole for side in sides], images=images, backgrounds=[NOTHING]):
        found[point.name][round(whole * point.scale)] = round(float(point.accuracy), 2)
    return found


def _count(found: np.ndarray, pasted: np.ndarray, behind: np.ndarray) -> np.ndarray:
    """How many of the images show the pasted class first, the background's first, both in the first two places."""
    both = (found == pasted[:, None]).any(1) & (found == behind[:, None]).any(1)
    return np.array([(found[:, 0] == pasted).sum(), (found[:, 0] == behind).sum(), both.sum()], float)


PANELS = (
    ('grey', 'accuracy', 'on grey'),
    ('other class', 'accuracy', 'on an image of another class'),
    ('other class', 'both', 'both classes in the first two'),
    (NOTHING, 'accuracy', 'alone, nothing around it'),
)


def draw(points: Sequence[Point], foot: Sequence[str] = ()):
    """Against the scale: accuracy on each background, and how often both objects are found."""
    shown = [panel for panel in PANELS if any(point.background == panel[0] for point in points)]
    figure = figures.new_figure(3.2 * len(shown), 3.5 + 0.12 * len(foot))
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    scales = sorted({point.scale for point in points}, reverse=True)
    for axes, (background, value, title) in zip(panels, shown):
        for index, name in enumerate(dict.fromkeys(point.name for point in points)):
            found: Dict[str, Dict[float, float]] = {}
            for point in points:
                if (point.name, point.background) == (name, background):
                    found.setdefault(point.checkpoint, {})[point.scale] = getattr(point, value)
            plots.curve(axes, scales, [[run[scale] for scale in scales] for run in found.values()], name, index)
        axes.invert_xaxis()
        axes.set_ylim(0, 103)
        y = 'images (%)' if value == 'both' else 'top-1 accuracy (%)'
        plots.tidy(axes, 'side of the pasted image / whole side', y, title)
    panels[0].legend(frameon=False, loc='lower left', fontsize=8)
    plots.provenance(figure, foot)
    return figure


HEADERS = ('model', 'checkpoint', 'background', 'scale', 'top-1 (%)', 'background first (%)', 'both (%)')


def table_lines(points: Sequence[Point]) -> List[List[str]]:
    """A line of texts for each measurement under :data:`HEADERS`."""
    return [
        [
            *(point.name, show_path(Path(point.checkpoint)), point.background, f'{point.scale:g}'),
            *(f'{value:.2f}' for value in (point.accuracy, point.fooled, point.both)),
        ]
        for point in points
    ]


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = picture_parser(__doc__)
    add_models(parser)  # checkpoints of one name are seeds
    parser.add_argument(
        '--scales',
        nargs='+',
        type=float,
        default=SCALES,
        metavar='S',
        help='side of the pasted image / side of the image',
    )
    parser.add_argument(
        '--backgrounds',
        nargs='+',
        choices=(*BACKGROUNDS, NOTHING),
        default=BACKGROUNDS,
        help="background (default: grey, 'other class'); 'nothing' needs a network for any size",
    )
    parser.add_argument('--images', type=positive, default=1000, help='test images (default: 1000, or all there are)')
    parser.add_argument(
        '--interpolation',
        choices=INTERPOLATIONS,
        default='bilinear',
        help='default: bilinear, antialiased; nearest is what RM trains on',
    )
    parser.add_argument('--seed', type=natural, default=0, help='random seed (default: 0)')
    parser.add_argument('--table', help='also write the numbers, .csv, .md or .tex')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    form = table_format(args.table, args.overwrite)
    models = classifiers.parse_models(args.model, classifiers.choose_device(args.device))
    images = number_of_images(models[0])
    if images < args.images:
        print(f'note: the test data has {images} images, fewer than {args.images}; all are used', file=sys.stderr)
    images = min(images, args.images)
    points = measure(models, args.scales, images, args.interpolation, args.seed, backgrounds=args.backgrounds)
    cfg = classifiers.load_config(models[0].cfg.filename, part='test')
    foot = [
        *(trained.origin for trained in models),
        f'data: {classifiers.data_name(cfg, "test")}, {images} '
        f'images, {args.interpolation}, seed {args.seed}. RM trains on pasted images.',
    ]
    lines = grids.render(form, HEADERS, table_lines(points), right=range(3, 7))
    write_table(lines, args.table, args.overwrite)
    print(figures.save(draw(points, foot), args.out, args.overwrite))


if __name__ == '__main__':
    main()
