"""``--cfg-options`` that a config does not have: new settings, or typing errors?

mmengine adds whatever it is given. So an unknown key is a warning, with the nearest one that the config has, unless
the class that it is for takes such an argument.
"""

import contextlib
import difflib
import importlib
import inspect
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

from mmengine import registry as registries
from mmengine.config import Config
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import Registry
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner, TestLoop, ValLoop
from torch.utils.data import DataLoader

# What mmengine and the tools here read at the top of a config, besides the arguments of the Runner.
TOP = (
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
)
LOADER = ('num_batch_per_epoch',)
HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
# Dicts whose keys are the user's: names, parts of names, places.
FREE = ('metainfo', 'custom_keys', 'data_prefix', 'backend_args', 'file_client_args')


class Unknown(NamedTuple):
    """A key of ``--cfg-options`` that the config has not: as it was given, the part that is new, the nearest one."""

    key: str
    new: str
    nearest: Optional[str]

    def __str__(self) -> str:
        hint = f' Did you mean {self.nearest}?' if self.nearest else ''
        return f'--cfg-options {self.key}: the config has no {self.new}. It is added; perhaps nothing reads it.{hint}'


def unknown_options(cfg: Config, options: Dict[str, object]) -> List[Unknown]:
    """The keys of ``options`` (``{'a.b': value}``) that a config has not, and no class is known to take.

    Args:
        cfg (Config): The config, before the options are merged in.
        options (dict): As ``--cfg-options`` gives them.
    """
    found = []
    for key in options:
        new = _first_unknown(cfg, key.split('.'))
        if new is not None:
            found.append(Unknown(key, '.'.join(new.path), _nearest(cfg, key, new)))
    return found


class _Place(NamedTuple):
    path: List[str]
    arguments: Set[str]  # what the node above it may have


def _first_unknown(cfg: Config, words: List[str]) -> Optional[_Place]:
    """Where a key leaves what is known, None if it does not."""
    node = cfg
    for depth, word in enumerate(words):
        above, path = words[:depth], words[: depth + 1]
        if isinstance(node, (list, tuple)):
            if not word.isdecimal() or int(word) >= len(node):
                return None  # mmengine's own error
            node = node[int(word)]
            continue
        if not isinstance(node, (dict, Config)) or word == '_delete_':
            return None
        if word in node:
            node = node[word]
            continue
        if above and above[-1] in FREE:
            return None
        taken = _arguments(node, above, cfg.get('default_scope'))
        if word not in taken.names:
            # A class that takes anything may take this; a near name says that it was meant.
            near = difflib.get_close_matches(word, [*node, *taken.names], n=1, cutoff=0.8)
            return None if taken.anything and not near else _Place(path, taken.names)
        if not _implied('.'.join(path)):
            return None  # a part that is new altogether
        node = {}
    return None


def _nearest(cfg: Config, key: str, new: _Place) -> Optional[str]:
    """The most similar key of the config, else of the arguments that the class takes."""
    *above, word = new.path
    rest = key.split('.')[len(new.path) :]
    for keys in (_keys(cfg), ('.'.join([*above, name, *rest]) for name in sorted(new.arguments))):
        # Keys of one part have much in common: the word that is wrong must be like one of the right key.
        known = [each for each in keys if difflib.get_close_matches(word, each.split('.'), n=1, cutoff=0.75)]
        found = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
        if found:
            return found[0]
    return None


def _keys(node, path: str = '') -> Iterator[str]:
    pairs = node.items() if hasattr(node, 'items') else enumerate(node) if isinstance(node, (list, tuple)) else ()
    for name, value in pairs:
        where = f'{path}.{name}' if path else str(name)
        yield where
        yield from _keys(value, where)


class _Arguments(NamedTuple):
    names: Set[str]
    anything: bool  # whether it takes others too, as far as its signature shows


def _arguments(node: dict, path: List[str], scope: Optional[str]) -> _Arguments:
    """What a node of a config may have: the arguments of the class that it is for."""
    kinds = [*_implied('.'.join(path)), *_classes(node.get('type'), scope)]
    if path and path[0] in ('custom_hooks', 'default_hooks') and node.get('type'):
        kinds.append('priority')
    names = {kind for kind in kinds if isinstance(kind, str)}
    signatures = [_signature(kind) for kind in kinds if not isinstance(kind, str)]
    return _Arguments(
        names.union(*(each.names for each in signatures)), not kinds or any(each.anything for each in signatures)
    )


def _implied(place: str) -> list:
    """The classes and names behind the parts of a config that need no type."""
    if place == '':
        return [Runner, *TOP]
    if place in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        return [DataLoader, *LOADER]
    return {
        'optim_wrapper': [OptimWrapper, AmpOptimWrapper, 'constructor', 'paramwise_cfg', 'type'],
        'train_cfg': [EpochBasedTrainLoop, IterBasedTrainLoop, 'by_epoch', 'type'],
        'val_cfg': [ValLoop, 'type'],
        'test_cfg': [TestLoop, 'type'],
        'default_hooks': [*HOOKS],
        'randomness': ['seed', 'diff_rank_seed', 'deterministic'],
        'auto_scale_lr': ['base_batch_size', 'enable'],
        'env_cfg': ['cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'],
    }.get(place, [])


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


def _signature(kind) -> _Arguments:
    """The arguments of a class, with those that it passes on to the classes it inherits from."""
    names, anything = {'type', '_scope_'}, False
    makers = [kind]
    if inspect.isclass(kind):
        makers = [vars(each)['__init__'] for each in kind.__mro__ if '__init__' in vars(each)]
    for maker in makers:
        try:
            parameters = inspect.signature(maker).parameters.values()
        except (TypeError, ValueError):
            return _Arguments(names, True)
        names |= {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
        anything = any(each.kind == each.VAR_KEYWORD for each in parameters)
        if not anything:
            break
    return _Arguments(names - {'self'}, anything)
