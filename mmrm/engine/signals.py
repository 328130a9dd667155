"""Ending a run by a signal, so that nothing of it is lost.

SIGTERM, SIGUSR1 (Slurm's warning) and the first SIGINT stop a run. Inside :func:`deferred` the signal is only noted,
and the training loop reads it with :func:`received`; else :class:`Stopped` is raised at once. A second SIGINT ends the
process.
"""

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from typing import Callable, Iterable, Iterator, Optional

EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later. A checkpoint was written that holds everything
EXIT_UNSAVED = 76  # stopped without a new checkpoint
RESUME = 'Run the same command with --resume.'
INTERRUPTED_TWICE = 'interrupted twice: stopped at once. The last checkpoint is complete: resume with --resume'
NAMES = ('SIGTERM', 'SIGUSR1', 'SIGINT')
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))  # Windows has no SIGUSR1
HAS_MASKS = hasattr(signal, 'pthread_sigmask')  # not on Windows


class Stopped(SystemExit):
    """A run was stopped by a signal.

    Args:
        message: What to print.
        saved: Whether it has written a checkpoint that holds everything: the exit code is 75 then, else 76.
        together: Whether all processes of the run end at this place.
    """

    def __init__(self, message: str, saved: bool = False, together: bool = False):
        super().__init__(EXIT_STOPPED if saved else EXIT_UNSAVED)
        self.message = message
        self.together = together

    def __str__(self) -> str:
        return self.message


class _State:
    owner: Optional[int] = None  # the process that catches signals; those that it forks do not
    received = 0
    interrupts = 0
    deferred = 0
    counts_interrupts = True
    describe: Optional[Callable[[], str]] = None  # says what of a run that does not save is lost


def received() -> int:
    """The number of the signal that stops this process, 0 for none."""
    return _State.received


def is_deferred() -> bool:
    """Whether a training loop reads :func:`received`."""
    return _State.deferred > 0


def ignore() -> None:
    """Ignore further signals where they were caught: the process is ending."""
    for number in SIGNALS if _State.owner == os.getpid() else ():
        signal.signal(number, signal.SIG_IGN)


def check() -> None:
    """Raise if this process received a signal."""
    if _State.received:
        where = _State.describe() if _State.describe else 'before the first iteration, nothing is lost. Start it again.'
        raise Stopped(f'stopped by {signal.Signals(_State.received).name} {where}')


def begin_unsaved(describe: Callable[[], str]) -> None:
    """From now on a signal ends a run that does not save. ``describe`` says where, and what is lost."""
    check()
    _State.describe = describe


@contextlib.contextmanager
def caught(count_interrupts: bool = True) -> Iterator[None]:
    """Inside, signals raise :class:`Stopped` or, in :func:`deferred`, are noted. Signals that were ignored stay so.

    Args:
        count_interrupts: Whether a second SIGINT ends the process; under a launcher, the launcher decides that.
    """
    if threading.current_thread() is not threading.main_thread():  # Python's signals are the main thread's
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _State.owner, _State.received, _State.interrupts = os.getpid(), 0, 0
    _State.counts_interrupts = count_interrupts
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _note)
    try:
        unblock()
        yield
    finally:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _State.owner, _State.received, _State.describe = None, 0, None


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Inside, a signal is only noted."""
    _State.deferred += 1
    try:
        yield
    finally:
        _State.deferred -= 1


def _note(number: int, frame) -> None:
    if os.getpid() != _State.owner:  # a process that this one forked
        if number == signal.SIGTERM:
            die(number)
        return
    if number == signal.SIGINT and _State.counts_interrupts:
        _State.interrupts += 1
        if _State.interrupts > 1:
            os.write(2, f'{INTERRUPTED_TWICE}\n'.encode())
            die(number)
    _State.received = _State.received or number
    if not _State.deferred:
        check()


def die(number: int) -> None:
    """End this process by a signal, as if it had not caught it."""
    sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def block() -> Iterable[int]:
    """Let signals wait, in this thread and in the processes that it starts, until these call :func:`unblock`.

    One that is sent to the whole process may still be noted: other threads, of torch for example, take it.

    Returns:
        The signals that were blocked before.
    """
    return signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if HAS_MASKS else ()


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Inside, signals are blocked (:func:`block`)."""
    before = block()
    try:
        yield
    finally:
        if HAS_MASKS:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Deliver signals to this thread, also those that waited."""
    if HAS_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class IgnoreSignals:
    """The ``worker_init_fn`` of a data loader whose workers are ended by the training process only.

    Ctrl-C and schedulers send their signals to all processes. A worker that died by one would take the step with it,
    and the checkpoint.

    Args:
        then: What the worker does next; None for nothing.
    """

    def __init__(self, then=None):
        self.then = then
        atexit.unregister(kill_workers)
        atexit.register(kill_workers)  # runs before multiprocessing's own, which sends SIGTERM and waits

    def __call__(self, worker_id: int) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        unblock()  # see blocked
        if self.then is not None:
            self.then(worker_id)


def kill_workers() -> None:
    """End the workers that are still there when the process is done: they ignore SIGTERM."""
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()
