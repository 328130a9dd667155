"""Where the data of a config is."""

import inspect
from pathlib import Path
from typing import Optional, Sequence

from mmengine.config import Config

from ..utils import paths
from ..utils.config import PARTS, dataset_class, loader_datasets
from ..utils.errors import UserFileError


def find_data(cfg: Config, used: Sequence[str]) -> None:
    """Look up the relative paths of all data sets from the current folder, then from :func:`mmrm.utils.paths.home`.

    Args:
        cfg: The config; its paths are replaced.
        used: Which of 'train', 'val' and 'test' this run reads; their data must exist.
    """
    for part, dataset, field in loader_datasets(cfg):
        for key in ('data_root',) if dataset.get('data_root') else ('data_prefix', 'ann_file'):
            find_path(dataset, key, field, part in used, downloads(dataset, cfg.get('default_scope')))
    for part in PARTS:
        metrics = cfg.get(f'{part}_evaluator') or []
        for metric in metrics if isinstance(metrics, (list, tuple)) else [metrics]:
            if isinstance(metric, dict):
                find_path(metric, 'ann_file', f'{part}_evaluator', part in used)


def find_path(node: dict, key: str, field: str, required: bool, to_download: bool = False) -> None:
    """Replace the path (or the dict of paths) ``node[key]`` by where it is, or by where it is to be downloaded."""
    path = node.get(key)
    if isinstance(path, dict):
        for name in path:
            find_path(path, name, f'{field}.{key}', required, to_download)
    if not isinstance(path, str) or not path or '://' in path:
        return
    found = paths.find(path)
    if not found.exists():
        if to_download:
            found = paths.home() / path
        elif required:
            get = ' (python tools/get_cifar10.py downloads it)' if Path(path).name == 'cifar10' else ''
            raise UserFileError(
                f'{field}.{key} = {path!r} does not exist{paths.looked_in(path)}. Put the data or a '
                f'link there{get}, or set the path: --cfg-options {field}.{key}=PATH'
            )
    if found.exists() or to_download:
        node[key] = path if found == Path(path) else str(found)


def downloads(dataset: dict, scope: Optional[str]) -> bool:
    """Whether a data set fetches itself when it is missing (mmpretrain's CIFAR does)."""
    kind = dataset_class(dataset, scope)
    if kind is None:  # the registry's own error comes when it is built
        return False
    parameter = inspect.signature(kind).parameters.get('download')
    return parameter is not None and bool(dataset.get('download', parameter.default))
