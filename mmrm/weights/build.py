"""Models of configs and of runs: built, filled with weights, with the names of their classes."""

import copy
import importlib
from pathlib import Path
from typing import List, NamedTuple, Optional, Union

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from ..core import ROI_LAYER
from ..utils import paths
from ..utils.config import number_of_classes, preprocessor_of, read_config, require, type_name
from ..utils.errors import UserError, UserFileError, UserValueError, one_line
from ..utils.settings import parse_config
from . import classifiers, find_checkpoint
from .provenance import Weights, read_weights
from .strict import UNUSED_IN_TEST, load_weights


def build(config: Union[str, Path]) -> torch.nn.Module:
    """The model of a config of any toolbox, not initialised; its config is ``model.cfg``."""
    path = paths.find_config(config)
    cfg = read_config(path)
    require(cfg, path, 'model')
    model = build_model(cfg)
    model.cfg = cfg
    return model


def build_model(cfg: Config) -> torch.nn.Module:
    """The model of a config that was read, without mmengine's chatter."""
    if type_name(cfg.model) == 'ImageClassifier':
        return classifiers.build_model(cfg)
    scope = cfg.get('default_scope') or 'mmpretrain'
    importlib.import_module(f'{scope}.models')
    init_default_scope(scope)
    model = copy.deepcopy(cfg.model)
    if preprocessor_of(cfg):
        model.data_preprocessor = copy.deepcopy(preprocessor_of(cfg))
    return MODELS.build(model)


def load(model: torch.nn.Module, file: Path) -> None:
    """Fill a model from a file: all of it, but for what serves training only."""
    load_weights(model, str(file), unused=UNUSED_IN_TEST)


class Run(NamedTuple):
    """A trained classifier.

    Args:
        model (nn.Module): In eval mode.
        cfg (Config): Its config.
        weights (Weights): Its checkpoint, read.
        classes (list[str]): The names of its classes; 'class 0' and so on where nothing names them.
        folder (Path, optional): Its run's folder, where there is one.
    """

    model: torch.nn.Module
    cfg: Config
    weights: Weights
    classes: List[str]
    folder: Optional[Path]

    @property
    def checkpoint(self) -> Path:
        return self.weights.file


def open_run(source: Union[str, Path], config: Optional[Union[str, Path]] = None, device: str = 'cpu') -> Run:
    """The classifier of a run.

    Args:
        source: A run's folder (its best checkpoint, else its last) or a checkpoint.
        config: Its config. None: what the checkpoint carries, read and not executed; else the one beside it.
        device: Where to put it.

    Raises:
        UserFileError: If there is no checkpoint, or it does not fit the config.
        UserValueError: If nothing says what network it is, or it is no classifier.
    """
    file = Path(find_checkpoint(source))
    weights = read_weights(file)
    cfg = find_settings(weights, config)
    kind = type_name(cfg.get('model') or {})
    if kind != 'ImageClassifier':
        raise UserValueError(f'{file} is not a classifier: its model is {kind or "not named"}, not ImageClassifier.')
    try:
        model = classifiers.build_model(cfg)
    except UserError:
        raise
    except Exception as error:
        raise UserFileError(
            f'the network of {file} cannot be built: {one_line(error)} Give its config: --config FILE.'
        ) from error
    load(model, file)
    folder = file.parent if paths.find(source).is_dir() or (file.parent / 'last_checkpoint').exists() else None
    return Run(model.to(device).eval(), cfg, weights, class_names(weights, cfg), folder)


def find_settings(weights: Weights, config: Optional[Union[str, Path]] = None) -> Config:
    """The config of a checkpoint: the one given, that in the file (never executed), or the only one beside it."""
    if config is not None:
        return classifiers.load_config(config)
    carried = parse_config(str(weights.meta.get('cfg') or '')) or {}
    if isinstance(carried.get('model'), dict):
        return Config(carried)
    beside = sorted(weights.file.parent.glob('*.py'))
    if len(beside) == 1:
        return classifiers.load_config(beside[0])
    found = f'{len(beside)} configs beside it' if beside else 'no config beside it'
    raise UserValueError(f'{weights.file} carries no config, and there is {found}: give --config FILE.')


def class_names(weights: Weights, cfg: Config) -> List[str]:
    """The names of a classifier's classes, numbers where the checkpoint has none."""
    number = number_of_classes(cfg)
    meta = weights.meta.get('dataset_meta')
    names = (meta.get('classes') or meta.get('CLASSES')) if isinstance(meta, dict) else None
    if isinstance(names, (list, tuple)) and len(names) == number:
        return [str(name) for name in names]
    return [f'class {index}' for index in range(number)]


def without_region_branch(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a classifier as it is deployed: without the layers that serve RM's consistency in training."""
    model = copy.deepcopy(model)
    head = getattr(model, 'head', None)
    if head is not None and hasattr(head, ROI_LAYER):
        delattr(head, ROI_LAYER)
        head.omega = 0
    return model.eval()


def count_parameters(model: torch.nn.Module) -> int:
    """Of the classifier as it is deployed."""
    parts = model.named_parameters()
    return sum(tensor.numel() for name, tensor in parts if f'.{ROI_LAYER}.' not in f'.{name}')
