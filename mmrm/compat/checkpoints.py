"""mmengine reads checkpoints without executing their pickle, and reads its own ones on torch >= 2.6.

A pickle is a program. From torch 2.6 on ``torch.load`` refuses every global that is not on an allow-list, and with it
mmengine's own checkpoints; OneDL's mmengine then loads the file again and executes it. Where torch has an allow-list
(2.4 or newer), :func:`apply` adds to it the few harmless things that mmengine's checkpoints hold, and makes all that
loads through mmengine (``resume``, ``load_from``, ``init_cfg``, also from the web) keep to it, whatever the defaults.
Files are checked as :func:`mmrm.utils.checkpoints.read_checkpoint` does it, checksums included.
On older torch mmengine's loader stays as it is; :func:`mmrm.utils.checkpoints.read_checkpoint` refuses there too.
"""

import functools
import os
import pickle
import threading
from contextlib import contextmanager
from typing import Callable, List

import numpy as np
import torch

NUMBERS = tuple(f'{kind}{size}' for kind, sizes in dict(b='1', i='1248', u='1248', f='248').items() for size in sizes)
STATISTICS = ('min', 'max', 'current', 'mean')
FORCE, FORCE_NOT = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD', 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
_environment = threading.RLock()


def _refuse(what: str) -> None:
    raise pickle.UnpicklingError(f'Unsupported global: GLOBAL {what} was not an allowed global')


def number_type(code: str, align: bool = False, copy: bool = False) -> np.dtype:
    """``numpy.dtype`` for plain numbers only: no objects, no structures."""
    if code not in NUMBERS:
        _refuse(f'numpy.dtype({code!r})')
    return np.dtype(code, align, copy)


def empty_array(kind: type, shape: tuple, code: bytes) -> np.ndarray:
    """NumPy's ``_reconstruct`` for a plain array; the pickle then sets its shape, type and contents."""
    if kind is not np.ndarray:
        _refuse(f'numpy._reconstruct({kind!r})')
    return np.empty(0, np.int8)


def number(dtype: np.dtype, data: bytes) -> np.generic:
    """NumPy's ``scalar``: one number."""
    return np.frombuffer(data, dtype, 1)[0]


def no_bytes() -> bytes:
    """``bytes()``, the contents of an empty array."""
    return b''


def statistic(owner: type, name: str) -> Callable:
    """One of ``HistoryBuffer``'s four statistics.

    mmengine stores these functions with every log value, and a pickle fetches them with ``getattr``, which gives access
    to all there is in a process. So this look-up of four names answers under the name of ``getattr``.
    """
    from mmengine.logging import HistoryBuffer

    if owner is not HistoryBuffer or name not in STATISTICS:
        _refuse(f'getattr({owner!r}, {name!r})')
    return getattr(HistoryBuffer, name)


def _as(path: str, function: Callable) -> Callable:
    """A copy of ``function`` that the allow-list knows as ``path``."""

    @functools.wraps(function)
    def alias(*args):
        return function(*args)

    alias.__module__, alias.__name__ = path.rsplit('.', 1)
    alias.__qualname__ = alias.__name__
    return alias


def allowed() -> List[Callable]:
    """What mmengine's checkpoints need: its log buffer and NumPy's numbers and arrays of numbers.

    NumPy's functions are known under the names of NumPy 1 and 2, so that one reads what the other wrote.
    """
    from mmengine.logging import HistoryBuffer

    numpy = [
        _as(f'{module}.{name}', function)
        for module in ('numpy.core.multiarray', 'numpy._core.multiarray')
        for name, function in (('_reconstruct', empty_array), ('scalar', number))
    ]
    types = sorted({type(np.dtype(code)) for code in NUMBERS}, key=str)
    numpy += [np.ndarray, _as('numpy.dtype', number_type), _as('builtins.bytes', no_bytes), *types]
    return [HistoryBuffer, _as('builtins.getattr', statistic), *numpy]


@contextmanager
def weights_only():
    """Inside, every ``torch.load`` reads weights only, also where its caller or the environment asks for more."""
    with _environment:
        before = {name: os.environ.pop(name, None) for name in (FORCE, FORCE_NOT)}
        os.environ[FORCE] = '1'
        try:
            yield
        finally:
            del os.environ[FORCE]
            os.environ.update({name: value for name, value in before.items() if value is not None})


def _load(file, map_location=None, weights_only=None):
    """In place of the function of OneDL's mmengine that tries a second time with ``weights_only=False``."""
    return torch.load(file, map_location=map_location, weights_only=True)


def needed() -> bool:
    """Whether torch has an allow-list (2.4 or newer) and :func:`apply` has not been here."""
    if not hasattr(torch.serialization, 'add_safe_globals'):
        return False
    from mmengine.runner.checkpoint import CheckpointLoader

    return not hasattr(CheckpointLoader.load_checkpoint, 'strict')


def apply() -> None:
    """Extend torch's allow-list and hold mmengine's loader to it."""
    from mmengine.runner import checkpoint

    torch.serialization.add_safe_globals(allowed())
    if hasattr(checkpoint, '_safe_torch_load'):
        checkpoint._safe_torch_load = _load
    inner = checkpoint.CheckpointLoader.load_checkpoint.__func__

    @functools.wraps(inner)
    def load_checkpoint(cls, filename, *args, **kwargs):
        from ..utils.checkpoints import check_content, check_file, read_checkpoint, refusal

        local = os.path.exists(os.path.expanduser(filename))
        if local:
            check_file(filename)
            if str(filename).endswith('.safetensors'):  # not every torch reads it
                return read_checkpoint(filename)
        try:
            with weights_only():
                checkpoint = inner(cls, filename, *args, **kwargs)
        except pickle.UnpicklingError as error:
            raise refusal(filename, error) from None
        if local:
            check_content(filename, checkpoint)
        return checkpoint

    load_checkpoint.strict = True
    checkpoint.CheckpointLoader.load_checkpoint = classmethod(load_checkpoint)
