"""Keys of a config, or of ``--cfg-options``, that nothing reads because they are misspelt.

mmengine adds whatever it is given, and a class with ``**kwargs`` takes it.
"""

import contextlib
import difflib
import functools
import importlib
import inspect
from typing import Iterator, List, Optional, Set, Tuple

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


def runner_keys() -> Set[str]:
    """What mmengine's Runner reads of a config."""
    return _arguments({}, [], None) | set(PARTS)


def misspelt_keys(cfg: Config) -> Iterator[Tuple[str, str]]:
    """Keys of a config that are nearly, but not quite, what mmengine's Runner or a class of the config reads.

    Yields:
        tuple[str, str]: The key, and the one that was probably meant. A key without a dot may be a variable.
    """
    yield from _misspelt(cfg, [], cfg.get('default_scope'))


def _misspelt(node, path: List[str], scope: Optional[str]) -> Iterator[Tuple[str, str]]:
    if isinstance(node, (list, tuple)):
        for index, item in enumerate(node):
            yield from _misspelt(item, [*path, str(index)], scope)
    elif isinstance(node, (dict, Config)) and (not path or path[-1] not in FREE):
        scope = node.get('_scope_', scope)
        names = _arguments(node, path, scope)
        for key, value in node.items():
            near = difflib.get_close_matches(str(key), sorted(names), n=1, cutoff=0.85) if key not in names else []
            if near and not str(key).startswith(f'{near[0]}_'):
                yield '.'.join([*path, str(key)]), '.'.join([*path, near[0]])
            yield from _misspelt(value, [*path, str(key)], scope)


def _arguments(node: dict, path: List[str], scope: Optional[str]) -> Set[str]:
    """What a node of a config may have: the arguments of the classes that it is for. Empty if these are not known."""
    kinds = [*PARTS.get('.'.join(path), ()), *_classes(node.get('type'), scope)]
    names = {'type', '_scope_'} if kinds else set()
    if path and path[0] in ('custom_hooks', 'default_hooks') and node.get('type'):
        names.add('priority')
    for kind in kinds:
        names |= {kind} if isinstance(kind, str) else _parameters(kind)
    return names


def _classes(kind, scope: Optional[str]) -> list:
    """What a ``type`` stands for; a name may be in several registries."""
    if not isinstance(kind, str):
        return [] if kind is None else [kind]
    return _registered(kind, str(scope))


@functools.cache  # a registry that lacks a name tries to import it, again and again
def _registered(kind: str, scope: str) -> list:
    modules = [registries]
    with contextlib.suppress(ImportError):
        modules.append(importlib.import_module(f'{scope}.registry'))
    found = [
        registry.get(kind) for module in modules for registry in vars(module).values() if isinstance(registry, Registry)
    ]
    return [each for each in found if each is not None]


def _parameters(kind) -> Set[str]:
    """The arguments of a class, with those that it passes on to the classes it inherits from."""
    names = set()
    makers = [kind]
    if inspect.isclass(kind):
        makers = [vars(each)['__init__'] for each in kind.__mro__ if '__init__' in vars(each)]
    for maker in makers:
        try:
            parameters = inspect.signature(maker).parameters.values()
        except (TypeError, ValueError):
            break
        names |= {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
        if all(each.kind != each.VAR_KEYWORD for each in parameters):
            break
    return names - {'self'}
