"""Which process of a run this is, lines that only one of them prints, and how a process ends."""

import atexit
import ctypes
import os
import signal
import sys
from typing import Dict, Set

# Set by a launcher: the file to which its processes report (mmrm.engine.launch), and its process id.
STATUS, PARENT = 'MMRM_STATUS', 'MMRM_PARENT'
# The names of torch's variables in each launcher.
RANK_VARIABLES = {
    'pytorch': dict(RANK='RANK', WORLD_SIZE='WORLD_SIZE', LOCAL_RANK='LOCAL_RANK'),
    'slurm': dict(RANK='SLURM_PROCID', WORLD_SIZE='SLURM_NTASKS', LOCAL_RANK='SLURM_LOCALID'),
}
_warned: Set[str] = set()


def local_rank() -> int:
    """The number of this process on its node."""
    return int(os.environ.get('LOCAL_RANK', 0))


def launched() -> bool:
    """Whether mmrm's launcher started this process; it has checked the input then, and printed what it found."""
    return STATUS in os.environ and 'TORCHELASTIC_RUN_ID' in os.environ


def is_reporting_process() -> bool:
    """Whether this process is the one of its node that prints what all of them know."""
    return local_rank() == 0 and not launched()


def thread_variables(processes: int, cpu: bool = True) -> Dict[str, str]:
    """Each of ``processes`` on the CPU gets an equal share of the cores, on GPUs one; ``OMP_NUM_THREADS`` goes first.

    Both variables must be equal: torch prefers ``MKL_NUM_THREADS``, other libraries read ``OMP_NUM_THREADS``.
    """
    threads = os.environ.get('OMP_NUM_THREADS') or str(max(1, cores() // processes) if cpu else 1)
    return dict(OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)


def print_once(text: str) -> None:
    """Print a line, once per node."""
    if is_reporting_process():
        print(text, flush=True)


def warn(text: str) -> None:
    """Print a warning on stderr, once per node."""
    if is_reporting_process() and text not in _warned:
        _warned.add(text)
        print(f'warning: {text}', file=sys.stderr, flush=True)


def follow_parent() -> None:
    """End with the process that ``MMRM_PARENT`` names (Linux), if that one started this one.

    torchrun's processes live in sessions of their own: after a kill -9 of the launcher they would continue writing into
    the work dir.
    """
    parent = int(os.environ.get(PARENT) or 0)
    if not parent or not sys.platform.startswith('linux'):
        return
    started = os.getppid() == parent
    if started:
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent and (started or launched()):  # it was gone before
        sys.exit(1)


def leave(code: int = 0, wait: bool = True) -> None:
    """End the process group and, unless this process ran alone with code 0, the process.

    Python's ordinary exit tears gloo's threads down, and under load that aborts now and then: a finished run would
    count as failed.
    """
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        if wait:
            distributed.barrier()
        if code == 0 and distributed.get_backend() == 'nccl':
            distributed.destroy_process_group()
        else:
            atexit._run_exitfuncs()  # logs, visualizers
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if code:
        sys.exit(code)


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
