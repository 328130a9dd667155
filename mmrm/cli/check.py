"""Check a config before a long run: model, weights, classes, data and, with --data, every image."""

import collections
import copy
import functools
import logging
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Union

from ..utils import paths
from ..utils.errors import UserError, abbreviate, cli, one_line, printable
from .options import Parser


class Report(NamedTuple):
    """Args:
    facts (list[str]): What was found, a line each.
    problems (list[str]): What would stop the run or make its result wrong.
    """

    facts: List[str]
    problems: List[str]


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm check', description=__doc__, allow_abbrev=False)
    parser.add_argument('config', help='config file, from the current folder, the checkout or its configs/')
    parser.add_cfg_options('settings that replace those of the config, e.g. model.init_cfg.checkpoint=FILE')
    parser.add_argument('--data', action='store_true', help='decode every image, and list the broken ones')
    args = parser.parse_args(argv)
    report = check(args.config, args.cfg_options, args.data)
    print(printable('\n'.join(report.facts)), flush=True)
    if report.problems:
        raise UserError(f'{len(report.problems)} problem(s)\n- ' + '\n- '.join(report.problems))
    from mmengine.device import get_device

    print(f'ready\nnext        mmrm train {args.config}{" --device cpu" if get_device() == "cpu" else ""}')


def check(config: Union[str, Path], options: Optional[dict] = None, images: bool = False) -> Report:
    """Build and initialise the model of a config as a run would, and look at its data, without training.

    Args:
        config (str | Path): The config file.
        options (dict, optional): ``{'a.b': value}``, as with ``--cfg-options``. Defaults to None.
        images (bool): Whether to decode every image of the data, too. Defaults to False.

    Raises:
        UserError: If the config itself cannot be read.
    """
    from mmengine.registry import init_default_scope

    from ..datasets.locate import find_data
    from ..engine.classes import check_classes, model_classes
    from ..engine.runner import build_hooks, check_randomness
    from ..utils.config import read_config
    from ..utils.options import misspelt_keys
    from . import preflight

    config = paths.find_config(config)
    cfg = read_config(config, options)
    report = Report([f'config      {config}'], [])
    for key, meant in misspelt_keys(cfg):
        line = f'nothing reads {key}: did you mean {meant}?'
        report.facts.append(f'note        {line}') if '.' in key else report.problems.append(line)
    scope = cfg.get('default_scope', 'mmengine')
    if scope is not None:  # a config in pure Python has none, and mmengine's Runner sets none
        init_default_scope(scope)
    _check_model(cfg, report)
    try:
        if cfg.get('train_cfg') and cfg.get('optim_wrapper'):
            preflight.check_config(cfg)
        build_hooks(cfg)
        check_randomness(cfg.get('randomness') or {})
    except Exception as error:  # whatever a class of the config raises
        report.problems.append(str(error) if isinstance(error, UserError) else f'hooks: {one_line(error)}')
    found = copy.deepcopy(cfg)
    find_data(found, ())
    classes = check_classes(found)
    if classes.problems:
        report.problems.append(classes.text())
    report.facts.append(f'classes     {", ".join(map(str, sorted(set(model_classes(found).values())))) or "not named"}')
    report.facts.extend(f'note        {warning}' for warning in classes.warnings)
    _check_paths(cfg, report)
    if images:
        _check_images(found, report)
    return report


# ----------------------------------------------------------------------------------------------------------- the model
def _check_model(cfg, report: Report) -> None:
    from mmengine.logging import MMLogger
    from mmengine.registry import HOOKS

    from ..models.check_parts import check_head_norm
    from ..models.regularisers import bind_augments, unbind_augments
    from ..utils.config import type_name
    from ..weights.build import build_model
    from ..weights.strict import check_placement
    from . import preflight

    if not cfg.get('model'):
        report.problems.append('the config has no model: is it a part of a config (configs/_base_)?')
        return
    # mmengine logs every parameter's origin when there is no log file.
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        model = build_model(cfg)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        report.facts.append(f'model       {type(model).__name__}, {parameters:,} parameters')
        check_placement(model)
        bind_augments(model)  # raises if one names a layer that the backbone does not have
        unbind_augments(model)
        for hook in cfg.get('custom_hooks') or []:
            if type_name(hook) == 'DropBlockHook':
                HOOKS.build(dict(hook)).attach(copy.deepcopy(model))
        check_head_norm(model)
        _check_weights(model, report)
        if cfg.load_from and not cfg.resume:
            cfg.load_from = preflight.check_checkpoint(cfg.load_from)
            preflight.check_start(model, cfg)
    except Exception as error:  # whatever a class of the config raises
        report.problems.append(f'model: {error if isinstance(error, UserError) else one_line(error)}')
    finally:
        logger.setLevel(level)


def _check_weights(model, report: Report) -> None:
    from ..weights.provenance import tensor_hash
    from ..weights.strict import StrictPretrained, strict_parts

    filled = [
        (part, StrictPretrained(**{key: value for key, value in config.items() if key != 'type'}))
        for _, part, config in strict_parts(model)
    ]
    # A part that StrictPretrained fills must not load by itself; StrictPretrained raises if it would.
    known = [module for part, strict in filled for module in (part, getattr(part, strict.module, None))]
    lenient = [
        name or 'model'
        for name, module in model.named_modules()
        if 'checkpoint' in str(getattr(module, 'init_cfg', None) or '') and all(module is not part for part in known)
    ]
    if lenient:
        report.problems.append(f'weights: {", ".join(lenient)} loads leniently: use StrictPretrained in model.init_cfg')
    elif not filled:
        report.facts.append('weights     from scratch')
    if not filled:
        return
    loaded = [(getattr(part, strict.module, part), strict(part)) for part, strict in filled]
    # As the Runner does it: whatever else initialises, the backbone must still equal the file.
    model.init_weights()
    for backbone, file in loaded:
        report.facts.append(f'weights     {file}')
        if tensor_hash(backbone.state_dict()) != file.sha256:
            report.problems.append('weights: the backbone differs from the file after the model was initialised')
        else:
            report.facts.append(f"            all {file.tensors} tensors of the backbone equal the file's, bit for bit")
        if getattr(backbone, 'style', None) == 'caffe' and getattr(backbone, 'depth', 0) >= 50:
            report.problems.append(
                "weights: the backbone has style='caffe', another network with the same tensors. mmrm's weights need "
                "style='pytorch', RGB, and their mean and std in the data preprocessor"
            )


# ------------------------------------------------------------------------------------------------------------ the data
def _check_paths(cfg, report: Report) -> None:
    from ..utils.config import PARTS, loader_datasets

    wanted: Dict[str, List[str]] = {part: [] for part in PARTS}
    for part, dataset, _ in loader_datasets(cfg):
        wanted[part] += map(str, _paths_of(dataset, cfg.get('default_scope')))
    for part, names in wanted.items():
        metrics = cfg.get(f'{part}_evaluator') or []
        metrics = metrics if isinstance(metrics, (list, tuple)) else [metrics]
        names = list(dict.fromkeys([*names, *(metric['ann_file'] for metric in metrics if metric.get('ann_file'))]))
        missing = [name for name in names if '://' not in name and not paths.find(name).exists()]
        if missing:
            report.problems.append(f'{part} data: missing: {", ".join(missing)}')
        if names:
            there = len(names) - len(missing)
            report.facts.append(f'{part:5} data  {there} of {len(names)} paths exist: {", ".join(names)}')


def _paths_of(dataset: dict, scope: Optional[str]) -> list:
    """The folders and files that a data set's config names, joined as its class will."""
    from ..utils.config import dataset_class

    root = dataset.get('data_root') or ''
    if '://' in str(root):
        return []
    prefix = dataset.get('data_prefix')
    names = [name for name in (prefix.values() if isinstance(prefix, dict) else [prefix]) if name]
    if dataset.get('split') and not names:  # mmpretrain's CIFAR has a folder for all splits, its ImageNet one for each
        names = [getattr(dataset_class(dataset, scope), 'base_folder', dataset['split'])]
    names += [dataset['ann_file']] if dataset.get('ann_file') else []
    return [Path(root) / name for name in names] or ([root] if root else [])


# ---------------------------------------------------------------------------------------------------------- the images
def inspect_images(files: Sequence[str], decode: bool = True) -> list:
    """Look at image files in threads, with a progress bar on stderr; Pillow and OpenCV release the GIL.

    Args:
        files (Sequence[str]): The files.
        decode (bool): Whether to decode all of each, see :func:`~mmrm.datasets.images.inspect_image`.
    """
    from concurrent.futures import ThreadPoolExecutor

    from rich.console import Console
    from rich.progress import track

    from ..datasets.images import inspect_image

    console = Console(stderr=True)
    bar = dict(total=len(files), console=console, transient=True, disable=not console.is_terminal)
    with ThreadPoolExecutor() as pool:
        try:
            found = pool.map(functools.partial(inspect_image, decode=decode), files)
            return list(track(found, 'decoding images' if decode else 'reading headers', **bar))
        except BaseException:  # Ctrl-C does not wait for the other images
            pool.shutdown(cancel_futures=True)
            raise


def odd_images(findings: Iterable) -> List[str]:
    """``12 x grey: ... (a.jpg, b.jpg)`` for each kind of image that is not 8-bit RGB."""
    kinds = collections.defaultdict(list)
    for finding in findings:
        if finding.note:
            kinds[finding.note].append(finding.path)
    return [f'{len(files):,} x {note} ({abbreviate(files)})' for note, files in sorted(kinds.items())]


def _check_images(cfg, report: Report) -> None:
    """Decode every image of the data sets."""
    from mmengine.registry import DATASETS

    from ..utils.config import loader_datasets, type_name

    parts: Dict[str, List[str]] = {}
    for part, config, field in loader_datasets(cfg):
        try:
            with DATASETS.switch_scope_and_registry(config.get('_scope_', cfg.get('default_scope'))) as registry:
                dataset = registry.build(dict(config, pipeline=[], lazy_init=False))
            files = [dataset.get_data_info(index).get('img_path') for index in range(len(dataset))]
            _check_skipped(dataset, files, report)
        except Exception as error:  # whatever a data set raises
            report.problems.append(f'{field} ({type_name(config)}): {one_line(error)}')
            continue
        if None in files:  # CIFAR
            report.facts.append(
                f'{part:5} data  {len(files):,} images in the files of {type_name(config)}, not decoded'
            )
        else:
            parts.setdefault(part, []).extend(files)
    files = list(dict.fromkeys(path for files in parts.values() for path in files))
    findings = {finding.path: finding for finding in inspect_images(files)}
    for part, files in parts.items():
        broken = sum(bool(findings[path].problem) for path in files)
        report.facts.append(f'{part:5} data  {len(files):,} images decoded, {broken} broken')
    report.facts.extend(f'note        {line}' for line in odd_images(findings.values()))
    report.problems.extend(f'{finding.path} {finding.problem}' for finding in findings.values() if finding.problem)


def _check_skipped(dataset, files: Sequence[str], report: Report) -> None:
    """Compare what is in the folder of a data set with what it reads; one with a list leaves files out on purpose."""
    from ..datasets.images import EXTENSIONS

    folder = Path(getattr(dataset, 'img_prefix', None) or '')
    if not folder.name or getattr(dataset, 'ann_file', None) or not folder.is_dir():
        return
    read = {str(Path(file).resolve()) for file in files}
    skipped = collections.defaultdict(list)
    for path in sorted(folder.rglob('*')):
        hidden = any(part.startswith('.') for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and str(path.resolve()) not in read:
            skipped[path.suffix.lower()].append(str(path.relative_to(folder)))
    for ending, names in skipped.items():
        line = f'{folder}: {type(dataset).__name__} skips {len(names):,} {ending or "other"} files: {abbreviate(names)}'
        found, text = (report.problems, line) if ending in EXTENSIONS else (report.facts, f'note        {line}')
        if text not in found:  # two parts may read one folder
            found.append(text)
