"""Processes side by side: as many at a time as there are slots, each when what it waits for is done."""

import os
import subprocess
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Callable, Dict, List, Sequence, TypeVar, Union

from mmrm.utils.paths import PACKAGE

Task = TypeVar('Task')
Start = Callable[..., subprocess.Popen]
PATIENCE = 60  # seconds that a process has to save and end by itself after SIGTERM


def run_side_by_side(
    tasks: Sequence[Task],
    slots: Sequence[dict],
    work: Callable[[Task, dict, Start], bool],
    ready: Callable[[Task], bool] = lambda task: True,
    tick: Callable[[], None] = lambda: None,
    every: float = 1.0,
) -> None:
    """Work on all tasks, in their order, one per slot at a time.

    Args:
        tasks: Whatever ``work`` takes.
        slots: What the processes of a task get from the place it runs at, such as its GPUs and its port.
        work: Called in a thread with a task, its slot and ``start``. It starts processes with ``start``, which is
            ``subprocess.Popen``, waits for them, and returns whether further tasks may begin.
        ready: Whether a task may begin now. If none may and none runs, the rest is given up.
        tick: Called in this thread, every ``every`` seconds and when a task has ended.
        every: Seconds between two calls of ``tick``.

    An exception of ``work`` or an interrupt ends the processes that run and is raised again.
    """
    waiting, free = list(tasks), list(slots)
    running: Dict[Future, dict] = {}
    processes: List[subprocess.Popen] = []
    interrupted = Event()

    def start(*args, **kwargs) -> subprocess.Popen:
        process = subprocess.Popen(*args, **kwargs)
        processes.append(process)
        if interrupted.is_set():
            process.terminate()
        return process

    with ThreadPoolExecutor(max(len(free), 1)) as pool:
        try:
            while waiting or running:
                for task in [task for task in waiting if ready(task)][: len(free)]:
                    waiting.remove(task)
                    slot = free.pop(0)
                    running[pool.submit(work, task, slot, start)] = slot
                if not running:
                    break
                done, _ = wait(running, every, FIRST_COMPLETED)
                for future in done:
                    free.insert(0, running.pop(future))
                    if not future.result():
                        waiting.clear()
                tick()
        except BaseException:
            interrupted.set()
            _end(processes)
            raise


def _end(processes: Sequence[subprocess.Popen]) -> None:
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
