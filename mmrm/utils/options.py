"""Keys of a config, or of ``--cfg-options``, that nothing reads because they are misspelt.

mmengine adds whatever it is given, and a class with ``**kwargs`` takes it.
"""

import contextlib
import difflib
import functools
import importlib
import inspect
from typing import Iterator, List, Optional, Set, Tuple

from mmengine import registry
from mmengine.config import Config
from mmengine.runner._flexible_runner import FlexibleRunner

# What a part of a config may have that names no type, and of which mmengine ignores the rest.
PARTS = {
    '': [
        FlexibleRunner,
        'allow_partial',
        'sync_bn',
        'find_unused_parameters',
        'model_wrapper_cfg',
        'activation_checkpointing',
        'efficient_conv_bn_eval',
        'detect_anomalous_params',
        'runner_type',
        'custom_imports',
        'tta_model',
    ],
    'default_hooks': ['runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint'],
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
    kinds = [*PARTS.get('.'.join(path), ()), *_classes(node.get('type'), str(scope))]
    names = {'type', '_scope_'} if kinds else set()
    if path and path[0] in ('custom_hooks', 'default_hooks') and node.get('type'):
        names.add('priority')
    for kind in kinds:
        names |= {kind} if isinstance(kind, str) else _parameters(kind)
    return names


@functools.cache  # a registry that lacks a name tries to import it, again and again
def _classes(kind, scope: str) -> list:
    """What a ``type`` stands for; a name may be in several registries."""
    if not isinstance(kind, str):
        return [] if kind is None else [kind]
    found = registries()
    with contextlib.suppress(ImportError):
        found = registries(scope)
    return [each for each in (known.get(kind) for known in found) if each is not None]


def registries(*scopes: str) -> List[registry.Registry]:
    """mmengine's registries and those of packages, which are imported for that."""
    modules = [registry, *(importlib.import_module(f'{scope}.registry') for scope in scopes)]
    return [each for module in modules for each in vars(module).values() if isinstance(each, registry.Registry)]


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
