"""torch's list of safe classes, with what mmengine's own checkpoints hold.

A pickle is a program. From torch 2.6 on ``torch.load`` refuses every global that is not on its list of safe ones, and
with it mmengine's own checkpoints, which hold NumPy's numbers and the buffers of its log. The harmless ones are added
here, so that ``--resume``, ``load_from`` and :func:`mmrm.utils.checkpoints.read_checkpoint` work with
``weights_only=True``. torch 2.4 and 2.5 have the list, too, and use it where ``weights_only=True`` is asked for.
"""

import functools
import pickle
from typing import Callable, List

import numpy as np
import torch

REASON = "torch.load refuses mmengine's own checkpoints: their log buffers and numbers are not on its list"
VERSIONS = 'torch 2.4 and newer; by default from 2.6 on'

NUMBERS = tuple(f'{kind}{size}' for kind, sizes in dict(b='1', i='1248', u='1248', f='248').items() for size in sizes)
STATISTICS = ('min', 'max', 'current', 'mean')


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


def needed() -> bool:
    """Whether torch has a list of safe classes (2.4 or newer) without mmengine's buffer on it."""
    if not hasattr(torch.serialization, 'add_safe_globals'):
        return False
    from mmengine.logging import HistoryBuffer

    known = torch.serialization.get_safe_globals()
    return not any(HistoryBuffer in (each if isinstance(each, tuple) else (each,)) for each in known)


def apply() -> None:
    """Extend torch's list.

    Where torch takes them (2.6), with their names: OneDL's mmengine adds the bare classes for each file that it loads
    and removes them afterwards, and must not remove these.
    """
    added = allowed()
    if hasattr(torch.serialization, 'get_unsafe_globals_in_checkpoint'):
        added = [(each, f'{each.__module__}.{each.__qualname__}') for each in added]
    torch.serialization.add_safe_globals(added)
