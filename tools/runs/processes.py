"""The processes that train: their variables, their memory, and how they are ended."""

import os
import subprocess
from typing import Sequence, Union

from mmrm.utils.paths import PACKAGE

PATIENCE = 60  # seconds that a process has to save and end by itself after SIGTERM


def end(processes: Sequence[subprocess.Popen]) -> None:
    """End what still runs: politely, then not."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        process.terminate()
    for process in alive:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()


# Large tensors come and go with every step; glibc would give their pages back each time, and the system empty new ones.
# These keep them, in huge pages: the same numbers, sooner (benchmarks/allocator.py). Other C libraries ignore it.
KEEP_MEMORY = dict(
    THP_MEM_ALLOC_ENABLE='1', MALLOC_MMAP_MAX_='0', MALLOC_TRIM_THRESHOLD_=str(1 << 40), MALLOC_TOP_PAD_=str(1 << 28)
)


def on_cpu(threads: Union[int, str]) -> dict:
    """The variables of a process that trains on the CPU; how the user wants memory to be kept stays."""
    kept = {key: os.environ.get(key, value) for key, value in KEEP_MEMORY.items()}
    return dict(kept, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))


def environment(**variables: str) -> dict:
    """The variables of a process that this one starts: it finds this mmrm, and knows whom to end with."""
    modules = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get('PYTHONPATH')]))
    return dict(os.environ, PYTHONPATH=modules, MMRM_PARENT=str(os.getpid()), PYTHONUNBUFFERED='1', **variables)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def clock(seconds: float) -> str:
    """Seconds in words: '40 s', '7 min 05 s', '3 h 05 min'."""
    seconds = round(seconds)
    if seconds < 60:
        return f'{seconds} s'
    minutes = seconds // 60
    return f'{minutes} min {seconds % 60:02d} s' if minutes < 60 else f'{minutes // 60} h {minutes % 60:02d} min'
