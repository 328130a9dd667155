"""What mmrm's own tools refuse to execute: yaml tags, pickles, configs inside checkpoints.

mmengine reads yaml with a loader that builds any Python object, and so calls any function, that the file asks for
(``!!python/object/apply:os.system``). An inferencer that gets weights and no config executes the text that it finds in
the checkpoint. And a checkpoint is a pickle, a program, which mmengine's loader executes where torch's default or an
environment variable lets it, and OneDL's after a first attempt without. Here all three are data. A config in Python
remains code.

:func:`apply` changes mmengine for the whole process. So the tools call it, and an import does not.
"""

import functools
import inspect
import os
import types
from typing import Dict

import torch
import yaml
from mmengine.config import Config
from mmengine.fileio.handlers import yaml_handler
from mmengine.infer import BaseInferencer
from mmengine.runner import checkpoint as mmengine_checkpoint

from ..utils.checkpoints import check_content, check_file, check_torch, load_errors, read_checkpoint
from ..utils.errors import UserFileError
from ..utils.settings import parse_config
from ..utils.trust import ForeignConfig, foreign_source, is_plain, registered_only

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader  # type: ignore[assignment]

MOST_VALUES = 100_000  # of a yaml file, each alias counted as what it stands for


class TagError(UserFileError):
    """A tag in a yaml file that is not plain data."""


class PlainLoader(SafeLoader):
    """yaml without Python objects. A tuple is plain data, and mmengine's own ``Config.dump`` writes it with a tag."""

    def construct_document(self, node: yaml.Node):
        check_aliases(node)
        return super().construct_document(node)


def check_aliases(root: yaml.Node) -> None:
    """Raise if aliases (``*name``) repeat so much that a config of them would fill the memory ("billion laughs")."""
    sizes: Dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = MOST_VALUES  # if it contains itself
            parts = node.value if isinstance(node, yaml.CollectionNode) else ()
            pairs = (part if isinstance(part, tuple) else (part,) for part in parts)
            sizes[id(node)] = 1 + sum(size(part) for pair in pairs for part in pair)
        if sizes[id(node)] > MOST_VALUES:
            line = node.start_mark.line + 1
            raise TagError(f'line {line}: with its aliases it has more than {MOST_VALUES:,} values, too many to read.')
        return sizes[id(node)]

    size(root)


def _refuse(loader: PlainLoader, node: yaml.Node):
    tag = node.tag.replace('tag:yaml.org,2002:', '!!')
    raise TagError(f'line {node.start_mark.line + 1}: {tag} is not plain data, and is neither built nor executed.')


PlainLoader.add_constructor(None, _refuse)
PlainLoader.add_constructor(
    'tag:yaml.org,2002:python/tuple', lambda loader, node: tuple(loader.construct_sequence(node, deep=True))
)


def apply() -> None:
    """Have mmengine refuse what would execute code. Safe to call twice."""
    if yaml_handler.Loader is PlainLoader:
        return
    yaml_handler.Loader = PlainLoader
    _name_files()
    _guard_inferencers()
    _guard_loader()


def _name_files() -> None:
    """Name the file in the error: mmengine reads a copy, and of each base of a config another one."""
    inner = Config._file2dict

    @functools.wraps(inner)
    def _file2dict(filename, *args, **kwargs):
        try:
            return inner(filename, *args, **kwargs)
        except TagError as error:
            raise UserFileError(f'config {os.path.normpath(filename)}, {error}') from None

    Config._file2dict = staticmethod(_file2dict)


def _guard_inferencers() -> None:
    """Read the config inside a checkpoint without running it, and only with names that are registered."""
    read = Config.fromstring

    @functools.wraps(read)
    def fromstring(cfg_str, file_format):
        source = foreign_source()
        if not source:
            return read(cfg_str, file_format)
        if not is_plain(cfg_str):
            raise UserFileError(
                f'{source}: its config contains code, which would be executed: refused. '
                'Give the config of the model as a file that you trust.'
            )
        return ForeignConfig(parse_config(cfg_str) or {}, source)

    def guarded(inner):
        @functools.wraps(inner)
        def method(*args, **kwargs):
            given = inspect.signature(inner).bind(*args, **kwargs).arguments
            own = given.get('model') or given.get('cfg')
            with registered_only('' if own else f'checkpoint {given.get("weights")}'):
                return inner(*args, **kwargs)

        return method

    Config.fromstring = staticmethod(fromstring)
    BaseInferencer.__init__ = guarded(BaseInferencer.__init__)  # the model, the pipeline, the visualizer
    BaseInferencer._init_model = guarded(BaseInferencer._init_model)


class _SafeTorch(types.ModuleType):
    """torch as mmengine's loaders see it: ``load`` reads weights only, whatever they or the environment ask for."""

    def __getattr__(self, name: str):
        return getattr(torch, name)

    @staticmethod
    def load(*args, **kwargs):
        return torch.load(*args, **{**kwargs, 'weights_only': True})


def _guard_loader() -> None:
    """Read every checkpoint as weights only, and check files as :func:`mmrm.utils.checkpoints.read_checkpoint` does."""
    load_url = mmengine_checkpoint.load_url
    mmengine_checkpoint.torch = _SafeTorch('torch')
    mmengine_checkpoint.get_torch_safe_globals = list  # of OneDL: it has getattr, with which a pickle can do anything
    mmengine_checkpoint.load_url = lambda *args, **kwargs: load_url(*args, **{**kwargs, 'weights_only': True})
    inner = mmengine_checkpoint.CheckpointLoader.load_checkpoint.__func__

    @functools.wraps(inner)
    def load_checkpoint(cls, filename, *args, **kwargs):
        local = os.path.exists(os.path.expanduser(filename))
        if local:
            check_file(filename)
            if str(filename).endswith('.safetensors'):  # mmengine has no reader of it
                return dict(state_dict=read_checkpoint(filename))
        else:
            check_torch(filename)
        with load_errors(filename):
            checkpoint = inner(cls, filename, *args, **kwargs)
        if local:
            check_content(filename, checkpoint)
        bare = all(isinstance(value, torch.Tensor) for value in checkpoint.values())
        return dict(state_dict=checkpoint) if bare else checkpoint  # hooks expect one

    mmengine_checkpoint.CheckpointLoader.load_checkpoint = classmethod(load_checkpoint)
