"""Checks of arguments that several batch augments share. Each returns the value or raises an error that names it."""

import math
from typing import Any

from ...utils.errors import UserValueError


def check_positive(owner: str, name: str, value: Any) -> float:
    """A finite number above 0."""
    if not _is_number(value) or not 0 < value < math.inf:
        raise UserValueError(f'{owner}: {name}={value!r} must be a finite number above 0.')
    return float(value)


def check_not_negative(owner: str, name: str, value: Any) -> float:
    """A finite number of at least 0."""
    if not _is_number(value) or not 0 <= value < math.inf:
        raise UserValueError(f'{owner}: {name}={value!r} must be a finite number >= 0.')
    return float(value)


def check_share(owner: str, name: str, value: Any) -> float:
    """A number from 0 to 1."""
    if not _is_number(value) or not 0 <= value <= 1:
        raise UserValueError(f'{owner}: {name}={value!r} must be a number from 0 to 1.')
    return float(value)


def check_count(owner: str, name: str, value: Any, least: int = 1) -> int:
    """An integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserValueError(f'{owner}: {name}={value!r} must be an integer >= {least}.')
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
