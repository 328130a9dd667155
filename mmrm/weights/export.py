"""Weights out: a backbone for mmdet and mmseg, a classifier without RecursiveMix's extra layer for other libraries."""

import json
import re
from collections import OrderedDict
from pathlib import Path
from typing import Optional, Tuple, Union

import torch
from mmengine.config import Config

from ..core import ROI_LAYER
from ..utils.errors import UserFileError, UserValueError, abbreviate
from ..utils.files import atomic_write, check_out
from ..utils.settings import parse_config
from ..utils.trust import ForeignConfig, check_names
from . import targets
from .layouts import Network, StateDict, compare, describe, find_prefixes, identify, split
from .provenance import Weights, provenance, read_weights
from .runs import find_checkpoint
from .strict import check_finite

LAYOUTS = ('mmpretrain', *targets.LIBRARIES)
SUFFIXES = ('.pth', '.pt', '.safetensors')


def export_backbone(
    checkpoint: Union[str, Path],
    out: Union[str, Path],
    overwrite: bool = False,
    prefix: Optional[str] = None,
    half: bool = False,
) -> dict:
    """Write the backbone of a checkpoint alone, under bare mmpretrain names, for mmdet and mmseg.

    Args:
        checkpoint (str | Path): A file or a run's folder, of any layout that :func:`~mmrm.weights.layouts.split` knows.
        out (str | Path): ``.pth`` (``{'state_dict', 'meta'}``) or ``.safetensors``.
        overwrite (bool): Whether an existing ``out`` may be replaced. Defaults to False.
        prefix (str, optional): What the backbone's names begin with in the file. Defaults to None: found out.
        half (bool): Whether to write float16, half the size. Defaults to False.

    Returns:
        dict: What was written into ``meta``.
    """
    source, out = source_and_out(checkpoint, out, overwrite)
    weights = read_weights(source)
    network = split(weights.tensors, prefix)
    if not network.backbone:
        where = f' under the prefix {prefix!r}' if prefix else ''
        raise UserFileError(f'{source} has no backbone in it{where}: {abbreviate([*network.head, *network.others])}')
    prefixes = [] if verify(network.backbone, source) else find_prefixes(network.backbone)
    if prefixes:  # a complete model
        before = prefix.rstrip('.') + '.' if prefix else ''
        others = f' There are others: {abbreviate(prefixes[1:])}' if prefixes[1:] else ''
        raise UserFileError(
            f'{source} has its backbone under a prefix: give prefix={before + prefixes[0]!r} (--prefix).{others}'
        )
    content = f'backbone, {describe(network.backbone)}'
    state_dict = halved(network.backbone, source) if half else network.backbone
    return save(state_dict, out, dict(provenance(weights, state_dict), content=content), overwrite)


def export_classifier(
    checkpoint: Union[str, Path],
    out: Union[str, Path],
    layout: str = 'mmpretrain',
    overwrite: bool = False,
    settings: Optional[dict] = None,
    half: bool = False,
) -> dict:
    """Write the classifier that is deployed: backbone and ``fc``, no RoI layer.

    Args:
        checkpoint (str | Path): A file or a run's folder, of any layout that :func:`~mmrm.weights.layouts.split` knows,
            also of the RecursiveMix authors: ``{'epoch', 'state_dict', 'optimizer'}``, ``module.`` before each name.
        out (str | Path): ``.pth`` or ``.safetensors``.
        layout (str): 'mmpretrain' (``ImageClassifier`` with its stock head), or 'torchvision', 'timm' or
            'transformers' for the networks of docs/weights.md: the file is then the state dict itself. Their logits
            are compared with mmpretrain's before anything is written. Defaults to 'mmpretrain'.
        overwrite (bool): Whether an existing ``out`` may be replaced. Defaults to False.
        settings (dict, optional): The config that made the checkpoint. Defaults to None: what the checkpoint carries.
        half (bool): Whether to write float16, half the size. Defaults to False.

    Returns:
        dict: What was written into ``meta``.
    """
    if layout not in LAYOUTS:
        raise UserValueError(f'layout={layout!r} must be one of {", ".join(LAYOUTS)}.')
    source, out = source_and_out(checkpoint, out, overwrite)
    weights = read_weights(source)
    facts = facts_of(weights, settings, linear=layout != 'mmpretrain')
    if layout == 'mmpretrain':
        state_dict, meta = _for_mmpretrain(facts)
    else:
        target = targets.make_target(layout, facts)
        compared = targets.check_target(layout, target, facts)
        state_dict, meta = target.state_dict, dict(loads_into=target.how, logits_compared=compared)
    if half:
        state_dict = halved(state_dict, source)
    content = f'classifier, {describe(facts.network.backbone)}'
    meta = dict(provenance(weights, state_dict), content=content, layout=layout, **meta)
    return save(state_dict, out, meta, overwrite, bare=layout != 'mmpretrain')


def _for_mmpretrain(facts: targets.Facts) -> Tuple[StateDict, dict]:
    """The tensors of a classifier in mmpretrain's names, and what its note says of them."""
    network = facts.network
    if not facts.config and network.bare:
        raise UserFileError(
            f'{facts.source} is {describe(network.backbone)}, under names without backbone.: such a file can be '
            'converted for ResNet, CIFAR ResNet, DenseNet, PyramidNet and PVTv2.'
        )
    meta: dict = dict(converted_from=network.layout) if network.bare else {}
    if facts.config.get('type') == 'ConvNeXt':
        meta['norm_first'] = facts.norm_first
    head = {key: value for key, value in network.head.items() if not key.startswith(f'{ROI_LAYER}.')}
    parts = (('backbone', network.backbone), ('head', head))
    return {f'{part}.{key}': value for part, tensors in parts for key, value in tensors.items()}, meta


def facts_of(
    weights: Weights, settings: Union[Config, dict, None] = None, size: Optional[int] = None, linear: bool = True
) -> targets.Facts:
    """What the renaming to another library must know of a checkpoint.

    Args:
        weights (Weights): The checkpoint.
        settings (Config | dict, optional): The config that made it. None: what it carries, read, not executed.
        size (int, optional): Side of its images in pixels. Defaults to None: not known.
        linear (bool): Whether its head must be one linear layer. Defaults to True.
    """
    network = split(weights.tensors)
    check_classifier(network, weights.file, linear)
    config = verify(network.backbone, weights.file) or {}
    backbone = backbone_of(weights, settings)
    if settings is None and linear:  # another library's network is compared with one that is built from it
        check_names(dict(model=dict(backbone=backbone)), f'checkpoint {weights.file}')
    first, foreign = norm_first(network, backbone, weights.meta), isinstance(settings, (ForeignConfig, type(None)))
    return targets.Facts(network, config, weights.file, backbone, first, size, foreign)


def backbone_of(weights: Weights, settings: Optional[dict] = None) -> dict:
    """The ``backbone`` of the config that made a checkpoint; empty if it is not known."""
    if settings is None:
        settings = parse_config(str(weights.meta.get('cfg') or '')) or {}
    model = settings.get('model')
    backbone = model.get('backbone') if isinstance(model, dict) else None
    return dict(backbone) if isinstance(backbone, dict) else {}


def norm_first(network: Network, backbone: dict, meta: dict) -> bool:
    """Whether a ConvNeXt normalises its map before pooling: by its config, an earlier export's note, or RM's layer.

    RM needs the map, so a ConvNeXt that it trained normalises first; mmpretrain's own default is to pool first.
    """
    if 'gap_before_final_norm' in backbone:
        return not backbone['gap_before_final_norm']
    if isinstance(meta.get('norm_first'), bool):
        return meta['norm_first']
    return any(key.startswith(ROI_LAYER) for key in network.head)


def check_classifier(network: Network, source: Path, linear: bool) -> None:
    """Raise unless a network is a backbone and one linear layer; a stack of layers will do where not ``linear``."""
    if not network.backbone:
        raise UserFileError(f'{source} has no backbone in it: {abbreviate([*network.head, *network.others])}')
    parts = [key for key in network.others if not key.startswith('data_preprocessor.')]
    if parts:
        raise UserFileError(f'{source} is not a classifier: besides backbone and head it has {abbreviate(parts)}.')
    extra = [key for key in network.head if not key.startswith(('fc.', f'{ROI_LAYER}.'))]
    if not linear and extra and all(re.match(r'layers\.\d+\.', key) for key in extra):
        return  # StackedLinearClsHead
    if extra or not {'fc.weight', 'fc.bias'} <= set(network.head):
        found = abbreviate(network.head) or 'nothing'
        raise UserFileError(f'{source} has no linear classifier fc in its head, only {found}.')


def verify(backbone: StateDict, source: Path) -> Optional[dict]:
    """Build the network that the tensors look like and compare: what is written is complete.

    Returns:
        dict | None: Its config; None for a backbone that mmrm's configs do not use, which is not verified.

    Raises:
        UserFileError: If names or shapes differ.
    """
    config = identify(backbone)
    if config is not None:
        from mmpretrain.registry import MODELS

        targets.fill_registry(config)
        problems = compare(MODELS.build(dict(config)).state_dict(), backbone)
        if problems:
            raise UserFileError(f'{source} looks like {describe(backbone)}, but does not fit: {problems}')
    return config


def halved(state_dict: StateDict, source: Path) -> StateDict:
    """Tensors in float16; counters stay as they are.

    Raises:
        UserFileError: If a value is too large for it.
    """
    found = OrderedDict()
    for key, value in state_dict.items():
        found[key] = value.half() if value.is_floating_point() else value
        if value.is_floating_point() and value.isfinite().all() and not found[key].isfinite().all():
            raise UserFileError(f'{key} of {source} has values up to {value.abs().max():.3g}, too large for float16.')
    return found


def source_and_out(checkpoint: Union[str, Path], out: Union[str, Path], overwrite: bool) -> Tuple[Path, Path]:
    """The file to read (:func:`~mmrm.weights.find_checkpoint`) and the file to write, both checked."""
    out = check_out(out, overwrite, SUFFIXES)
    source = find_checkpoint(checkpoint)
    if out.exists() and out.samefile(source):
        raise UserFileError(f'{out} is the file to read: it is never replaced. Choose another name.')
    return source, out


def save(state_dict: StateDict, out: Path, meta: dict, overwrite: bool = False, bare: bool = False) -> dict:
    """Write weights and their origin: the file appears whole or not at all.

    Args:
        state_dict (dict): The tensors.
        out (Path): ``.pth`` or ``.safetensors``.
        meta (dict): Plain values, put beside the tensors.
        overwrite (bool): Whether an existing file may be replaced. Defaults to False.
        bare (bool): Whether a ``.pth`` is the state dict itself, as torchvision and timm have it; ``meta`` is then an
            attribute of it. Defaults to False: ``{'state_dict', 'meta'}``.

    Returns:
        dict: ``meta``.
    """
    check_finite(state_dict, {}, out)
    # Own storages, so that no view drags the rest of a checkpoint along.
    tensors = OrderedDict(
        (key, value.detach().cpu().clone(memory_format=torch.contiguous_format)) for key, value in state_dict.items()
    )
    with atomic_write(out, overwrite) as part:
        try:
            if out.suffix == '.safetensors':
                from safetensors.torch import save_file

                save_file(tensors, part, metadata=dict(format='pt', meta=json.dumps(meta)))
            elif bare:
                tensors.meta = meta
                torch.save(tensors, part)
            else:
                torch.save(dict(meta=meta, state_dict=tensors), part)
        except Exception as error:  # a full disk is a RuntimeError of torch's and a SafetensorError
            raise UserFileError(f'{out} could not be written: {error}') from error
    return meta
