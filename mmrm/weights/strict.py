"""Backbone weights that arrive whole or stop the run."""

from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from mmengine.model.weight_init import update_init_info
from mmengine.registry import WEIGHT_INITIALIZERS

from ..core import ROI_LAYER
from ..utils.checkpoints import read_checkpoint
from ..utils.config import type_name
from ..utils.errors import UserFileError, UserTypeError, UserValueError, abbreviate
from ..utils.processes import local_rank
from .layouts import StateDict, compare, describe, find_prefixes, split
from .provenance import read_weights, tensor_hash
from .runs import find_checkpoint

HOW = ' MMRM_BACKBONE=PATH or --cfg-options model.init_cfg.checkpoint=PATH names another file or run.'
# An RM head's RoI layer serves training only; batch norm's counter is unused with a fixed momentum.
UNUSED_IN_TEST = (f'{ROI_LAYER}.', 'num_batches_tracked')


class MisfitError(UserFileError):
    """Weights of another model, of which a part may fit."""


class Loaded(NamedTuple):
    """What :func:`load_backbone` put into a backbone.

    Args:
        file (Path): The file itself, also where a folder or an address was asked for.
        layout (str): Its layout, in words.
        tensors (int): Number of parameters and buffers filled.
        values (int): Number of values in them.
        sha256 (str): :func:`~mmrm.weights.provenance.tensor_hash` of the backbone.
    """

    file: Path
    layout: str
    tensors: int
    values: int
    sha256: str

    def __str__(self) -> str:
        return (
            f'{self.file} ({self.layout}): {self.tensors} tensors, {self.values / 1e6:.2f} M values, '
            f'sha256 {self.sha256[:16]}'
        )


def load_backbone(
    module: torch.nn.Module,
    checkpoint: Union[str, Path],
    prefix: Optional[str] = None,
    unused: Sequence[str] = (),
    name: str = 'backbone',
) -> Loaded:
    """Fill every parameter and buffer of a backbone from a file, or raise.

    Args:
        module (nn.Module): The backbone.
        checkpoint (str | Path): See :func:`find_checkpoint` and :func:`~mmrm.weights.layouts.split`.
        prefix (str, optional): What the backbone's names begin with in the file. Defaults to None: found out.
        unused (Sequence[str]): What names may begin with that the file has and the backbone lacks, for a backbone that
            ends early, e.g. ('layer4.', ). Defaults to ().
        name (str): Of the module, for messages. Defaults to 'backbone'.

    Raises:
        UserFileError: If anything is missing, left over, of another shape or not finite. Nothing is loaded then.
    """
    file = find_checkpoint(checkpoint, HOW)
    tensors = read_weights(file).tensors
    network = split(tensors, prefix)
    wanted = module.state_dict()
    given = {key: value for key, value in network.backbone.items() if not key.startswith(tuple(unused))}
    if not given:
        begins = abbreviate(sorted({key.split('.', 1)[0] + '.' for key in tensors}), 8)
        asked = f' under prefix={prefix!r}' if prefix else ''
        raise UserFileError(f'{file} has no backbone in it{asked}: its {len(tensors)} names begin with {begins}')
    problems = compare(wanted, given, name)
    if problems:
        prefixes = find_prefixes(given)
        hint = f'. A network is under a prefix: give prefix={prefixes[0]!r}.' if prefixes else ''
        raise UserFileError(
            f'{file} does not fit {name}, nothing was loaded. The file looks like {describe(given)} '
            f'({network.layout}), {name} is {describe(wanted)}. {problems}{hint}'
        )
    check_finite(given, wanted, file)
    filled = {key: value.to(wanted[key].dtype) for key, value in given.items() if key in wanted}
    module.load_state_dict(filled, strict=False)
    values = sum(value.numel() for value in filled.values())
    return Loaded(file, network.layout, len(filled), values, tensor_hash(filled))


def check_finite(given: StateDict, wanted: StateDict, file: Union[str, Path]) -> None:
    """Raise if weights are not finite, or a variance is negative; a mask of infinite values is as it is built."""
    masks = [key for key, value in wanted.items() if not _is_finite(value)]
    broken = [key for key, value in given.items() if key not in masks and not _is_finite(value)]
    broken += [key for key, value in given.items() if key.endswith('running_var') and (value < 0).any()]
    if broken:
        raise UserFileError(f'{file} has NaN, Inf or a negative variance in {abbreviate(broken)}.')


def _is_finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """A model without DDP and test-time augmentation around it."""
    while isinstance(getattr(model, 'module', None), torch.nn.Module):
        model = model.module
    return model


def check_weights(model: torch.nn.Module, path: str, unused: Sequence[str] = ()) -> None:
    """:func:`load_weights` where mmengine loads them afterwards: one process of a node reads the file for all."""
    if '://' not in path and local_rank() == 0:
        load_weights(model, path, unused)


def load_weights(model: torch.nn.Module, path: str, unused: Sequence[str] = ()) -> None:
    """Fill a model from a checkpoint, or raise unless it has all weights in the right shapes; mmengine would only warn.

    Args:
        model: The model; it holds the weights afterwards.
        path: The checkpoint.
        unused: Parts of names that may be missing or left over. With any, the checkpoint may also hold whole parts that
            the model lacks, but not more of a part that it has: that is another network.
    """
    model = unwrapped(model)
    own = model.state_dict()
    parts = {name for name, _ in model.named_children()}
    checkpoint = read_checkpoint(path)
    named = getattr(checkpoint.get('state_dict', checkpoint), 'items', tuple)()
    state = {str(name).removeprefix('module.'): value for name, value in named if isinstance(value, torch.Tensor)}

    def needed(name: str) -> bool:
        return not any(part in name for part in unused)

    wanted = {name: value for name, value in own.items() if name in state or needed(name)}
    given = {
        name: value
        for name, value in state.items()
        if name in own or not unused or (name.partition('.')[0] in parts and needed(name))
    }
    check_finite(given, own, path)
    problems = compare(wanted, given, 'the model')
    if problems:
        raise MisfitError(f'checkpoint {path} does not fit the config: {problems}')
    model.load_state_dict(given, strict=False)


@WEIGHT_INITIALIZERS.register_module()
class StrictPretrained:
    """Initialise a model's backbone from a file: all of it, or a :class:`~mmrm.utils.errors.UserFileError`.

    mmengine's ``Pretrained`` loads what happens to fit and only warns about the rest, and some backbones (mmdet's PVT
    and Swin) load in their own, equally lenient way. This one belongs to the *model*::

        model = dict(
            init_cfg=dict(type='StrictPretrained', checkpoint='work_dirs/rm/resnet50_8xb64_in1k'),
            backbone=dict(init_cfg=None))

    The model fills its backbone and marks it as initialised before its children are, so the backbone's own
    ``init_weights`` never runs, whatever its class does there.

    Args:
        checkpoint (str): A file, a run's folder or an address, see :func:`find_checkpoint`.
        prefix (str, optional): What the backbone's names begin with in the file. Defaults to None: found out.
        module (str): The part of the model to fill. Defaults to 'backbone'.
        unused (Sequence[str]): What names may begin with that the file has and the backbone lacks. Defaults to ().
    """

    def __init__(
        self, checkpoint: str, prefix: Optional[str] = None, module: str = 'backbone', unused: Sequence[str] = ()
    ):
        if prefix is not None and (not isinstance(prefix, str) or not prefix):
            raise UserValueError(f'StrictPretrained: prefix={prefix!r} must be None or a text such as "backbone."')
        if isinstance(unused, str):
            raise UserTypeError(f'StrictPretrained: unused={unused!r} must be a sequence of texts.')
        self.checkpoint, self.prefix, self.module, self.unused = checkpoint, prefix, module, tuple(unused)

    def __call__(self, model: torch.nn.Module) -> Loaded:
        """Fill the backbone of ``model`` and log what was loaded in one line."""
        backbone, name = self._backbone_of(model)
        loaded = load_backbone(backbone, self.checkpoint, self.prefix, self.unused, name)
        for child in backbone.modules():
            if child is not model and hasattr(child, 'init_weights'):
                child.is_init = True
        if hasattr(model, '_params_init_info'):
            update_init_info(backbone, init_info=f'StrictPretrained: {loaded}')
        print_log(f'StrictPretrained: {name} <- {loaded}', logger='current')
        return loaded

    def _backbone_of(self, model: torch.nn.Module) -> tuple:
        backbone = getattr(model, self.module, None)
        if backbone is None:
            if hasattr(model, 'backbone'):
                raise UserValueError(f'StrictPretrained: {type(model).__name__} has no part module={self.module!r}.')
            # In the backbone's own init_cfg: fine where the class leaves initialisation to mmengine.
            check_placement(model)
            return model, 'backbone'
        for config in init_cfgs(backbone):
            if 'checkpoint' in config:
                raise UserValueError(
                    f'two sources of weights: model.init_cfg has {self.checkpoint}, model.{self.module}.init_cfg has '
                    f'{config["checkpoint"]}. Set model.init_cfg.checkpoint to one of them, and '
                    f'model.{self.module}.init_cfg=None (mmseg: model.pretrained=None too).'
                )
        return backbone, self.module


def check_placement(model: torch.nn.Module) -> None:
    """Raise if a built model has ``StrictPretrained`` where it would never run or not last.

    Args:
        model (nn.Module): Built, not necessarily initialised.

    Raises:
        UserValueError: For a backbone such as mmdet's PVT, which reads its own ``init_cfg`` and loads leniently, and
            for an initialisation after it, which would overwrite the weights.
    """
    for name, module, config in strict_parts(model):
        last = init_cfgs(module)[-1]
        if config is not last:
            where = '.'.join(filter(None, ('model', name, 'init_cfg')))
            raise UserValueError(
                f'StrictPretrained must be the last of {where}: what comes after it '
                f'({type_name(last)}) would overwrite the weights.'
            )
        if _overrides_init_weights(module):
            raise UserValueError(
                f'StrictPretrained is in the init_cfg of {type(module).__name__}, whose init_weights would '
                f'not run it: move it to model.init_cfg and set model.{name or "backbone"}.init_cfg=None.'
            )


def strict_parts(model: torch.nn.Module) -> Iterator[Tuple[str, torch.nn.Module, dict]]:
    """The modules of a model with ``StrictPretrained`` in their ``init_cfg``: name, module, config."""
    for name, module in model.named_modules():
        for config in init_cfgs(module):
            if config.get('type') in ('StrictPretrained', StrictPretrained):
                yield name, module, config


def init_cfgs(module: torch.nn.Module) -> List[dict]:
    """The parts of a module's ``init_cfg``, which may be one dict, several or none."""
    configs = getattr(module, 'init_cfg', None) or []
    return [config for config in ([configs] if isinstance(configs, dict) else configs) if isinstance(config, dict)]


def _overrides_init_weights(module: torch.nn.Module) -> bool:
    """Whether a backbone's class overrides mmengine's initialisation."""
    return not hasattr(module, 'backbone') and type(module).init_weights is not BaseModule.init_weights
