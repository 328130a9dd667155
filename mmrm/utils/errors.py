"""Mistakes of the user: one message instead of a traceback."""

import difflib
import errno
import functools
import math
import os
import sys
import traceback
from typing import Iterable


class UserError(Exception):
    """Something the user can put right: the message names it and what is allowed.

    Library code raises it (or a subclass of it that is also the fitting built-in, so that ``except ValueError`` still
    works); :func:`cli` turns it into one line on stderr and exit code 2.
    """


class UserValueError(UserError, ValueError):
    """A wrong value."""


class UserTypeError(UserError, TypeError):
    """A wrong type."""


class UserFileError(UserError, OSError):
    """A file or folder that is missing, unreadable or not what it should be."""

    def __str__(self) -> str:  # OSError would print its arguments as a tuple
        return str(self.args[0]) if self.args else ''


def check_numbers(
    owner: str, low: float, high: float = math.inf, integer: bool = False, above: bool = False, **values
) -> None:
    """Raise a :class:`UserValueError` that names ``owner`` and the value unless all are finite and from low to high.

    ``above``: ``low`` itself is not allowed.
    """
    for name, value in values.items():
        kinds = int if integer else (int, float)
        number = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not low <= value <= high or (above and value == low):
            least = f'above {low:g}' if above else f'>= {low:g}'
            span = least if high == math.inf else f'from {low:g} to {high:g}'
            raise UserValueError(f'{owner}: {name}={value!r} must be {"an integer" if integer else "a number"} {span}.')


def check_names(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a :class:`UserValueError` that names the first of ``given`` that is not known, and the nearest that is."""
    known = list(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f'did you mean {near[0]}?' if near else f'{", ".join(known)} are known.'
            raise UserValueError(f'{owner}: {name} is unknown; {hint}')


def abbreviate(names: Iterable[str], number: int = 4) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f', ... {len(names) - number} more' if len(names) > number else ''
    return ', '.join(names[:number]) + more


def printable(text: str) -> str:
    """A text without the characters that would move a terminal's cursor or change its colours."""
    return ''.join(char if char.isprintable() or char in '\n\t' else '\ufffd' for char in text)


def one_line(error: BaseException) -> str:
    """The message of an exception in one line."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    name = '' if isinstance(error, (UserError, OSError)) else f'{type(error).__name__}: '
    return name + ' '.join(text.split())


def _without_worker(text: str) -> str:
    """A message without the traceback that torch puts before it when a data-loader worker raised it."""
    lines = text.strip().splitlines()
    return lines[-1].partition('Error: ')[2] if len(lines) > 1 and lines[0].startswith('Caught ') else text


def cli(main):
    """Decorate a tool's ``main``: a :class:`UserError` becomes ``error: ...`` and exit code 2, Ctrl-C exit code 130."""

    @functools.wraps(main)
    def run(*args, **kwargs):
        try:
            return main(*args, **kwargs)
        except UserError as error:
            if os.environ.get('MMRM_TRACEBACK') == '1':  # --traceback
                traceback.print_exc()
            print(f'error: {printable(_without_worker(str(error)))}', file=sys.stderr, flush=True)
            sys.exit(2)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            print(f'error: {error.strerror}: {error.filename}', file=sys.stderr, flush=True)
            sys.exit(2)
        except KeyboardInterrupt:
            print('interrupted', file=sys.stderr, flush=True)
            sys.exit(130)

    return run
