#!/usr/bin/env python
"""Class activation maps of several checkpoints side by side: of image files, or of RM-mixed test images."""

import sys
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import numpy as np
import torch

from mmrm.cli.options import natural, positive
from mmrm.report import cam
from mmrm.utils import figures
from mmrm.utils.config import number_of_classes
from mmrm.utils.errors import UserError, UserValueError, cli
from mmrm.utils.paths import show_path
from mmrm.weights import read_checkpoint
from mmrm.weights.inputs import Reader, normalise
from tools.analysis import classifiers, plots
from tools.analysis.classifiers import Trained
from tools.analysis.options import add_models, picture_parser


# --------------------------------------------------------------------------------------------------------------- images
class Subject(NamedTuple):
    """An image to map.

    Args:
        title (str): Its name.
        image (ndarray): uint8, shape ``(H, W, 3)``, channels in the order in which the data set gives them, before
            normalisation.
        classes (list[int]): The classes to map.
        labels (list[str]): What to call each of them.
    """

    title: str
    image: np.ndarray
    classes: List[int]
    labels: List[str]


def class_index(name: str, names: Optional[Sequence[str]]) -> int:
    """The number of a class that is given by name or number."""
    if name.isdecimal():
        return int(name)
    plain = [str(each).split(',')[0].strip().lower().replace('_', ' ') for each in names or ()]
    if name.lower().replace('_', ' ') not in plain:
        known = ', '.join(plain[:12]) + (' ...' if len(plain) > 12 else '')
        raise UserValueError(f'class {name!r} is not in the data set: {known or "it names none; give its number"}')
    return plain.index(name.lower().replace('_', ' '))


def natural_subjects(given: Sequence[str], trained: Trained, most: int = 3) -> List[Subject]:
    """Images from files, each with the classes to map.

    Args:
        given (Sequence[str]): ``FILE`` or ``FILE=CLASS,CLASS``. Without classes, those that the first checkpoint finds
            likeliest.
        trained (Trained): The first checkpoint; its test pipeline prepares the image, its data set names the classes.
        most (int): How many of the likeliest classes. Defaults to 3.
    """
    names, read = _names(trained), Reader(trained.cfg)
    subjects = []
    for each in given:
        file, _, wanted = each.partition('=')
        image = read(file)
        if wanted:
            classes = [class_index(name.strip(), names) for name in wanted.split(',')]
        else:
            with torch.no_grad():
                logits = cam.WithMap(trained.model)(normalise(image, trained.model.data_preprocessor))[0]
            classes = logits.topk(min(most, len(logits))).indices.tolist()
        subjects.append(Subject(Path(file).name, image, classes, [_label(index, names) for index in classes]))
    return subjects


def _names(trained: Trained) -> Optional[Sequence[str]]:
    """The names of the classes: the checkpoint's own, else those of its data set if that is there."""
    saved = read_checkpoint(trained.checkpoint)
    meta = (saved.get('meta') or {}) if isinstance(saved, dict) else {}
    names = (meta.get('dataset_meta') or {}).get('classes')
    if names:
        return names
    try:
        cfg = classifiers.load_config(trained.cfg.filename, part='test')
        return figures.class_names(classifiers.build_dataset(cfg, 'test'))
    except UserError:
        return None


def _label(index: int, names: Optional[Sequence[str]]) -> str:
    return figures.short_name(names[index]) if names and index < len(names) else f'class {index}'


def mixed_subjects(
    trained: Trained, images: int = 3, iterations: int = 4, seed: int = 0, least: float = 0.04, most: int = 4
) -> List[Subject]:
    """RM-mixed images of a config's test data, with all classes that are in them.

    Args:
        trained (Trained): The first checkpoint; its config names data and RecursiveMix (its defaults if it has none).
        images (int): How many. Defaults to 3.
        iterations (int): After so many the images are taken. Defaults to 4.
        seed (int): Of data and mixing. Defaults to 0.
        least (float): Classes with a smaller share are left out. Defaults to 0.04.
        most (int): Classes of an image at most. Defaults to 4.
    """
    cfg = classifiers.load_config(trained.cfg.filename, part='test')
    dataset, augment = classifiers.build_dataset(cfg, 'test'), classifiers.recursive_mix_of(cfg)[0]
    names, number = figures.class_names(dataset), number_of_classes(cfg)
    with classifiers.seeded(seed):
        stream = classifiers.read_batches(dataset, max(images, 2), seed)
        for _ in range(iterations):
            batch = next(stream)
            sizes = {tuple(each.shape) for each in batch['inputs']}
            if len(sizes) > 1:
                raise UserValueError(f'the test images differ in size ({sizes}): crop them in the test pipeline.')
            pixels = torch.stack(batch['inputs']).float()
            mixed, scores = augment(pixels, figures.soft_labels(batch['data_samples'], number))
    subjects = []
    for index in range(images):
        order = [int(each) for each in scores[index].argsort(descending=True)[:most] if scores[index, each] >= least]
        labels = [f'{_label(each, names)} {scores[index, each]:.2f}' for each in order]
        image = mixed[index].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
        subjects.append(Subject(f'mixed {index + 1}', image, order, labels))
    return subjects


# -------------------------------------------------------------------------------------------------------------- drawing
def draw(models: Sequence[Trained], subjects: Sequence[Subject], method: str = 'GradCAM', data: str = ''):
    """A row for each image and class: the image, then the map of every checkpoint, and the scale of the maps' colours.

    A map that is 0 everywhere is marked as empty: nothing supports the class, or all cells are equal.

    Args:
        models (Sequence[Trained]): The checkpoints to compare.
        subjects (Sequence[Subject]): The images.
        method (str): One of :data:`mmrm.report.cam.METHODS`.
        data (str): Where the images come from, for the figure's foot.
    """
    classifiers.check_same_classes(models)
    rows = sum(len(subject.classes) for subject in subjects)
    foot = [*(trained.origin for trained in models), f'data: {data}; {method}']
    wide = max(subject.image.shape[1] / subject.image.shape[0] for subject in subjects)
    side = 1.45
    width = max((len(models) + 1) * side * wide + 1.6, 4)
    height = rows * (side + 0.2) + 0.4 + 0.13 * len(plots.wrap(foot, width))
    figure = figures.new_figure(width, height, images=True)
    grid = figure.subplots(rows, len(models) + 1, squeeze=False)
    row = 0
    for subject in subjects:
        results = [
            cam.activation_maps(model, normalise(subject.image, model.data_preprocessor), subject.classes, method)
            for model in (each.model for each in models)
        ]
        shown = rgb(subject.image, models[0])
        for place, label in enumerate(subject.labels):
            axes = grid[row]
            axes[0].imshow(shown, interpolation='nearest')
            axes[0].set_ylabel(label, fontsize=8)
            axes[0].set_title(subject.title if place == 0 else '', fontsize=7)
            for column, (maps, likely) in enumerate(results, 1):
                heat = maps[place][: shown.shape[0], : shown.shape[1]]  # the preprocessor may have padded it
                axes[column].imshow(cam.overlay(shown, heat), interpolation='nearest')
                name = f'{models[column - 1].name}, ' if row == 0 else ''
                axes[column].set_title(f'{name}p = {likely[place]:.2f}', fontsize=7)
                if maps[place].max() < 0.5:  # scaled to 1, unless there is nothing but rounding errors to scale
                    mark_empty(axes[column])
            for each in axes:
                figures.hide_axes(each)
            row += 1
    add_scale(figure, grid[:, 1:])
    plots.provenance(figure, foot)
    return figure


def mark_empty(axes) -> None:
    """Write on a map that it is empty; it would look like one of a dark image."""
    frame = dict(facecolor='black', edgecolor='white', boxstyle='round,pad=0.25', linewidth=0.6)
    style = dict(ha='center', va='center', fontsize=6, color='white', bbox=frame)
    axes.text(0.5, 0.5, 'empty map', transform=axes.transAxes, **style)


def add_scale(figure, grid) -> None:
    """The colours of the maps, at the side of a figure."""
    from matplotlib import cm, colors

    bar = figure.colorbar(
        cm.ScalarMappable(colors.Normalize(0, 1), 'inferno'), ax=list(grid.flat), aspect=30, fraction=0.03, pad=0.02
    )
    bar.set_ticks([0, 0.5, 1], labels=['0', '½', 'max'])
    bar.set_label('each map up to its own maximum, laid over the image', fontsize=6.5)
    bar.ax.tick_params(labelsize=6.5)


def rgb(image: np.ndarray, trained: Trained) -> np.ndarray:
    """An image as the data set gives it, in RGB."""
    return image if figures.channel_order(trained.cfg) == 'rgb' else image[..., ::-1]


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = picture_parser(__doc__)
    add_models(parser)
    parser.add_argument(
        '--images',
        nargs='+',
        metavar='FILE[=CLASS,CLASS]',
        help='images and the classes to map; without classes, the three that the first model finds likeliest',
    )
    parser.add_argument(
        '--mixed',
        type=positive,
        metavar='N',
        help="number of RM-mixed images of the first config's test data, with a map for every class",
    )
    parser.add_argument('--iterations', type=positive, default=4, help='mixing steps of --mixed (default: 4)')
    parser.add_argument('--seed', type=natural, default=0, help='random seed of --mixed (default: 0)')
    parser.add_argument('--method', choices=cam.METHODS, default='GradCAM', help='default: GradCAM')
    args = parser.parse_args(argv)
    if bool(args.images) == bool(args.mixed):
        parser.error('give either --images or --mixed')
    figures.check_picture(args.out, args.overwrite)
    cam.grad_cam()
    models = classifiers.parse_models(args.model, classifiers.choose_device(args.device))
    if args.images:
        subjects = natural_subjects(args.images, models[0])
        data = ', '.join(dict.fromkeys(show_path(Path(each.partition('=')[0])) for each in args.images))
    else:
        subjects = mixed_subjects(models[0], args.mixed, args.iterations, args.seed)
        cfg = classifiers.load_config(models[0].cfg.filename, part='test')
        data = f'{classifiers.data_name(cfg, "test")}, RM-mixed {args.iterations} times, seed {args.seed}'
    print(figures.save(draw(models, subjects, args.method, data), args.out, args.overwrite))


if __name__ == '__main__':
    main()
