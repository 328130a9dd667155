"""What a classifier takes: size, channels, mean and standard deviation, and how an image file becomes that."""

import json
import tempfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmpretrain.registry import MODELS
from PIL import Image

from ..datasets.images import BrokenImageError, inspect_image
from ..utils.config import dataset_class, datasets, preprocessor_of, test_steps, type_name
from ..utils.errors import UserError, UserValueError, one_line
from ..utils.figures import channel_order
from .build import registered_only, scope

SIZES = {'CIFAR10': 32, 'CIFAR100': 32}  # of data sets that hold their pixels


class Input(NamedTuple):
    """What goes into a network.

    Args:
        size (tuple[int, int], optional): Height and width in pixels; None if images keep their own.
        mean, std (list[float], optional): Per channel, of pixels from 0 to 255; None if nothing is normalised.
        order (str): 'rgb' or 'bgr': of the channels that the network gets, mean and std likewise.
        steps (list[dict]): The test pipeline, as in the config; before it what resizes a file to the size of a data set
            that holds its pixels.
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

    def step(self, *names: str) -> dict:
        """The first transform of one of these types; empty if there is none."""
        return next((step for step in self.steps if step.get('type') in names), {})


def describe_input(cfg: Config, size: Optional[Tuple[int, int]] = None) -> Input:
    """What the classifier of a config takes in a test.

    Args:
        cfg: Its config.
        size: Height and width, for a config that does not fix them. None: found out.
    """
    reader, settings = Reader(cfg), preprocessor_of(cfg)
    order = channel_order(cfg, MODELS.build({'type': 'ClsDataPreprocessor', **settings}))
    sizes = {reader.read_blank(size).shape[:2] for size in ((400, 300), (310, 410))}
    fixed = sizes.pop() if len(sizes) == 1 else None
    mean, std = (settings.get(key) and [float(value) for value in settings[key]] for key in ('mean', 'std'))
    return Input(size or fixed, mean, std, order, [_plain(step) for step in reader.steps])


def _plain(step) -> dict:
    """A transform of a config in values that JSON knows."""
    return {**json.loads(json.dumps(dict(step), default=str)), 'type': type_name(step)}


class Reader:
    """Reads image files as the test of a config does.

    Args:
        cfg: The config.

    Call it with a file: uint8, shape ``(H, W, 3)``, channels as the data preprocessor takes them. A file that is no
    complete image is a :class:`~mmrm.datasets.images.BrokenImageError`.
    """

    def __init__(self, cfg: Config):
        scope(cfg)
        self.cfg, self.steps, self.load = cfg, test_steps(cfg), None
        if self.steps is None:
            raise UserValueError('the config has neither test_dataloader nor val_dataloader.')
        try:
            self.transform = registered_only(cfg)(Compose)(self.steps)
            try:
                self.read_blank()
            except KeyError:  # it reads no file: the data set holds pixels, in RGB
                held = _held_size(cfg)
                resize = [dict(type='Resize', scale=(held, held), interpolation='area')] if held else []
                first = [dict(type='LoadImageFromFile'), *resize]
                self.load, self.steps = Compose(first), [*first, *self.steps]
                self.read_blank()
        except UserError:
            raise
        except Exception as error:
            raise UserValueError(f'the test pipeline of the config fails on an image: {one_line(error)}') from error
        self.order = channel_order(cfg)

    def __call__(self, file: Union[str, Path]) -> np.ndarray:
        problem = inspect_image(file).problem
        if problem:
            raise BrokenImageError(f'image {file} {problem}.')
        data = dict(img_path=str(file))
        if self.load:
            data = self.load(data)
            data['img'] = data['img'][..., ::-1].copy()
        return registered_only(self.cfg)(self.transform)(data)['inputs'].permute(1, 2, 0).numpy()

    def read_blank(self, size: Tuple[int, int] = (400, 300)) -> np.ndarray:
        """What it reads from a black image of this width and height."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / 'blank.png'
            Image.new('RGB', size).save(file)
            return self(file)

    def to_rgb(self, image: np.ndarray) -> np.ndarray:
        """What was read, as people see it."""
        return image if self.order == 'rgb' else image[..., ::-1].copy()


def _held_size(cfg: Config) -> Optional[int]:
    """Side of the images of a data set that holds its pixels, where it is known."""
    part = 'test_dataloader' if cfg.get('test_dataloader') else 'val_dataloader'
    found = [dataset for dataset, _ in datasets(cfg[part].dataset)]
    kind = dataset_class(found[0], cfg.get('default_scope') or 'mmpretrain') if found else None
    return next((SIZES[each.__name__] for each in getattr(kind, '__mro__', ()) if each.__name__ in SIZES), None)


def normalise(image: np.ndarray, preprocessor: torch.nn.Module) -> torch.Tensor:
    """One image that :class:`Reader` read as the network takes it: ``(1, 3, H, W)``, on the preprocessor's device."""
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
    return preprocessor(dict(inputs=[pixels], data_samples=None), training=False)['inputs']
