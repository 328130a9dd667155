"""Before a run of days: does the config build, do its weights arrive, is its data there?"""

import copy
import logging
from pathlib import Path
from typing import List, NamedTuple, Optional, Union

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from mmengine.registry import HOOKS, MODELS, init_default_scope

from ..datasets.locate import find_data
from ..engine.classes import build_lazily, check_classes, model_classes
from ..models.regularisers import bind_augments, unbind_augments
from ..utils import paths
from ..utils.config import dataset_class, datasets, read_config, type_name
from ..utils.errors import UserError, one_line
from ..weights.provenance import tensor_hash
from ..weights.strict import StrictPretrained, check_placement, strict_parts
from .images import check_images


class Report(NamedTuple):
    """Args:
    facts (list[str]): What was found, a line each.
    problems (list[str]): What would stop the run or spoil it.
    """

    facts: List[str]
    problems: List[str]


def check(
    config: Union[str, Path], options: Optional[dict] = None, images: bool = False, jobs: Optional[int] = None
) -> Report:
    """Build and initialise the model of a config as a run would, and look at its data, without training.

    Args:
        config (str | Path): The config file.
        options (dict, optional): ``{'a.b': value}``, as with ``--cfg-options``. Defaults to None.
        images (bool): Whether to decode every image of the data, too. Defaults to False.
        jobs (int, optional): How many at a time. Defaults to None, one a core.

    Raises:
        UserError: If the config itself cannot be read.
    """
    config = paths.find_config(config)
    cfg = read_config(config, options)
    report = Report([f'config      {config}'], [])
    scope = cfg.get('default_scope', 'mmengine')
    if scope is not None:  # a config in pure Python has none, and mmengine's Runner sets none
        init_default_scope(scope)
    _check_model(cfg, report)
    found = copy.deepcopy(cfg)
    find_data(found, ())
    _check_classes(found, report)
    _check_data(cfg, report)
    _check_sums(found, report)
    _tell_recipe(cfg, report)
    if images:
        check_images(found, report.facts, report.problems, jobs)
    return report


def _check_model(cfg: Config, report: Report) -> None:
    if not cfg.get('model'):
        report.problems.append('the config has no model: is it a part of a config (configs/_base_)?')
        return
    # mmengine logs every parameter's origin when there is no log file.
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        model = MODELS.build(cfg.model)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        report.facts.append(f'model       {type(model).__name__}, {parameters:,} parameters')
        check_placement(model)
        _check_layers(cfg, model)
        _check_weights(model, report)
    except UserError as error:
        report.problems.append(f'model: {error}')
    except Exception as error:  # whatever a class of the config raises
        report.problems.append(f'model: {one_line(error)}')
    finally:
        logger.setLevel(level)


def _check_layers(cfg: Config, model: BaseModule) -> None:
    """Raise if a regulariser names a layer that the backbone does not have."""
    bind_augments(model)
    unbind_augments(model)
    for hook in cfg.get('custom_hooks') or []:
        if type_name(hook) == 'DropBlockHook':
            HOOKS.build(dict(hook)).attach(copy.deepcopy(model))


def _check_weights(model: BaseModule, report: Report) -> None:
    strict = list(strict_parts(model))
    # A part that is to be filled strictly must not load by itself: StrictPretrained says so.
    known = [part for _, part, _ in strict]
    known += [getattr(part, config.get('module', 'backbone'), None) for _, part, config in strict]
    lenient = [
        name or 'model'
        for name, module in model.named_modules()
        if 'checkpoint' in str(getattr(module, 'init_cfg', None) or '') and all(module is not part for part in known)
    ]
    if lenient:
        report.problems.append(
            f'weights: {", ".join(lenient)} loads leniently, only warning of what does not fit. '
            'Use StrictPretrained in model.init_cfg'
        )
    elif not strict:
        report.facts.append('weights     from scratch')
    if not strict:
        return
    filled = []
    for _, module, config in strict:
        initializer = StrictPretrained(**{key: value for key, value in config.items() if key != 'type'})
        filled.append((getattr(module, initializer.module, module), initializer(module)))
        report.facts.append(f'weights     {filled[-1][1]}')
    # As the runner does it: whatever else initialises, the backbone must still be the file's.
    model.init_weights()
    for backbone, loaded in filled:
        if tensor_hash(backbone.state_dict()) != loaded.sha256:
            report.problems.append('weights: the backbone differs from the file after the model was initialised')
        else:
            report.facts.append(
                f"            all {loaded.tensors} tensors of the backbone equal the file's, bit for bit"
            )
        if getattr(backbone, 'style', None) == 'caffe' and getattr(backbone, 'depth', 0) >= 50:
            report.problems.append(
                "weights: the backbone has style='caffe', another network with the same tensors. "
                "Weights of mmrm, of RecursiveMix's authors and of torchvision need "
                "style='pytorch', RGB, and their mean and std in the data preprocessor"
            )


def _check_classes(cfg: Config, report: Report) -> None:
    verdict = check_classes(cfg)
    heads = sorted(set(model_classes(cfg).values()))
    if verdict.problems:
        report.problems.append(verdict.text())
    if heads:
        report.facts.append(f'classes     {", ".join(map(str, heads))}')
    report.facts.extend(f'note        {warning}' for warning in verdict.warnings)


def _check_data(cfg: Config, report: Report) -> None:
    for part in ('train', 'val', 'test'):
        loader = cfg.get(f'{part}_dataloader') or {}
        wanted = []
        for dataset, _ in datasets(loader.get('dataset')):
            wanted += _paths_of(dataset, cfg.get('default_scope'))
        metrics = cfg.get(f'{part}_evaluator') or []
        for metric in metrics if isinstance(metrics, (list, tuple)) else [metrics]:
            if metric.get('ann_file'):
                wanted.append(metric['ann_file'])
        wanted = list(dict.fromkeys(str(path) for path in wanted))
        missing = [path for path in wanted if '://' not in path and not paths.find(path).exists()]
        if missing:
            report.problems.append(f'{part} data: not there: {", ".join(missing)}')
        if wanted:
            there = len(wanted) - len(missing)
            report.facts.append(f'{part:5} data  {there} of {len(wanted)} paths are there: {", ".join(wanted)}')


def _check_sums(cfg: Config, report: Report) -> None:
    """Of CIFAR, whose files have known checksums; each folder is looked at once."""
    seen = set()
    for part in ('train', 'val', 'test'):
        for config, _ in datasets((cfg.get(f'{part}_dataloader') or {}).get('dataset')):
            dataset = build_lazily(config, cfg.get('default_scope'))
            if not hasattr(dataset, '_check_integrity'):
                continue
            folder = Path(dataset.data_prefix['root']) / dataset.base_folder
            if folder in seen or not folder.exists():  # said above
                continue
            seen.add(folder)
            try:
                whole = dataset._check_integrity()
            except UserError as error:
                report.problems.append(f'{part} data: {error}')
                continue
            if not whole and getattr(dataset, 'download', False):
                report.facts.append(f'note        {folder} is not whole: training will download it anew')
            elif not whole:
                report.problems.append(
                    f'{part} data: {folder} is not whole: files are missing or have another checksum'
                )


def _paths_of(dataset: dict, scope: Optional[str]) -> list:
    """The folders and files that a data set's config names, joined as its class will."""
    root = dataset.get('data_root') or ''
    if '://' in str(root):
        return []
    prefix = dataset.get('data_prefix')
    names = [name for name in (prefix.values() if isinstance(prefix, dict) else [prefix]) if name]
    if dataset.get('split') and not names:  # mmpretrain's CIFAR has a folder for all splits, its ImageNet one for each
        names = [getattr(dataset_class(dataset, scope), 'base_folder', dataset['split'])]
    names += [dataset['ann_file']] if dataset.get('ann_file') else []
    return [Path(root) / name for name in names] or ([root] if root else [])


def _tell_recipe(cfg: Config, report: Report) -> None:
    optimizer = (cfg.get('optim_wrapper') or {}).get('optimizer')
    loader = cfg.get('train_dataloader') or {}
    if optimizer:
        values = ', '.join(f'{key} {value}' for key, value in optimizer.items() if key != 'type')
        report.facts.append(f'optimizer   {type_name(optimizer)}: {values}')
    if loader.get('batch_size'):
        total = (cfg.get('auto_scale_lr') or {}).get('base_batch_size')
        whole = f'; the learning rate is meant for {total} in all' if total else ''
        report.facts.append(f'batch       {loader["batch_size"]} a process{whole}')
    length = cfg.get('train_cfg') or {}
    for key in ('max_epochs', 'max_iters'):
        if length.get(key):
            report.facts.append(f'length      {length[key]} {key[4:]}')
