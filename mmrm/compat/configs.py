"""A config in yaml, and the one inside a checkpoint, is read without executing anything.

mmengine reads yaml with a loader that builds any Python object, and so calls any function, that the file asks for
(``!!python/object/apply:os.system``). And an inferencer that gets weights and no config executes the text that it finds
in the checkpoint. Here both are data. A config in Python remains code.
"""

import ast
import functools
import os
from contextvars import ContextVar

import yaml

from ..utils.errors import UserFileError

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader  # type: ignore[assignment]

# The weights whose config is being read, while mmengine has no other one.
_weights: ContextVar[str] = ContextVar('weights', default='')


class TagError(UserFileError):
    """A tag in a yaml file that is not plain data."""


class PlainLoader(SafeLoader):
    """yaml without Python objects. A tuple is plain data, and mmengine's own ``Config.dump`` writes it with a tag."""


def _refuse(loader: PlainLoader, node: yaml.Node):
    tag = node.tag.replace('tag:yaml.org,2002:', '!!')
    raise TagError(f'line {node.start_mark.line + 1}: {tag} is not plain data, and is neither built nor executed.')


PlainLoader.add_constructor(None, _refuse)
PlainLoader.add_constructor(
    'tag:yaml.org,2002:python/tuple', lambda loader, node: tuple(loader.construct_sequence(node, deep=True))
)


def is_plain(text: str) -> bool:
    """Whether a config's text is what mmengine writes into a checkpoint: names that stand for literals.

    There are neither bases nor ``{{...}}``, which mmengine replaces in the text before it runs it.
    """
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    return '{{' not in text and all(
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id not in ('_base_', 'dict')
        and _is_literal(statement.value)
        for statement in statements
    )


def _is_literal(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.operand, ast.Constant)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return all(map(_is_literal, node.elts))
    if isinstance(node, ast.Dict):
        return all(_is_literal(part) for part in (*node.keys, *node.values) if part is not None)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        return all(map(_is_literal, (*node.args, *(keyword.value for keyword in node.keywords))))
    return False


def needed() -> bool:
    """Whether mmengine would still execute what a yaml file or a checkpoint's config says."""
    from mmengine.config import Config

    return not hasattr(Config._file2dict, 'reads_plain_yaml')


def apply() -> None:
    """Give mmengine the loader of plain yaml, and have it look at a checkpoint's config before it is run."""
    from mmengine.fileio.handlers import yaml_handler

    yaml_handler.Loader = PlainLoader
    _name_files()
    _guard_inferencers()


def _name_files() -> None:
    """Name the file in the error: mmengine reads a copy, and of each base of a config another one."""
    from mmengine.config import Config

    inner = Config._file2dict

    @functools.wraps(inner)
    def _file2dict(filename, *args, **kwargs):
        try:
            return inner(filename, *args, **kwargs)
        except TagError as error:
            raise UserFileError(f'config {os.path.normpath(filename)}, {error}') from None

    _file2dict.reads_plain_yaml = True
    Config._file2dict = staticmethod(_file2dict)


def _guard_inferencers() -> None:
    from mmengine.config import Config
    from mmengine.infer import BaseInferencer

    read, build = Config.fromstring, BaseInferencer._init_model

    @functools.wraps(read)
    def fromstring(cfg_str, file_format):
        weights = _weights.get()
        if weights and not is_plain(cfg_str):
            raise UserFileError(
                f'checkpoint {weights}: its config has more than plain settings in it and would be executed: refused. '
                'Give the config of the model as a file that you trust.'
            )
        return read(cfg_str, file_format)

    @functools.wraps(build)
    def _init_model(self, cfg, weights, *args, **kwargs):
        before = _weights.set('' if cfg else str(weights))
        try:
            return build(self, cfg, weights, *args, **kwargs)
        finally:
            _weights.reset(before)

    Config.fromstring = staticmethod(fromstring)
    BaseInferencer._init_model = _init_model
