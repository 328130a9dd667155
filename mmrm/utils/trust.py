"""Configs of others: read without executing them, and built only from what the toolboxes have registered.

A config inside a checkpoint, or in a run's folder, is text from others. As long as it is nothing but settings
it can be read without running it (:func:`read_settings`). To build something from it is another matter: mmengine
imports any module, and calls any function, that a ``type`` names, so :func:`check_names` refuses all but registered
names. Registered classes look up, evaluate or unpickle more of their settings (``padding_mode`` of mmcv's layers), so
:func:`registered_only` watches what they do while they are built.
``--trust`` of mmrm's commands lifts both.
"""

import ast
import functools
import re
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Iterator, Tuple, Union

from mmengine import registry
from mmengine.config import Config

from .errors import UserFileError
from .settings import parse_config

TRUST = 'use --trust if you trust its source'
TOOLBOXES = ('mmpretrain', 'mmdet', 'mmseg')
SCOPES = ('mmengine', *TOOLBOXES)
# What the text of a config without code is made of: names that stand for literals, and calls, which must be of dict.
PLAIN_NODES = {ast.Module, ast.Assign, ast.Name, ast.Load, ast.Store, ast.Constant, ast.UnaryOp, ast.UAdd, ast.USub}
PLAIN_NODES |= {ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Call, ast.keyword}
# Sections that only a training builds.
TRAINING = {'optim_wrapper', 'param_scheduler', 'default_hooks', 'custom_hooks', 'custom_imports', 'train_cfg'}
TRAINING |= {'val_cfg', 'test_cfg', 'val_evaluator', 'test_evaluator', 'log_processor', 'env_cfg'}
NAMES = ('type', 'norm_layer', 'collate_fn')  # settings that are looked up in a registry
IMPORTING = ('trust_remote_code', 'sys_path')  # settings that have others' modules imported
# What toolboxes may evaluate, and what the pickles of a data set may name, while a foreign config is built.
EVALUATED = re.compile(r'[\w.]*|\w+_(classes|palette)\(\)')
UNPICKLED = {('numpy', 'ndarray'), ('numpy', 'dtype'), ('_codecs', 'encode')}
UNPICKLED |= {(f'numpy.{core}.multiarray', name) for core in ('core', '_core') for name in ('_reconstruct', 'scalar')}
_trusted = False
_source: ContextVar[str] = ContextVar('source', default='')  # of the foreign config that is being built


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


class ForeignConfig(Config):
    """Settings of others to build something from, within :func:`registered_only`.

    Args:
        settings (dict): As they were read, without executing them.
        source (str): What they came from, for messages: 'checkpoint evil.pth'.
    """

    def __init__(self, settings: dict, source: str):
        check_names(settings, source)
        super().__init__(settings)
        object.__setattr__(self, '_filename', source)


def read_foreign_config(path: Path) -> Config:
    """The config in a run's folder. With ``--trust`` it is executed, and what it imports is imported."""
    return Config.fromfile(path) if _trusted else ForeignConfig(read_settings(path), f'config {path}')


def foreign_source() -> str:
    """What the foreign config came from that is being built; '' where there is none."""
    return _source.get()


@contextmanager
def registered_only(origin: Union[Config, str]) -> Iterator[None]:
    """While something is built from a foreign config, raise if a class imports, evaluates or unpickles what it names.

    Args:
        origin (Config | str): The config, of which only a :class:`ForeignConfig` counts, or what it came from.
    """
    source = origin if isinstance(origin, str) else origin.filename if isinstance(origin, ForeignConfig) else ''
    if source and not _trusted:
        _install()
    token = _source.set('' if _trusted else source or _source.get())
    try:
        yield
    finally:
        _source.reset(token)


@functools.cache
def _install() -> None:
    get = registry.Registry.get

    @functools.wraps(get)
    def get_registered(self, key):
        source = _source.get()
        if not source:
            return get(self, key)
        found = get(self, key) if str(key).rpartition('.')[0] in ('', *SCOPES) else None
        if found is None:
            raise refused(source, f'the name {key!r}')
        return found

    resolve = registry.registry.get_object_from_string
    registry.registry.get_object_from_string = lambda name: None if _source.get() else resolve(name)
    registry.Registry.get = get_registered
    sys.addaudithook(_refuse_code)


def _refuse_code(event: str, args: tuple) -> None:
    """Python's audit hook: raise if a toolbox evaluates or executes text, or if a pickle names more than arrays."""
    source = _source.get()
    if source and event == 'pickle.find_class' and args not in UNPICKLED:
        raise refused(source, f'a pickle with {".".join(args)}')
    if source and event == 'compile':
        text = args[0].decode() if isinstance(args[0], bytes) else str(args[0])
        package = str(sys._getframe(1).f_globals.get('__name__')).partition('.')[0]
        if package in ('mmcv', *SCOPES) and not EVALUATED.fullmatch(text):
            raise refused(source, f'the code {text!r}')


def check_names(settings: dict, source: str) -> None:
    """Raise if a config, before anything is built from it, is seen to ask for more than registered names.

    Args:
        settings (dict): The config.
        source (str): What it came from, for the message: 'checkpoint evil.pth'.

    Raises:
        UserFileError: If it names a function or class by its module (``os.system``), another package as its scope,
            which mmengine would import, a pickle, or a folder to import from.
    """
    if _trusted:
        return
    found = [item for key, value in settings.items() if key not in TRAINING for item in _settings(key, key, value)]
    for where, key, value in found:
        text = str(value)
        unsafe = (key in IMPORTING and bool(value)) or text.endswith(('pkl', 'pickle'))
        if key in NAMES:
            unsafe |= text.rpartition('.')[0] not in ('', *SCOPES) or not re.fullmatch(r'[\w./]+', text)
        elif key in ('default_scope', '_scope_'):
            unsafe |= value is not None and value not in SCOPES
        if unsafe:
            raise refused(source, f'{where}={value!r}')


def refused(source: str, what: str) -> UserFileError:
    return UserFileError(
        f'{source}: its config has {what}, which is not a registered name of {", ".join(TOOLBOXES)} or mmengine, and '
        f'is not executed. Give the config as a file that you trust (--config), or {TRUST}.'
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
