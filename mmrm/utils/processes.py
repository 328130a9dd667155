"""Which process of a run this is, and lines that only one of them tells."""

import os
import sys
from typing import Set

_warned: Set[str] = set()


def local_rank() -> int:
    """The number of this process on its node."""
    return int(os.environ.get('LOCAL_RANK', 0))


def tells() -> bool:
    """Whether this process is the one of its node to tell things that all of them know."""
    told = {'MMRM_PARENT', 'TORCHELASTIC_RUN_ID'} <= set(os.environ)  # by dist.py, which started this process
    return local_rank() == 0 and not told


def print_once(text: str) -> None:
    """Print a line, once per node."""
    if tells():
        print(text, flush=True)


def warn(text: str) -> None:
    """Print a warning on stderr, once a node, and however often it is met."""
    if tells() and text not in _warned:
        _warned.add(text)
        print(f'warning: {text}', file=sys.stderr, flush=True)
