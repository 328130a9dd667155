"""Which weights these are: hashes, and the note on their source that every file written here carries."""

import hashlib
from pathlib import Path
from typing import Mapping, NamedTuple

import torch

from ..utils.checkpoints import meta_of, named_tensors, read_checkpoint, tensor_hash
from ..utils.errors import UserFileError, abbreviate
from ..version import __version__
from .layouts import StateDict


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
    """Read a file of weights and what it says of itself.

    Training checkpoints with an EMA keep the averaged weights in ``state_dict``, so those are taken.

    Raises:
        UserFileError: If it cannot be read, or is not what it says (:func:`~mmrm.weights.read_checkpoint`), or has no
            named tensors.
    """
    checkpoint = read_checkpoint(file)
    state_dict = named_tensors(checkpoint)
    if not isinstance(state_dict, Mapping):
        kind = type(checkpoint).__name__
        raise UserFileError(f'{file} holds no weights: it is a {kind}, not a dictionary of tensors.')
    tensors = {str(key): value for key, value in state_dict.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        entries = abbreviate(map(str, state_dict))
        raise UserFileError(f'{file} holds no weights: no tensor among its entries ({entries}).')
    return Weights(file, tensors, meta_of(checkpoint, file))


def provenance(weights: Weights, written: StateDict) -> dict:
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
    dataset = weights.meta.get('dataset_meta')
    classes = dataset.get('classes') if isinstance(dataset, Mapping) else None
    if isinstance(classes, (list, tuple)) and all(isinstance(name, str) for name in classes):
        note['dataset_meta'] = dict(classes=list(classes))  # mmpretrain's inferencers show them
    return note


def file_hash(file: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(file, 'rb') as stream:
        for block in iter(lambda: stream.read(1 << 20), b''):
            digest.update(block)
    return digest.hexdigest()
