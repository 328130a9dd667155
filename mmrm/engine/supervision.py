"""What the processes of a run on one node and their launcher tell each other, through a folder of small files.

``MMRM_RUN_DIR`` is that folder; the launcher makes and removes it. Without it, nothing here does anything.

    beat-<local rank>    process id, how many signs of life, how far it is, what it did; written by the process
    stop                 the run is to end; written by the launcher
    stopped              why the run ended; written by a process that was asked to end and has kept everything
    mistake              a process ended with exit code 2: to start it again would not help
"""

import contextlib
import os
from pathlib import Path
from typing import Dict, NamedTuple, Optional

FOLDER = 'MMRM_RUN_DIR'
STOP, STOPPED, MISTAKE = 'stop', 'stopped', 'mistake'
LENGTH = 120  # bytes of a beat


class Beat(NamedTuple):
    """A sign of life."""

    pid: int
    number: int
    place: int  # what comes later in a run has a higher one, the same in all processes
    did: str


class _State:
    file: Optional[int] = None
    count = place = 0


def folder() -> Optional[Path]:
    """The folder of this run; None if nobody watches it."""
    return Path(os.environ[FOLDER]) if os.environ.get(FOLDER) else None


def join(local_rank: int) -> None:
    """Show the launcher this process. Call it when signals are caught."""
    there = folder()
    if there is not None:
        _State.file = os.open(there / f'beat-{local_rank}', os.O_RDWR | os.O_CREAT, 0o600)
        _State.count = _State.place = 0
        beat('started')


def beat(did: str, place: Optional[int] = None) -> None:
    """Tell that this process gets on, and how far it is (None: as far as before). It takes some microseconds."""
    if _State.file is not None:
        _State.count += 1
        _State.place = _State.place if place is None else place
        line = f'{os.getpid()} {_State.count} {_State.place} {did}'.encode()[: LENGTH - 1]
        os.pwrite(_State.file, line.ljust(LENGTH - 1) + b'\n', 0)


def read_beats(there: Path) -> Dict[int, Beat]:
    """The last sign of life of each process, by its local rank."""
    beats = {}
    for path in there.glob('beat-*'):
        words = path.read_bytes().decode(errors='replace').split(maxsplit=3)
        if len(words) == 4:
            pid, number, place = map(int, words[:3])
            beats[int(path.name[5:])] = Beat(pid, number, place, words[3].strip())
    return beats


def is_alive(pid: int) -> bool:
    """Whether a process of this user is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def another_is_gone() -> bool:
    """Whether a process of this run on this node has ended."""
    there = folder()
    return there is not None and any(not is_alive(beat.pid) for beat in read_beats(there).values())


def note(name: str, text: str = '') -> None:
    """Leave a note in the folder, if there is one."""
    there = folder()
    if there is not None and there.is_dir():
        (there / name).write_text(text)


def noted(name: str) -> bool:
    """Whether there is a note of that name."""
    there = folder()
    return there is not None and (there / name).exists()


def passed_on() -> int:
    """The number of the signal that the launcher was asked to end by, 0 for none."""
    there = folder()
    with contextlib.suppress(OSError, ValueError):
        return int((there / STOP).read_text()) if there is not None else 0
    return 0
