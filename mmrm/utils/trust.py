"""Configs of others: read without executing them, and built only from what the toolboxes have registered.

A config inside a checkpoint, or in a run's folder, is text from others. As long as it is nothing but settings
it can be read without running it (:func:`read_settings`). To build something from it is another matter: mmengine
imports any module, and calls any function, that a ``type`` names, so :func:`check_names` refuses all but registered
names.
``--trust`` of mmrm's commands lifts both.
"""

import ast
import re
from pathlib import Path
from typing import Any, Iterator, Set, Tuple

from mmengine import registry
from mmengine.config import Config

from .errors import UserFileError
from .options import registries
from .settings import parse_config

TRUST = 'use --trust if you trust its source'
TOOLBOXES = ('mmpretrain', 'mmdet', 'mmseg')
# What the text of a config without code is made of: names that stand for literals, and calls, which must be of dict.
PLAIN_NODES = {ast.Module, ast.Assign, ast.Name, ast.Load, ast.Store, ast.Constant, ast.UnaryOp, ast.UAdd, ast.USub}
PLAIN_NODES |= {ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Call, ast.keyword}
# Sections that only a training builds.
TRAINING = {'optim_wrapper', 'param_scheduler', 'default_hooks', 'custom_hooks', 'custom_imports', 'train_cfg'}
TRAINING |= {'val_cfg', 'test_cfg', 'val_evaluator', 'test_evaluator', 'log_processor', 'env_cfg'}
NAMELESS = ('nms', 'soft_nms', 'RoIAlign', 'RoIPool')  # types that are functions and layers of mmcv.ops
# Settings that the toolboxes look up in a registry, pass to eval() or unpickle.
NAMES, EVALUATED, UNPICKLED = ('type', 'norm_layer', 'collate_fn'), ('dtype', 'warp_mode'), ('tag_list',)
_trusted = False


def trust(everything: bool) -> None:
    """Whether the user vouches for the files of a command (``--trust``)."""
    global _trusted
    _trusted = everything


def is_trusted() -> bool:
    return _trusted


def is_plain(text: str) -> bool:
    """Whether a config's text is what mmengine writes into a checkpoint: names that stand for literals.

    There are neither bases nor ``{{...}}``, which mmengine replaces in the text before it runs it.
    """
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    names = [node for node in nodes if isinstance(node, ast.Name)]
    return (
        '{{' not in text
        and {type(node) for node in nodes} <= PLAIN_NODES
        and all(isinstance(node.func, ast.Name) for node in nodes if isinstance(node, ast.Call))
        and {node.id for node in names if isinstance(node.ctx, ast.Load)} <= {'dict'}
        and not {node.id for node in names if isinstance(node.ctx, ast.Store)} & {'_base_', 'dict'}
    )


def read_settings(path: Path) -> dict:
    """The settings in a config file of a run's folder, as mmengine's ``dump`` writes it, read without executing it.

    Raises:
        UserFileError: If it cannot be read, or has more than settings in it and ``--trust`` was not given.
    """
    try:
        text = path.read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise UserFileError(f'config {path} cannot be read: {error}') from error
    if is_plain(text):
        return parse_config(text) or {}
    if not _trusted:
        raise UserFileError(f'config {path} contains code, which would be executed: {TRUST}.')
    return Config.fromfile(path, import_custom_modules=False).to_dict()


def read_foreign_config(path: Path) -> Config:
    """The config in a run's folder, to build something from: :func:`read_settings` and :func:`check_names`.

    With ``--trust`` it is executed, and what it imports is imported.
    """
    if _trusted:
        return Config.fromfile(path)
    settings = read_settings(path)
    check_names(settings, f'config {path}')
    return Config(settings)


def check_names(settings: dict, source: str) -> None:
    """Raise unless all that would be built from a config is registered in mmengine or in a toolbox.

    Args:
        settings (dict): The config.
        source (str): What it came from, for the message: 'checkpoint evil.pth'.

    Raises:
        UserFileError: If it names a function or class by its module (``os.system``), another package as its scope,
            which mmengine would import, something that is registered only after an import that it asks for, or code in
            a setting that a toolbox evaluates.
    """
    if _trusted:
        return
    found = [item for key, value in settings.items() if key not in TRAINING for item in _settings(key, key, value)]
    scopes = {'mmengine'}
    for where, key, value in found:
        is_name = key in NAMES and '.' in str(value)
        if is_name or (key in ('default_scope', '_scope_') and value is not None):
            scope = str(value).split('.')[0]
            if scope not in ('mmengine', *TOOLBOXES):
                raise refused_name(source, where, value)
            scopes.add(scope)
    current = registry.DefaultScope.get_current_instance()
    registered = _registered(scopes | {'mmpretrain', current.scope_name if current else 'mmpretrain'})
    for where, key, value in found:
        unsafe = isinstance(value, str) and not _is_safe(key, value, registered)
        if unsafe or (key == 'trust_remote_code' and value):
            raise refused_name(source, where, value)


def _is_safe(key: str, value: str, registered: Set[str]) -> bool:
    """Whether a text in a config is neither imported nor evaluated nor names a pickle."""
    if key in NAMES:
        return value in NAMELESS or (value.rpartition('.')[2] in registered and value.count('.') < 2)
    if key in EVALUATED:
        return re.fullmatch(r'[\w.]*', value) is not None
    return key not in UNPICKLED and not value.endswith(('pkl', 'pickle'))


def refused_name(source: str, where: str, value: Any) -> UserFileError:
    return UserFileError(
        f'{source}: its config has {where}={value!r}, which is not a registered name of {", ".join(TOOLBOXES)} or '
        f'mmengine, and is not executed. Give the config as a file that you trust (--config), or {TRUST}.'
    )


def _settings(where: str, key: str, value: Any) -> Iterator[Tuple[str, str, Any]]:
    """The settings in a config that are no dicts and lists: their place, their key and their value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _settings(f'{where}.{name}', str(name), inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _settings(f'{where}.{index}', key, inner)
    else:
        yield where, key, value


def _registered(scopes: Set[str]) -> Set[str]:
    """All names in mmengine's registries and in those of toolboxes."""
    names: Set[str] = set()
    for each in registries(*(scopes & set(TOOLBOXES))):
        each.import_from_location()
        names.update(each.module_dict)
    return names
