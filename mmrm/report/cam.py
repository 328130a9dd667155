"""Class activation maps of several checkpoints side by side, on natural images and on RM-mixed ones.

grad-cam computes them. The map is taken from the backbone's last feature map itself, so that for a pooled linear
classifier GradCAM is CAM: the class's weights applied to every cell.
"""

from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import nn

from ..utils import figures, panels
from ..utils.config import number_of_classes, test_steps, type_name
from ..utils.errors import UserError, UserFileError, UserValueError
from ..weights import classifiers
from ..weights.classifiers import Trained

METHODS = ('GradCAM', 'GradCAMPlusPlus', 'HiResCAM', 'XGradCAM', 'LayerCAM', 'EigenGradCAM', 'EigenCAM')


def grad_cam():
    """The package grad-cam, any version."""
    try:
        import pytorch_grad_cam
        import pytorch_grad_cam.utils.model_targets
    except ImportError as error:
        raise UserError(
            f'class activation maps need the package grad-cam ({error}): pip install -r requirements/analysis.txt'
        ) from error
    return pytorch_grad_cam


class WithMap(nn.Module):
    """A classifier from images to logits whose last feature map passes through :attr:`map`, where it can be hooked.

    Args:
        model (nn.Module): mmpretrain's ImageClassifier.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.map = nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.model.backbone(images)
        features = tuple(features) if isinstance(features, (tuple, list)) else (features,)
        last = features[-1]
        if not isinstance(last, torch.Tensor) or last.ndim != 4:
            shape = tuple(last.shape) if isinstance(last, torch.Tensor) else type(last).__name__
            raise UserValueError(
                f'the backbone {type(self.model.backbone).__name__} gives no feature map (N, C, h, w), but {shape}: '
                'there is nothing to map. Transformers of mmpretrain give one with out_type="featmap".'
            )
        features = (*features[:-1], self.map(last))
        if getattr(self.model, 'neck', None) is not None:
            features = self.model.neck(features)
        return self.model.head(features)


def activation_maps(
    model: nn.Module, inputs: torch.Tensor, classes: Sequence[int], method: str = 'GradCAM'
) -> Tuple[np.ndarray, np.ndarray]:
    """The maps of one image for several classes.

    Args:
        model (nn.Module): mmpretrain's ImageClassifier, in eval mode.
        inputs (Tensor): One preprocessed image, shape ``(1, C, H, W)``, on the model's device.
        classes (Sequence[int]): For which classes.
        method (str): One of :data:`METHODS`. Defaults to 'GradCAM'.

    Returns:
        tuple[ndarray, ndarray]: The maps, shape ``(len(classes), H, W)``, each scaled to [0, 1] (all 0 where nothing
        speaks for the class), and the softmax of each of the classes, shape ``(len(classes), )``.
    """
    package = grad_cam()
    if method not in METHODS:
        raise UserValueError(f'method={method!r} must be one of {", ".join(METHODS)}.')
    wrapped = WithMap(model).eval()
    with torch.no_grad():
        logits = wrapped(inputs)
    for index in classes:
        if not 0 <= index < logits.shape[1]:
            raise UserValueError(f'class {index}: the model has the classes 0 to {logits.shape[1] - 1}.')
    target = package.utils.model_targets.ClassifierOutputTarget
    maps = []
    for index in classes:
        # Only these two arguments are the same in all versions of grad-cam.
        cam = getattr(package, method)(model=wrapped, target_layers=[wrapped.map])
        with torch.enable_grad():
            maps.append(cam(inputs, [target(index)])[0])
        cam.activations_and_grads.release()
    model.zero_grad()
    return np.stack(maps), torch.softmax(logits.float(), 1)[0, list(classes)].cpu().numpy()


# --------------------------------------------------------------------------------------------------------------- images
class Subject(NamedTuple):
    """An image to map.

    Args:
        title (str): Its name.
        image (ndarray): uint8, shape ``(H, W, 3)``, channels in the order in which the data set gives them, before
            normalisation.
        classes (list[int]): For which there shall be maps.
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
        raise UserValueError(f"class {name!r} is none of the data set's: {known or 'it names none; give its number'}")
    return plain.index(name.lower().replace('_', ' '))


def natural_subjects(given: Sequence[str], trained: Trained, most: int = 3) -> List[Subject]:
    """Images from files, each with the classes to map.

    Args:
        given (Sequence[str]): ``FILE`` or ``FILE=CLASS,CLASS``. Without classes, those that the first checkpoint finds
            likeliest.
        trained (Trained): The first checkpoint; its test pipeline prepares the image, its data set names the classes.
        most (int): How many of the likeliest classes. Defaults to 3.
    """
    names = _names(trained)
    subjects = []
    for each in given:
        file, _, wanted = each.partition('=')
        image = read_image(file, trained)
        if wanted:
            classes = [class_index(name.strip(), names) for name in wanted.split(',')]
        else:
            with torch.no_grad():
                logits = WithMap(trained.model)(preprocess(image, trained))[0]
            classes = logits.topk(min(most, len(logits))).indices.tolist()
        subjects.append(Subject(Path(file).name, image, classes, [_label(index, names) for index in classes]))
    return subjects


def _names(trained: Trained) -> Optional[Sequence[str]]:
    """The names of the classes: the checkpoint's own, else those of its data set if that is there."""
    from ..weights import read_checkpoint

    saved = read_checkpoint(trained.checkpoint)
    meta = (saved.get('meta') or {}) if isinstance(saved, dict) else {}
    names = (meta.get('dataset_meta') or {}).get('classes')
    if names:
        return names
    try:
        cfg = classifiers.load_config(trained.cfg.filename, part='test')
        return panels.class_names(classifiers.build_dataset(cfg, 'test'))
    except UserError:
        return None


def _label(index: int, names: Optional[Sequence[str]]) -> str:
    return figures.short_name(names[index]) if names and index < len(names) else f'class {index}'


def read_image(file: Union[str, Path], trained: Trained) -> np.ndarray:
    """A file through the test pipeline of a checkpoint's config: uint8, ``(H, W, 3)``, in the data set's order."""
    from mmengine.dataset import Compose
    from mmpretrain.registry import TRANSFORMS

    if not Path(file).is_file():
        raise UserFileError(f'image {file} does not exist.')
    classifiers.scope(trained.cfg)
    steps = test_steps(trained.cfg) or []
    from_files = any(type_name(step) == 'LoadImageFromFile' for step in steps)
    load = [] if from_files else [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    try:
        data = Compose([TRANSFORMS.build(dict(step)) for step in (steps if from_files else load)])(
            dict(img_path=str(file))
        )
    except Exception as error:
        raise UserFileError(f'image {file} cannot be read: {error}') from error
    image = data['inputs'].permute(1, 2, 0).numpy()
    return image if from_files else image[..., ::-1].copy()  # data sets that hold the pixels have them in RGB


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
    names, number = panels.class_names(dataset), number_of_classes(cfg)
    with classifiers.seeded(seed):
        stream = classifiers.read_batches(dataset, max(images, 2), seed)
        for _ in range(iterations):
            batch = next(stream)
            sizes = {tuple(each.shape) for each in batch['inputs']}
            if len(sizes) > 1:
                raise UserValueError(f'the test images differ in size ({sizes}): crop them in the test pipeline.')
            pixels = torch.stack(batch['inputs']).float()
            mixed, scores = augment(pixels, panels.soft_labels(batch['data_samples'], number))
    subjects = []
    for index in range(images):
        order = [int(each) for each in scores[index].argsort(descending=True)[:most] if scores[index, each] >= least]
        labels = [f'{_label(each, names)} {scores[index, each]:.2f}' for each in order]
        image = mixed[index].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
        subjects.append(Subject(f'mixed {index + 1}', image, order, labels))
    return subjects


def preprocess(image: np.ndarray, trained: Trained) -> torch.Tensor:
    """An image, uint8 ``(H, W, 3)``, as the model takes it: ``(1, C, H, W)``, on its device."""
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
    return trained.model.data_preprocessor(dict(inputs=[pixels], data_samples=None), training=False)['inputs']


# -------------------------------------------------------------------------------------------------------------- drawing
def overlay(image: np.ndarray, heat: np.ndarray, strength: float = 0.55) -> np.ndarray:
    """An image, uint8 RGB ``(H, W, 3)``, under its map, ``(H, W)`` in [0, 1]: dark where nothing is, bright where much.

    The colours are matplotlib's inferno, whose brightness grows evenly.
    """
    from matplotlib import colormaps

    colours = colormaps['inferno'](heat)[..., :3]
    return np.uint8(np.round(255 * ((1 - strength) * image / 255 + strength * colours)))


def draw(models: Sequence[Trained], subjects: Sequence[Subject], method: str = 'GradCAM', data: str = ''):
    """A row for each image and class: the image, then the map of every checkpoint, and the scale of the maps' colours.

    A map that is 0 everywhere is marked as empty: nothing speaks for the class, or all cells are alike.

    Args:
        models (Sequence[Trained]): The checkpoints to compare.
        subjects (Sequence[Subject]): The images.
        method (str): One of :data:`METHODS`.
        data (str): Where the images come from, for the figure's foot.
    """
    classifiers.check_same_classes(models)
    rows = sum(len(subject.classes) for subject in subjects)
    foot = [*(trained.origin for trained in models), f'data: {data}; {method}']
    wide = max(subject.image.shape[1] / subject.image.shape[0] for subject in subjects)
    side = 1.45
    width = max((len(models) + 1) * side * wide + 1.6, 4)
    height = rows * (side + 0.2) + 0.4 + 0.13 * len(figures.wrap(foot, width))
    figure = figures.new_figure(width, height, images=True)
    grid = figure.subplots(rows, len(models) + 1, squeeze=False)
    row = 0
    for subject in subjects:
        results = [
            activation_maps(each.model, preprocess(subject.image, each), subject.classes, method) for each in models
        ]
        shown = _rgb(subject.image, models[0])
        for place, label in enumerate(subject.labels):
            axes = grid[row]
            axes[0].imshow(shown, interpolation='nearest')
            axes[0].set_ylabel(label, fontsize=8)
            axes[0].set_title(subject.title if place == 0 else '', fontsize=7)
            for column, (maps, likely) in enumerate(results, 1):
                axes[column].imshow(overlay(shown, _fit(maps[place], shown)), interpolation='nearest')
                name = f'{models[column - 1].name}, ' if row == 0 else ''
                axes[column].set_title(f'{name}p = {likely[place]:.2f}', fontsize=7)
                if maps[place].max() < 0.5:  # scaled to 1, unless there is nothing but rounding errors to scale
                    mark_empty(axes[column])
            for each in axes:
                figures.hide_axes(each)
            row += 1
    add_scale(figure, grid[:, 1:])
    figures.provenance(figure, foot)
    return figure


def mark_empty(axes) -> None:
    """Say of a map that nothing is in it; it would look like one of a dark image."""
    frame = dict(facecolor='black', edgecolor='white', boxstyle='round,pad=0.25', linewidth=0.6)
    axes.text(
        0.5, 0.5, 'empty map', transform=axes.transAxes, ha='center', va='center', fontsize=6, color='white', bbox=frame
    )


def add_scale(figure, grid) -> None:
    """The colours of the maps, at the side of a figure."""
    from matplotlib import cm, colors

    bar = figure.colorbar(
        cm.ScalarMappable(colors.Normalize(0, 1), 'inferno'), ax=list(grid.flat), aspect=30, fraction=0.03, pad=0.02
    )
    bar.set_ticks([0, 0.5, 1], labels=['0', '½', 'max'])
    bar.set_label('each map up to its own maximum, laid over the image', fontsize=6.5)
    bar.ax.tick_params(labelsize=6.5)


def _rgb(image: np.ndarray, trained: Trained) -> np.ndarray:
    """An image as the data set gives it, in RGB."""
    return image if figures.channel_order(None, test_steps(trained.cfg) or []) == 'rgb' else image[..., ::-1]


def _fit(heat: np.ndarray, image: np.ndarray) -> np.ndarray:
    """A map cut to its image: the preprocessor may have padded it to the right and below."""
    return heat[: image.shape[0], : image.shape[1]]
