"""Which weights these are: hashes, and the note on their origin that every file written here carries."""
import hashlib
import json
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional

import torch

from ..utils.checkpoints import read_checkpoint
from ..utils.errors import UserFileError
from ..version import __version__
from .layouts import COUNTER, StateDict, abbreviate


class Weights(NamedTuple):
    """Args:
        file (Path): Where they were read.
        tensors (dict): Named tensors, as in the file.
        meta (dict): What the file says of itself; empty if nothing.
    """
    file: Path
    tensors: StateDict
    meta: dict


def read_weights(file: Path) -> Weights:
    """Read a file of weights. If it carries mmrm's hash, its tensors must have it.

    Raises:
        UserFileError: If it cannot be read (:func:`~mmrm.weights.read_checkpoint`), has no tensors or another hash.
    """
    checkpoint = read_checkpoint(file)
    tensors = state_dict_of(checkpoint, file)
    meta = meta_of(checkpoint, file)
    if 'mmrm_version' in meta and meta.get('sha256') != tensor_hash(tensors):
        raise UserFileError(f'{file} was changed or damaged after it was written: its tensors do not have the hash '
                            f'{str(meta.get("sha256"))[:16]}... that it carries. Export it again.')
    return Weights(file, tensors, meta)


def state_dict_of(checkpoint: Any, file: Path) -> StateDict:
    """The tensors of a checkpoint: its ``state_dict`` or ``model``, or itself if it is one.

    Training checkpoints with an EMA keep the averaged weights in ``state_dict``, so those are taken.

    Args:
        checkpoint: What was read from ``file``.
        file (Path): Named in the error.

    Raises:
        UserFileError: If there are no named tensors in it.
    """
    state_dict = checkpoint
    for name in ('state_dict', 'model'):
        if isinstance(checkpoint, Mapping) and isinstance(checkpoint.get(name), Mapping):
            state_dict = checkpoint[name]
            break
    if not isinstance(state_dict, Mapping):
        kind = type(checkpoint).__name__
        raise UserFileError(f'{file} holds no weights: it is a {kind}, not a dictionary of tensors.')
    tensors = {str(key): value for key, value in state_dict.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        entries = abbreviate(map(str, state_dict))
        raise UserFileError(f'{file} holds no weights: no tensor among its entries ({entries}).')
    return tensors


def meta_of(checkpoint: Any, file: Path) -> dict:
    """What a file says of itself: ``meta`` in a checkpoint, on a bare state dict written here, in a safetensors header.

    The authors' checkpoints have their ``epoch`` beside the weights.
    """
    if file.suffix == '.safetensors':
        from safetensors import safe_open
        with safe_open(str(file), 'pt') as opened:
            note = (opened.metadata() or {}).get('meta', '{}')
        try:
            meta = json.loads(note)
        except ValueError:  # another program's
            meta = None
    elif isinstance(checkpoint, Mapping) and isinstance(checkpoint.get('meta'), Mapping):
        meta = checkpoint['meta']
    else:
        meta = getattr(checkpoint, 'meta', None)
    meta = dict(meta) if isinstance(meta, Mapping) else {}
    if isinstance(checkpoint, Mapping) and isinstance(checkpoint.get('epoch'), int):
        meta.setdefault('epoch', checkpoint['epoch'])
    return meta


def origin(weights: Weights, written: StateDict) -> dict:
    """The note for a file made of ``weights``: plain values only.

    Args:
        weights (Weights): The source.
        written (dict): The tensors to be written.
    """
    source = dict(file=weights.file.name, sha256=file_hash(weights.file))
    for key, kind in (('epoch', int), ('iter', int), ('experiment_name', str), ('origin', Mapping)):
        if isinstance(weights.meta.get(key), kind):
            source[key] = weights.meta[key]
    note = dict(mmrm_version=__version__, sha256=tensor_hash(written), origin=source)
    classes = _classes(weights.meta)
    return dict(note, dataset_meta=dict(classes=classes)) if classes else note


def _classes(meta: dict) -> Optional[list]:
    """The names of the classes, which mmpretrain's inferencers show."""
    dataset = meta.get('dataset_meta')
    classes = dataset.get('classes') if isinstance(dataset, Mapping) else None
    if not isinstance(classes, (list, tuple)) or not all(isinstance(name, str) for name in classes):
        return None
    return list(classes)


def tensor_hash(state_dict: StateDict) -> str:
    """SHA-256 of names, types, shapes and values, in the order of the names.

    BN's counters are left out: some layouts lack them, and they change nothing in inference.
    """
    digest = hashlib.sha256()
    for key in sorted(state_dict):
        if key.endswith(COUNTER):
            continue
        tensor = state_dict[key].detach().cpu().contiguous()
        digest.update(f'{key} {tensor.dtype} {tuple(tensor.shape)}\n'.encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def file_hash(file: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(file, 'rb') as stream:
        for block in iter(lambda: stream.read(1 << 20), b''):
            digest.update(block)
    return digest.hexdigest()
