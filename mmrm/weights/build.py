"""Models of configs and of runs: built, filled with weights, with the names of their classes."""

import copy
import importlib
from pathlib import Path
from typing import List, NamedTuple, Optional, Union

import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import MODELS, init_default_scope
from mmengine.utils import import_modules_from_strings

from ..core import ROI_LAYER
from ..datasets.locate import find_data
from ..utils import paths
from ..utils.config import number_of_classes, preprocessor_of, read_config, require, type_name
from ..utils.errors import UserError, UserFileError, UserValueError, one_line, printable
from ..utils.settings import parse_config
from ..utils.trust import ForeignConfig, is_trusted, read_foreign_config, registered_only
from .provenance import Weights, read_weights
from .runs import find_checkpoint
from .strict import UNUSED_IN_TEST, load_weights


def load_config(config: Union[str, Path], options: Optional[dict] = None, part: Optional[str] = None) -> Config:
    """Read the config of a classifier.

    Args:
        config (str | Path): From the current folder, the checkout or its configs/.
        options (dict, optional): Settings that replace those of the config, ``{'a.b': value}``.
        part (str, optional): 'train', 'val' or 'test': the data that must be there. Defaults to None.

    Raises:
        UserFileError: If the config or the data is missing.
        UserValueError: If it is not the config of a classifier.
    """
    path = paths.find_config(config)
    cfg = read_config(path, options)
    require(cfg, path, 'model', *([f'{part}_dataloader'] if part else []))
    check_is_classifier(cfg, f'config {path}')
    if part:
        find_data(cfg, (part,))
    return cfg


def check_is_classifier(cfg: Config, source: str) -> None:
    """Raise unless the model of a config is an ImageClassifier."""
    kind = type_name(cfg.get('model') or {})
    if kind != 'ImageClassifier':
        raise UserValueError(f'{source} is not a classifier: its model is {kind or "not named"}, not ImageClassifier.')


def scope(cfg: Config) -> None:
    """Make the toolbox of a config the default scope of mmengine's registries, with its models registered."""
    name = cfg.get('default_scope') or 'mmpretrain'
    importlib.import_module(f'{name}.models')
    init_default_scope(name)


def build_model(cfg: Config) -> torch.nn.Module:
    """The model of a config of any toolbox, not initialised; mmengine logs nothing but warnings meanwhile."""
    scope(cfg)
    model = copy.deepcopy(cfg.model)
    if preprocessor_of(cfg):
        model.data_preprocessor = copy.deepcopy(preprocessor_of(cfg))
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel('WARNING')
    try:
        return registered_only(cfg)(MODELS.build)(model)
    finally:
        logger.setLevel(level)


def build(config: Union[str, Path]) -> torch.nn.Module:
    """The model of a config file of any toolbox, not initialised; its config is ``model.cfg``."""
    path = paths.find_config(config)
    cfg = read_config(path)
    require(cfg, path, 'model')
    model = build_model(cfg)
    model.cfg = cfg
    return model


def load(model: torch.nn.Module, file: Path) -> None:
    """Fill a model from a file: all of it, but for what serves training only."""
    load_weights(model, str(file), unused=UNUSED_IN_TEST)


def choose_device(asked: Optional[str] = None) -> str:
    """'cuda' if there is one, unless the CPU was asked for."""
    if asked == 'cuda' and not torch.cuda.is_available():
        raise UserValueError('--device cuda: torch.cuda.is_available() is false.')
    return asked or ('cuda' if torch.cuda.is_available() else 'cpu')


class Run(NamedTuple):
    """A trained classifier.

    Args:
        model (nn.Module): In eval mode.
        cfg (Config): Its config.
        weights (Weights): Its checkpoint, read.
        classes (list[str]): The names of its classes; 'class 0' and so on where nothing names them.
    """

    model: torch.nn.Module
    cfg: Config
    weights: Weights
    classes: List[str]

    @property
    def checkpoint(self) -> Path:
        return self.weights.file


def open_run(source: Union[str, Path], config: Optional[Union[str, Path]] = None, device: str = 'cpu') -> Run:
    """The classifier of a run.

    Args:
        source: A run's folder (its best checkpoint, else its last) or a checkpoint.
        config: Its config. None: what the checkpoint carries, read and not executed; else the one next to it.
        device: Where to put it.

    Raises:
        UserFileError: If there is no checkpoint, or it does not fit the config.
        UserValueError: If nothing says what network it is, or it is not a classifier.
    """
    weights = read_weights(find_checkpoint(source))
    cfg = config_of(weights, config)
    check_is_classifier(cfg, str(weights.file))
    try:
        model = build_model(cfg)
    except UserError:
        raise
    except Exception as error:
        raise UserFileError(
            f'the network of {weights.file} cannot be built: {one_line(error)} Give its config: --config FILE.'
        ) from error
    load(model, weights.file)
    return Run(model.to(device).eval(), cfg, weights, class_names(weights, cfg))


def config_of(weights: Weights, config: Optional[Union[str, Path]] = None) -> Config:
    """The config of a checkpoint: the one given, that in the file (never executed), or the only one next to it."""
    if config is not None:
        return load_config(config)
    carried = parse_config(str(weights.meta.get('cfg') or '')) or {}
    if isinstance(carried.get('model'), dict):
        if is_trusted() and carried.get('custom_imports'):
            import_modules_from_strings(**carried['custom_imports'])
        return ForeignConfig(carried, f'checkpoint {weights.file}')
    files = sorted(weights.file.parent.glob('*.py'))
    if len(files) == 1:
        return read_foreign_config(files[0])
    raise UserValueError(
        f'{weights.file} has no config, and there are {len(files)} configs next to it: give --config FILE.'
    )


def class_names(weights: Weights, cfg: Config) -> List[str]:
    """The names of a classifier's classes, numbers where the checkpoint has none."""
    number = number_of_classes(cfg)
    meta = weights.meta.get('dataset_meta')
    names = (meta.get('classes') or meta.get('CLASSES')) if isinstance(meta, dict) else None
    if isinstance(names, (list, tuple)) and len(names) == number:
        return [' '.join(printable(str(name)).split()) for name in names]
    return [f'class {index}' for index in range(number)]


def without_region_branch(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a classifier as it is deployed: without the layers that serve RM's consistency in training."""
    model = copy.deepcopy(model)
    head = getattr(model, 'head', None)
    if head is not None and hasattr(head, ROI_LAYER):
        delattr(head, ROI_LAYER)
        head.omega = 0
    return model.eval()
