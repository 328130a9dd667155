"""Reading mmengine's configs, and finding things in them."""

import traceback
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Tuple

from mmengine.config import Config
from mmengine.registry import DATASETS

from .errors import UserError, UserFileError, UserValueError, one_line
from .options import TOP_LEVEL, misspelt_keys
from .processes import is_reporting_process, warn

PARTS = ('train', 'val', 'test')


def read_config(path: Path, options: Optional[dict] = None) -> Config:
    """Read a config file and merge ``options`` (``{'a.b': value}``) into it; warn of unknown ones."""
    try:
        cfg = Config.fromfile(path)
    except UserError:
        raise
    except Exception as error:
        raise UserFileError(f'config {path} cannot be read: {one_line(error)}{config_line(error)}') from error
    _check_preprocessor_options(cfg, path, options or {})
    for part in {key.partition('.')[0] for key in options or {}} - set(cfg) - TOP_LEVEL:
        warn(f'--cfg-options {part}: the config has no {part}. It is added; perhaps nothing reads it.')
    try:
        cfg.merge_from_dict(options or {})
    except Exception as error:
        raise UserValueError(f'--cfg-options {options} does not fit config {path}: {one_line(error)}') from error
    for key, meant in misspelt_keys(cfg) if is_reporting_process() else ():
        warn(f'config {path}: nothing reads {key}. Did you mean {meant}?')
    cfg.resume, cfg.load_from = bool(cfg.get('resume')), cfg.get('load_from')
    return cfg


def _check_preprocessor_options(cfg: Config, path: Path, options: dict) -> None:
    """Raise if an option would make a second preprocessor: the model's own hides the one beside it."""
    beside, inside = 'data_preprocessor.', 'model.data_preprocessor.'
    right, wrong = (beside, inside) if preprocessor_is_beside(cfg) else (inside, beside)
    for key in options:
        if key.startswith(wrong) and (right == beside or (cfg.get('model') or {}).get('data_preprocessor')):
            raise UserValueError(f'--cfg-options {key}: in config {path} it is {right}{key[len(wrong) :]}')


def config_line(error: BaseException) -> str:
    """`` (file, line N)`` of the config statement that raised ``error``; '' if it was none."""
    statements = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name == '<module>']
    return f' ({statements[-1].filename}, line {statements[-1].lineno})' if statements else ''


def require(cfg: Config, config: Path, *fields: str) -> None:
    """Raise unless the config has all ``fields``."""
    missing = [field for field in fields if cfg.get(field) is None]
    if missing:
        raise UserValueError(f'config {config} has no {", ".join(missing)}: is it a part of a config (configs/_base_)?')


def type_name(node: dict) -> str:
    """The class that a config node is for, without its scope; '' if it names none."""
    kind = node.get('type', '')
    return getattr(kind, '__name__', str(kind)).rpartition('.')[2]


def preprocessor_of(cfg: Config) -> dict:
    """The config of the data preprocessor: that of the model, else, as in mmengine's Runner, that beside it."""
    return cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}


def preprocessor_is_beside(cfg: Config) -> bool:
    """Whether a config has its data preprocessor beside the model and none in it."""
    return bool(cfg.get('data_preprocessor')) and not (cfg.get('model') or {}).get('data_preprocessor')


def number_of_classes(cfg: Config) -> int:
    """As the head or the preprocessor of a config says."""
    for node in (cfg.model.get('head') or {}, preprocessor_of(cfg)):
        if isinstance(node.get('num_classes'), int):
            return node['num_classes']
    raise UserValueError('the config does not set the number of classes (model.head.num_classes).')


def checkpoint_out_dir(cfg: Config) -> Optional[str]:
    """``out_dir`` of a config's CheckpointHook, if it has one."""
    return ((cfg.get('default_hooks') or {}).get('checkpoint') or {}).get('out_dir')


def datasets(node, field: str = '') -> Iterator[Tuple[dict, str]]:
    """The data sets in ``node`` and its wrappers (ConcatDataset, RepeatDataset), each with its place in the config,
    as ``--cfg-options`` takes it."""
    if isinstance(node, (list, tuple)):
        for index, item in enumerate(node):
            yield from datasets(item, f'{field}.{index}')
    elif isinstance(node, dict):
        inner = [key for key in ('dataset', 'datasets') if key in node]
        for key in inner:
            yield from datasets(node[key], f'{field}.{key}')
        if not inner:
            yield node, field


def loader_datasets(cfg: Config, parts: Sequence[str] = PARTS) -> Iterator[Tuple[str, dict, str]]:
    """The data sets of a config's loaders: the part ('train', 'val' or 'test'), the config, its place in the config."""
    for part in parts:
        loader = cfg.get(f'{part}_dataloader') or {}
        for dataset, field in datasets(loader.get('dataset'), f'{part}_dataloader.dataset'):
            yield part, dataset, field


def dataset_class(dataset: dict, scope: Optional[str]) -> Optional[type]:
    """The class of a data set's config, None if no registry has it."""
    kind = dataset.get('type')
    if isinstance(kind, str):
        with DATASETS.switch_scope_and_registry(dataset.get('_scope_', scope)) as registry:
            kind = registry.get(kind)
    return kind


def test_steps(cfg: Config) -> Optional[List[dict]]:
    """The test pipeline of a config, that of validation where there is no other; None without either."""
    part = next((part for part in ('test', 'val') if cfg.get(f'{part}_dataloader')), None)
    return [dict(step) for step in pipeline_of(cfg, part)] if part else None


def pipeline_of(cfg: Config, part: str) -> List[dict]:
    """The transforms of a part's data set, those of the first one if it wraps several."""
    found = [dataset for _, dataset, _ in loader_datasets(cfg, (part,))]
    return list(found[0].get('pipeline') or []) if found else []
