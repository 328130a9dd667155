"""What a classifier takes: size, channels, mean and standard deviation, and how an image file becomes that."""

from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmpretrain.registry import TRANSFORMS

from ..datasets.images import BrokenImageError, inspect_image
from ..utils.config import dataset_class, datasets, preprocessor_of, test_steps, type_name
from ..utils.errors import UserValueError, one_line
from .build import scope

SIZES = {'CIFAR10': 32, 'CIFAR100': 32}  # of data sets that hold their pixels


class Input(NamedTuple):
    """What goes into a network.

    Args:
        size (tuple[int, int], optional): Height and width in pixels; None if images keep their own.
        mean, std (list[float], optional): Per channel, of pixels from 0 to 255; None if nothing is normalised.
        order (str): 'rgb' or 'bgr': of the channels that the network gets, mean and std likewise.
        steps (list[dict]): The test pipeline, as in the config.
    """

    size: Optional[Tuple[int, int]]
    mean: Optional[List[float]]
    std: Optional[List[float]]
    order: str
    steps: List[dict]

    def note(self) -> Dict[str, Any]:
        """As plain values, for the metadata of a file."""
        return dict(
            input='float32, (N, 3, height, width), (pixel - mean) / std, pixels from 0 to 255',
            size=list(self.size) if self.size else None,
            mean=self.mean,
            std=self.std,
            channel_order=self.order,
            pipeline=self.steps,
        )


def describe_input(cfg: Config, size: Optional[Tuple[int, int]] = None) -> Input:
    """What the classifier of a config takes in a test.

    Args:
        cfg: Its config.
        size: Height and width, for a config that does not fix them. None: found out.
    """
    steps = known_steps(cfg)
    preprocessor = preprocessor_of(cfg)
    # Read from files, images are BGR; what a data set holds is RGB.
    swapped = bool(preprocessor.get('to_rgb'))
    order = 'bgr' if from_files(steps) != swapped else 'rgb'
    mean, std = (
        None if preprocessor.get(key) is None else [float(value) for value in preprocessor[key]]
        for key in ('mean', 'std')
    )
    return Input(size or find_size(cfg, steps), mean, std, order, [_plain(step) for step in steps])


def _plain(step) -> dict:
    """A transform of a config in values that JSON knows."""
    plain = {}
    for key, value in dict(step).items():
        value = type_name(dict(type=value)) if key == 'type' else value
        plain[key] = list(value) if isinstance(value, (tuple, list)) else value
    return {
        key: value if isinstance(value, (int, float, str, bool, list)) else str(value) for key, value in plain.items()
    }


def known_steps(cfg: Config) -> List[dict]:
    """The test pipeline of a config (:func:`~mmrm.utils.config.test_steps`), or an error where it has none."""
    steps = test_steps(cfg)
    if steps is None:
        raise UserValueError('the config has neither test_dataloader nor val_dataloader: how images go in is unknown.')
    return steps


def from_files(steps: List[dict]) -> bool:
    """Whether a pipeline reads image files itself."""
    return any(type_name(step) == 'LoadImageFromFile' for step in steps)


def find_size(cfg: Config, steps: List[dict]) -> Optional[Tuple[int, int]]:
    """Height and width that the test pipeline gives to every image, None if they depend on the image."""
    held = None if from_files(steps) else _held_size(cfg)
    tried = ((held, held),) if held else ((300, 400), (410, 310))
    after = [step for step in steps if type_name(step) != 'LoadImageFromFile']
    scope(cfg)
    sizes = set()
    try:
        transform = Compose([TRANSFORMS.build(dict(step)) for step in after])
        for height, width in tried:
            data = dict(img=np.zeros((height, width, 3), np.uint8), img_shape=(height, width))
            sizes.add(tuple(transform(dict(data, ori_shape=(height, width)))['inputs'].shape[-2:]))
    except Exception as error:
        raise UserValueError(f'the test pipeline of the config fails on an image: {one_line(error)}') from error
    return sizes.pop() if len(sizes) == 1 else None


def _held_size(cfg: Config) -> Optional[int]:
    """Side of the images of a data set that holds its pixels, where it is known."""
    part = 'test_dataloader' if cfg.get('test_dataloader') else 'val_dataloader'
    found = [dataset for dataset, _ in datasets(cfg[part].dataset)]
    kind = dataset_class(found[0], cfg.get('default_scope') or 'mmpretrain') if found else None
    return next((SIZES[each.__name__] for each in getattr(kind, '__mro__', ()) if each.__name__ in SIZES), None)


class Reader:
    """Reads image files as the test of a config does.

    Args:
        cfg: The config.

    Call it with a file: uint8, shape ``(H, W, 3)``, channels as the data preprocessor takes them. A file that is no
    complete image is a :class:`~mmrm.datasets.images.BrokenImageError`.
    """

    def __init__(self, cfg: Config):
        scope(cfg)
        steps = known_steps(cfg)
        self.rgb = not from_files(steps)  # data sets that hold their pixels have them in RGB
        first = []
        if self.rgb:
            held = _held_size(cfg)
            resize = [dict(type='Resize', scale=(held, held), interpolation='area')] if held else []
            first = [dict(type='LoadImageFromFile'), *resize]
        build = [[TRANSFORMS.build(dict(step)) for step in each] for each in (first, steps)]
        self.first, self.transform = map(Compose, build)

    def __call__(self, file: Union[str, Path]) -> np.ndarray:
        problem = inspect_image(file).problem
        if problem:
            raise BrokenImageError(f'image {file} {problem}.')
        data = self.first(dict(img_path=str(file)))
        if self.rgb:
            data['img'] = data['img'][..., ::-1].copy()
        return self.transform(data)['inputs'].permute(1, 2, 0).numpy()

    def to_rgb(self, image: np.ndarray) -> np.ndarray:
        """What was read, as people see it."""
        return image if self.rgb else image[..., ::-1].copy()


def normalise(image: np.ndarray, model: torch.nn.Module) -> torch.Tensor:
    """One image that :class:`Reader` read as the network takes it: ``(1, 3, H, W)``, on its device."""
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
    return model.data_preprocessor(dict(inputs=[pixels], data_samples=None), training=False)['inputs']


def read_batches(dataset, size: int, seed: int) -> Iterator[dict]:
    """Endless batches of a data set in an order drawn from ``seed``, as a data loader gives them."""
    if len(dataset) < size:
        raise UserValueError(f'a batch of {size} images from a data set of {len(dataset)}.')
    order, drawn = [], np.random.RandomState(seed)
    while True:
        while len(order) < size:
            order += drawn.permutation(len(dataset)).tolist()
        taken, order = order[:size], order[size:]
        items = [dataset[index] for index in taken]
        yield dict(inputs=[item['inputs'] for item in items], data_samples=[item['data_samples'] for item in items])
