"""``--cfg-options`` that a config does not have: new settings, or typing errors?

mmengine adds whatever it is given. So an unknown key is a warning, with the nearest one that the config has, unless
the class that it is for takes such an argument.
"""

import contextlib
import difflib
import importlib
import inspect
from typing import Dict, Iterator, List, Optional, Set, Tuple

from mmengine import registry as registries
from mmengine.config import Config
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import Registry
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner, TestLoop, ValLoop
from torch.utils.data import DataLoader

# What a part of a config may have that names no type: arguments of these classes, and these names.
PARTS = {
    '': [
        Runner,
        'allow_partial',
        'auto_scale_lr',
        'data_preprocessor',
        'compile',
        'sync_bn',
        'find_unused_parameters',
        'model_wrapper_cfg',
        'activation_checkpointing',
        'efficient_conv_bn_eval',
        'detect_anomalous_params',
        'runner_type',
        'strategy',
        'custom_imports',
        'tta_model',
        'tta_pipeline',
    ],
    **{f'{part}_dataloader': [DataLoader, 'num_batch_per_epoch'] for part in ('train', 'val', 'test')},
    'optim_wrapper': [OptimWrapper, AmpOptimWrapper, 'constructor', 'paramwise_cfg'],
    'train_cfg': [EpochBasedTrainLoop, IterBasedTrainLoop, 'by_epoch'],
    'val_cfg': [ValLoop],
    'test_cfg': [TestLoop],
    'default_hooks': ['runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint'],
    'randomness': ['seed', 'diff_rank_seed', 'deterministic'],
    'auto_scale_lr': ['base_batch_size', 'enable'],
    'env_cfg': ['cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'],
}
# Dicts whose keys are the user's: names, parts of names, places.
FREE = ('metainfo', 'custom_keys', 'data_prefix', 'backend_args', 'file_client_args')


def unknown_options(cfg: Config, options: Dict[str, object]) -> List[str]:
    """A line for each key of ``options`` (``{'a.b': value}``) that a config has not, and no class is known to take.

    Args:
        cfg (Config): The config, before the options are merged in.
        options (dict): As ``--cfg-options`` gives them.
    """
    found = []
    for key in options:
        words = key.split('.')
        known = _known_up_to(cfg, words)
        if known is not None:
            depth, names = known
            alike = difflib.get_close_matches(words[depth], names, cutoff=0.75)
            arguments = ['.'.join([*words[:depth], name, *words[depth + 1 :]]) for name in alike]
            near = difflib.get_close_matches(key, [*arguments, *_keys(cfg)], n=1, cutoff=0.75)
            hint = f' Did you mean {near[0]}?' if near else ''
            new = '.'.join(words[: depth + 1])
            found.append(f'--cfg-options {key}: the config has no {new}. It is added; perhaps nothing reads it.{hint}')
    return found


def misspelt_keys(cfg: Config) -> Iterator[Tuple[str, str]]:
    """Keys of a config that nothing reads and that are nearly those of mmengine's Runner, its hooks and its parts.

    Yields:
        tuple[str, str]: The key, and the one that was probably meant. A key without a dot may be a variable.
    """
    hooks = [*(('default_hooks', name) for name in cfg.get('default_hooks') or {})]
    hooks += [('custom_hooks', index) for index in range(len(cfg.get('custom_hooks') or []))]
    for path in [*([part] if part else [] for part in PARTS), *hooks]:
        node = cfg
        for word in path:
            node = node.get(word) if hasattr(node, 'get') else node[word]
        if not isinstance(node, (dict, Config)):
            continue
        names, _ = _arguments(node, list(map(str, path)), cfg.get('default_scope'))
        for key in node:
            near = difflib.get_close_matches(key, sorted(names - {'tta_pipeline'}), n=1, cutoff=0.85)
            if key not in names and near and not key.startswith(f'{near[0]}_'):
                yield '.'.join(map(str, [*path, key])), '.'.join(map(str, [*path, near[0]]))


def _known_up_to(cfg: Config, words: List[str]) -> Optional[Tuple[int, Set[str]]]:
    """The place of the first word that is unknown, and the names that are known there; None if all may be right."""
    node = cfg
    for depth, word in enumerate(words):
        if isinstance(node, (list, tuple)):
            if not word.isdecimal() or int(word) >= len(node):
                return None  # mmengine's own error
            node = node[int(word)]
        elif not isinstance(node, (dict, Config)) or word == '_delete_' or (depth and words[depth - 1] in FREE):
            return None
        elif word in node:
            node = node[word]
        elif depth == 0 and word in PARTS:
            node = {}
        else:
            names, anything = _arguments(node, words[:depth], cfg.get('default_scope'))
            # A class that takes anything may take this; a near name says that it was meant.
            near = difflib.get_close_matches(word, [*node, *names], n=1, cutoff=0.8)
            return None if word in names or (anything and not near) else (depth, names)
    return None


def _keys(node, path: str = '') -> Iterator[str]:
    pairs = node.items() if hasattr(node, 'items') else enumerate(node) if isinstance(node, (list, tuple)) else ()
    for name, value in pairs:
        where = f'{path}.{name}' if path else str(name)
        yield where
        yield from _keys(value, where)


def _arguments(node: dict, path: List[str], scope: Optional[str]) -> Tuple[Set[str], bool]:
    """What a node of a config may have, the arguments of the classes that it is for; and whether they take others."""
    kinds = [*PARTS.get('.'.join(path), ()), *_classes(node.get('type'), scope)]
    names, anything = {'type', '_scope_'}, not kinds
    if path and path[0] in ('custom_hooks', 'default_hooks') and node.get('type'):
        names.add('priority')
    for kind in kinds:
        if isinstance(kind, str):
            names.add(kind)
        else:
            more, takes_any = _signature(kind)
            names, anything = names | more, anything or takes_any
    return names, anything


def _classes(kind, scope: Optional[str]) -> list:
    """What a ``type`` stands for; a name may be in several registries."""
    if not isinstance(kind, str):
        return [] if kind is None else [kind]
    modules = [registries]
    with contextlib.suppress(ImportError):
        modules.append(importlib.import_module(f'{scope}.registry'))
    found = [
        registry.get(kind) for module in modules for registry in vars(module).values() if isinstance(registry, Registry)
    ]
    return [each for each in found if each is not None]


def _signature(kind) -> Tuple[Set[str], bool]:
    """The arguments of a class, with those that it passes on to the classes it inherits from."""
    names, anything = set(), False
    makers = [kind]
    if inspect.isclass(kind):
        makers = [vars(each)['__init__'] for each in kind.__mro__ if '__init__' in vars(each)]
    for maker in makers:
        try:
            parameters = inspect.signature(maker).parameters.values()
        except (TypeError, ValueError):
            return names, True
        names |= {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
        anything = any(each.kind == each.VAR_KEYWORD for each in parameters)
        if not anything:
            break
    return names - {'self'}, anything
