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


class NumberType:
    """``numpy.dtype`` in a checkpoint, for plain numbers only: no objects, no structures.

    NumPy's own reads memory that is not there when a file gives it a wrong state. The state of a plain number has one
    part of interest, the order of its bytes.
    """

    dtype = np.dtype('i1')

    def __init__(self, code: str, align: bool = False, copy: bool = False):
        if code not in NUMBERS:
            _refuse(f'numpy.dtype({code!r})')
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if order not in ('<', '>', '=', '|'):
            _refuse(f'numpy.dtype with the state {state!r}')
        self.dtype = self.dtype.newbyteorder(order)


def number(kind: NumberType, data: bytes) -> np.generic:
    """NumPy's ``scalar``: one number."""
    return np.frombuffer(data, _dtype(kind), 1)[0]


class NumberArray(np.ndarray):
    """An array of numbers whose shape, type and contents come from a checkpoint; saved as NumPy's own."""

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, data = state
        numbers = np.frombuffer(data, _dtype(kind)).reshape(shape, order='F' if fortran else 'C')
        super().__setstate__(numbers.__reduce__()[2])

    def __reduce_ex__(self, protocol: int) -> tuple:
        return self.view(np.ndarray).__reduce_ex__(protocol)


def _dtype(kind) -> np.dtype:
    return kind.dtype if type(kind) is NumberType else _refuse(f'numpy.dtype of type {type(kind).__name__}')


def array_class() -> None:
    """``numpy.ndarray``, which a file may name and not call."""
    _refuse('numpy.ndarray()')


def empty_array(kind: Callable, shape: tuple, code: bytes) -> np.ndarray:
    """NumPy's ``_reconstruct`` for a plain array; the pickle then sets its shape, type and contents."""
    if getattr(kind, '__wrapped__', None) is not array_class:
        _refuse(f'numpy._reconstruct({kind!r})')
    return NumberArray(0, np.int8)


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
    numpy += [_as('numpy.ndarray', array_class), _as('numpy.dtype', NumberType), _as('builtins.bytes', no_bytes)]
    return [HistoryBuffer, _as('builtins.getattr', statistic), NumberType, NumberArray, *numpy]


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
