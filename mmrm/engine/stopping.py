"""Ending a run by a signal, so that nothing of it is lost.

SIGTERM, SIGUSR1 (Slurm's warning) and the first SIGINT ask a run to end. Inside :func:`deferred` that is only noted,
and whoever trains looks at :func:`asked`; before that, :class:`Stopped` is raised at once. A second SIGINT ends the
process.
"""

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Iterator, Optional

from . import supervision

EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later
SIGNALS = tuple(
    getattr(signal, name) for name in ('SIGTERM', 'SIGUSR1', 'SIGINT') if hasattr(signal, name)
)  # Windows has no SIGUSR1


class Stopped(SystemExit):
    """A run was asked to end, and it can go on with ``--resume``. Its exit code is 75.

    Args:
        message: What to tell the user.
        together: Whether all processes of the run end at this place.
    """

    def __init__(self, message: str, together: bool = False):
        super().__init__(EXIT_STOPPED)
        self.message = message
        self.together = together

    def __str__(self) -> str:
        return self.message


class _State:
    owner: Optional[int] = None  # the process that catches signals; those that it forks do not
    asked = 0
    interrupts = 0
    deferred = 0


def asked() -> int:
    """The number of the signal that asked this process to end, 0 for none."""
    return _State.asked


def is_deferred() -> bool:
    """Whether somebody looks at :func:`asked`."""
    return _State.deferred > 0


def ask(number: int) -> None:
    """Ask this process to end, as a signal would."""
    _State.asked = _State.asked or number
    if not _State.deferred:
        check()


def ignore() -> None:
    """Ignore the signals that ask a run to end, where they were caught: it is ending."""
    for number in SIGNALS if _State.owner == os.getpid() else ():
        signal.signal(number, signal.SIG_IGN)


def check() -> None:
    """Raise if this process was asked to end."""
    if _State.asked:
        raise Stopped(before_training(_State.asked))


def before_training(number: int) -> str:
    """What to tell of a run that ends before its first iteration."""
    name = signal.Signals(number).name
    return f'stopped by {name} before the first iteration, nothing is lost. Go on with the same command and --resume.'


@contextlib.contextmanager
def caught() -> Iterator[None]:
    """Inside, the signals that ask a run to end raise :class:`Stopped` or, in :func:`deferred`, are noted.

    One that this process was told to ignore stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():  # Python's signals are the main thread's
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _State.owner, _State.asked, _State.interrupts, _State.deferred = os.getpid(), 0, 0, 0
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _note)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _State.owner, _State.asked = None, 0


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Inside, a signal that asks to end is only noted."""
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
    if number == signal.SIGINT:
        _State.interrupts += 1
        if _State.interrupts > 1:
            os.write(2, b'interrupted twice: ended at once. The last checkpoint is complete: --resume\n')
            die(number)
    # torchrun ends all processes with SIGTERM when one has failed: nothing can be done together any more.
    if number == signal.SIGTERM and supervision.another_is_gone():
        die(number)
    ask(supervision.passed_on() or number)


def die(number: int) -> None:
    """End this process by a signal, as if it had not caught it."""
    sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class LetFinish:
    """What a data-loader worker does first: it leaves the end of the run to the process that it works for.

    Ctrl-C and schedulers send their signals to all processes. A worker that died by one would take the step with it,
    and the checkpoint. SIGTERM is also how torch ends a worker that does not listen, so that a second one counts.

    Args:
        then: What the worker does next; None for nothing.
    """

    def __init__(self, then=None):
        self.then = then
        atexit.unregister(end_workers)
        atexit.register(end_workers)  # runs before multiprocessing's own, which waits for those it has sent one SIGTERM

    def __call__(self, worker_id: int) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN if number != signal.SIGTERM else _second_time)
        if hasattr(signal, 'pthread_sigmask'):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # see held
        if self.then is not None:
            self.then(worker_id)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Inside, signals wait, in this thread and in the processes that it starts: until they have :class:`LetFinish`.

    One that is sent to the whole process may still be noted: other threads, of torch for example, take it.
    """
    if not hasattr(signal, 'pthread_sigmask'):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_workers(patience: float = 1.0) -> None:
    """End the workers that are still there when the process is done: a first SIGTERM is nothing to them."""
    workers = [process for process in multiprocessing.active_children() if process.daemon]
    for process in workers:
        process.terminate()
    deadline = time.monotonic() + patience / 2
    for process in workers:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()


def _second_time(number: int, frame) -> None:
    signal.signal(number, signal.SIG_DFL)
