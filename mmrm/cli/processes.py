"""The processes of a run on this node: how they are started and watched, asked to end, started again, and left.

torchrun starts them. What it lacks is here: it would end them 30 seconds after SIGTERM, knows nothing of SIGUSR1, and
does not notice that one of them hangs. Both sides talk through a folder (:mod:`mmrm.engine.supervision`).
"""

import atexit
import contextlib
import ctypes
import errno
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Set, Tuple

import torch

from ..engine import stopping, supervision
from ..engine.runner import MEETING_FILE
from ..engine.supervision import Beat
from ..utils.errors import UserError, UserValueError, one_line
from ..utils.processes import print_once

HANG_MINUTES = 10
EXIT_HUNG = 124  # that of coreutils' timeout


# ------------------------------------------------------------------------------------------------ environment variables
def whole_number(environ: dict, name: str, default: int, low: int, high: int) -> int:
    """An environment variable that is a whole number; an empty one counts as none."""
    text = environ.get(name) or str(default)
    if not text.isdecimal() or not low <= int(text) <= high:
        raise UserValueError(f'{name}={text}: a whole number from {low} to {high} is allowed.')
    return int(text)


def read_nodes(environ: dict) -> Tuple[int, int, str, int]:
    """``NNODES``, ``NODE_RANK``, ``MASTER_ADDR`` and ``PORT``."""
    nodes = whole_number(environ, 'NNODES', 1, 1, 65536)
    node_rank = whole_number(environ, 'NODE_RANK', 0, 0, 65535)
    port = whole_number(environ, 'PORT', 29500, 1, 65535)
    if node_rank >= nodes:
        raise UserValueError(f'NODE_RANK={node_rank}: with NNODES={nodes} it must be from 0 to {nodes - 1}.')
    address = environ.get('MASTER_ADDR') or '127.0.0.1'
    if nodes > 1 and not environ.get('MASTER_ADDR'):
        print_once('MASTER_ADDR is not set: 127.0.0.1 is taken, which is right only if all nodes are this machine.')
    try:
        socket.getaddrinfo(address, port)
    except OSError as error:
        raise UserValueError(f'MASTER_ADDR={address} is not a known host: {error.strerror}.') from error
    return nodes, node_rank, address, port


def read_limits(environ: dict) -> Tuple[int, float]:
    """``MAX_RESTARTS`` and ``HANG_MINUTES``."""
    text = environ.get('HANG_MINUTES') or str(HANG_MINUTES)
    if not re.fullmatch(r'\d+(\.\d+)?', text):
        raise UserValueError(f'HANG_MINUTES={text}: a number of minutes is allowed, 0 for never.')
    return whole_number(environ, 'MAX_RESTARTS', 0, 0, 1000), float(text)


def meets_through_file(nodes: int, environ: dict) -> bool:
    """Whether the processes find each other through a file: on one node, unless ``MMRM_RENDEZVOUS=tcp``."""
    choice = environ.get('MMRM_RENDEZVOUS') or 'file'
    if choice not in ('file', 'tcp'):
        raise UserValueError(f'MMRM_RENDEZVOUS={choice}: file or tcp is allowed.')
    return nodes == 1 and choice == 'file'


def check_port(port: int) -> None:
    """Raise if a port of this machine cannot be listened at."""
    for family, host in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')):
        try:
            probe = socket.socket(family)
        except OSError:  # no such protocol here
            continue
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does: a port just left is free
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    raise UserValueError(port_message(port, error.strerror)) from error


def port_message(port, why: str = 'Address already in use') -> str:
    """What to do about a port that another program has."""
    return f'port {port} cannot be used: {why}. Choose another one, the same on all nodes, with PORT=...'


# --------------------------------------------------------------------------------------------------------- the launcher
def run_processes(
    gpus: int, nodes: int, node_rank: int, address: str, port: int, command: List[str], saves: bool = True
) -> None:
    """Run ``command`` in ``gpus`` processes of this node, and exit as they did.

    The exit code is 75 if they were asked to end and kept everything, 124 if one of them hung, else that of the first
    one that failed. ``MAX_RESTARTS`` says how often they are started again after a failure, ``HANG_MINUTES`` after how
    long one that does not get on is ended. Without ``saves`` the processes have nothing to save when they are asked to
    end.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    restarts, minutes = read_limits(os.environ)
    by_file = meets_through_file(nodes, os.environ)
    logging.getLogger('torch.distributed.elastic').setLevel(logging.CRITICAL)  # said below, in one line
    os.environ.setdefault('TORCH_ELASTIC_SHUTDOWN_TIMEOUT', '10')  # for the others when one has failed
    folder = Path(tempfile.mkdtemp(prefix='mmrm-run-'))  # for this user alone
    os.environ[supervision.FOLDER] = str(folder)
    os.environ['MMRM_LAUNCH'] = uuid.uuid4().hex
    options = [f'--nnodes={nodes}', f'--nproc_per_node={gpus}', f'--max_restarts={restarts}']
    if by_file:
        os.environ[MEETING_FILE] = str(folder / 'meeting')
        os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] = '1'  # it would listen for processes that do not call
        for name in ('GLOO_SOCKET_IFNAME', 'NCCL_SOCKET_IFNAME'):
            os.environ.setdefault(name, loopback())
        options += ['--rdzv_backend=c10d', f'--rdzv_endpoint={folder / "launcher"}', '--rdzv_conf=store_type=file']
        options += [f'--rdzv_id={folder.name}', '--local_addr=127.0.0.1']
    else:
        options += [f'--node_rank={node_rank}', f'--master_addr={address}', f'--master_port={port}']
    parsed = parse_args([*options, *command])
    watcher = Watcher(folder, gpus, node_rank * gpus, 60 * minutes, saves)
    try:
        with watcher.running(parsed):
            run(parsed)
        watcher.exit_if_stopped()
    except ChildFailedError as error:
        watcher.exit_if_stopped()
        if watcher.hung:
            sys.exit(EXIT_HUNG)  # it is told already
        # One that was killed makes the others fail, and may be noticed later.
        failures = sorted(error.failures.items(), key=lambda item: (item[1].exitcode != -9, item[1].timestamp))
        rank, code = failures[0][0], failures[0][1].exitcode
        if code < 0:
            what = f'was killed by {signal.Signals(-code).name}{" (out of memory?)" if code == -9 else ""}'
        else:
            what = f'ended with exit code {code}; its message is above'
        print(f'stopped: process {rank} of the run {what}', file=sys.stderr, flush=True)
        sys.exit(code if code > 0 else 128 - code)
    except SignalException as error:  # SIGHUP, SIGQUIT
        print(f'stopped by {signal.Signals(error.sigval).name}', file=sys.stderr, flush=True)
        sys.exit(128 + error.sigval)
    except RuntimeError as error:
        if 'timed out' in str(error):
            raise UserError(f'node 0 did not answer at MASTER_ADDR={address} PORT={port}: {one_line(error)}') from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def loopback() -> str:
    """The name of the interface that only this machine reaches."""
    names = [name for _, name in socket.if_nameindex()] if hasattr(socket, 'if_nameindex') else []
    return next((name for name in names if name in ('lo', 'lo0')), 'lo')


class Watcher:
    """Passes signals on to the processes of a run, and ends those that hang.

    Args:
        folder: Where the processes and the launcher leave their notes.
        processes: How many there are on this node.
        first: The rank of the first of them.
        limit: Seconds without a sign of life after which a process counts as hung; 0 for never.
        saves: Whether the processes save when they are asked to end; else they are ended.
    """

    TICK = 0.5  # seconds

    def __init__(self, folder: Path, processes: int, first: int, limit: float, saves: bool = True):
        self.folder = folder
        self.processes = processes
        self.first = first
        self.limit = limit
        self.saves = saves
        self.hung = False
        self._interrupts = 0
        self._told: Set[int] = set()
        self._beats: Dict[int, Beat] = {}
        self._silent: Dict[int, float] = {}
        self._over = threading.Event()

    @contextlib.contextmanager
    def running(self, torchrun) -> Iterator[None]:
        """Watch while torchrun, whose parsed options are given, runs."""
        before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        leave_signals_alone(torchrun, self._on_signal)
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            for number in stopping.SIGNALS:  # the processes are gone: there is nothing to end but this one
                signal.signal(number, signal.SIG_IGN)

    def exit_if_stopped(self) -> None:
        """Exit with 75 if the processes ended because they were asked to and lost nothing by it."""
        note = self.folder / supervision.STOPPED
        if note.exists():
            print(note.read_text(), file=sys.stderr, flush=True)
            sys.exit(stopping.EXIT_STOPPED)

    # ------------------------------------------------------------------------------------------------------- signals
    def _on_signal(self, number: int, frame) -> None:
        self._interrupts += number == signal.SIGINT
        if not self.saves or self._interrupts > 1:
            for beat in supervision.read_beats(self.folder).values():
                send(beat.pid, signal.SIGKILL)
            told = f'stopped by {signal.Signals(number).name}'
            if self.saves:
                told = 'interrupted twice: ended at once. The last checkpoint is complete: --resume'
            os.write(2, f'{told}\n'.encode())
            shutil.rmtree(self.folder, ignore_errors=True)
            os._exit(128 + number)
        (self.folder / supervision.STOP).write_text(str(int(number)))
        beats = supervision.read_beats(self.folder)
        if any(beat.place for beat in beats.values()):
            self._pass_on()
            return
        (self.folder / supervision.STOPPED).write_text(stopping.before_training(number))
        for beat in beats.values():  # nothing has begun
            send(beat.pid, signal.SIGKILL)

    def _pass_on(self) -> None:
        """Ask the processes to end, each of them once. One that only starts finds the launcher's note."""
        for beat in supervision.read_beats(self.folder).values():
            if beat.pid not in self._told:
                self._told.add(beat.pid)
                send(beat.pid, signal.SIGUSR1)

    # ------------------------------------------------------------------------------------------------------ watching
    def _watch(self) -> None:
        # Time is counted in ticks: if the launcher itself is stopped for an hour, nobody hangs because of that.
        while not self._over.wait(self.TICK):
            beats = supervision.read_beats(self.folder)
            if (self.folder / supervision.STOPPED).exists():
                self._end_others()
            if self.limit:
                self._find_hung(beats)

    def _end_others(self) -> None:
        """One process was asked to end and has: so must all."""
        if not (self.folder / supervision.STOP).exists():
            (self.folder / supervision.STOP).write_text('')
        self._pass_on()

    def _find_hung(self, beats: Dict[int, Beat]) -> None:
        for rank in range(self.processes):
            before, now = self._beats.get(rank), beats.get(rank)
            self._silent[rank] = 0.0 if now != before else self._silent.get(rank, 0.0) + self.TICK
            if now and before and now.pid != before.pid:  # started again
                self.hung = False
        self._beats = beats
        if max(self._silent.values()) < self.limit + 2 * self.TICK:  # time for the others to come to wait for it
            return
        for rank in blamed(beats, [rank for rank, time in self._silent.items() if time >= self.limit]):
            what = beats[rank].did if rank in beats else 'was started'
            state = ' (it is stopped: state T)' if rank in beats and is_stopped(beats[rank].pid) else ''
            print(
                f'error: process {self.first + rank} of the run hangs{state}: for {self.limit / 60:g} minutes nothing '
                f'came of it after it {what}. It is ended.',
                file=sys.stderr,
                flush=True,
            )
            if rank in beats:
                send(beats[rank].pid, signal.SIGKILL)
        self.hung, self._silent = True, {}


def blamed(beats: Dict[int, Beat], silent: List[int]) -> List[int]:
    """Which of the processes that do not get on hang, and which only wait for them.

    One that has not started or is stopped hangs. Else it is the one that is behind, and if none is, all of them.
    """
    missing = [rank for rank in silent if rank not in beats]
    stopped = [rank for rank in silent if rank in beats and is_stopped(beats[rank].pid)]
    if missing or stopped:
        return missing + stopped
    last = min(beats[rank].place for rank in silent)
    return [rank for rank in silent if beats[rank].place == last]


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped (SIGSTOP); False where the system does not tell."""
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] in 'Tt'
    except OSError:
        return False


def send(pid: int, number: int) -> None:
    """Send a signal to a process, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def leave_signals_alone(torchrun, handler: Callable) -> None:
    """Keep torchrun, whose parsed options are given, from putting its own handlers in the place of ours.

    Newer versions have an option for that. Older ones always take theirs, and find it by its name.
    """
    if hasattr(torchrun, 'signals_to_handle'):
        torchrun.signals_to_handle = 'SIGHUP,SIGQUIT'
        return
    from torch.distributed.elastic.multiprocessing import api

    theirs = api._terminate_process_handler
    api._terminate_process_handler = lambda number, frame: (handler if number in stopping.SIGNALS else theirs)(
        number, frame
    )


# ---------------------------------------------------------------------------------------------------- in each process
def follow_parent(launcher: str) -> None:
    """End with the process that ``MMRM_PARENT`` names (Linux), if that one started this one.

    torchrun's processes live in sessions of their own: without this they would train on, and go on writing into the
    work dir, after a kill -9 of the launcher.
    """
    parent = int(os.environ.get('MMRM_PARENT', 0))
    if not parent or not sys.platform.startswith('linux'):
        return
    started = os.getppid() == parent
    if started:
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent and (started or launcher == 'pytorch'):  # it was gone before
        sys.exit(1)


@contextlib.contextmanager
def supervised(local_rank: int) -> Iterator[None]:
    """Inside, a signal that asks this process to end is heard, and the launcher sees that it gets on."""
    with stopping.caught():
        try:
            supervision.join(local_rank)
            if supervision.noted(supervision.MISTAKE):  # before it was started again
                sys.exit(2)
            if supervision.noted(supervision.STOP):
                leave_stopped(stopping.Stopped(stopping.before_training(supervision.passed_on() or signal.SIGTERM)))
            yield
        except UserError:
            supervision.note(supervision.MISTAKE)
            raise


def leave_stopped(stop: stopping.Stopped) -> None:
    """End this process because the run was asked to end.

    Under our launcher the exit code is 0, so that torchrun sees no failure that it would start the processes again for;
    the launcher knows from the note. Else it is 75.
    """
    stopping.ignore()
    if supervision.folder() is None:
        if int(os.environ.get('RANK') or 0) == 0:
            print(stop.message, file=sys.stderr, flush=True)
    else:
        supervision.note(supervision.STOPPED, stop.message)
    code = stopping.EXIT_STOPPED if supervision.folder() is None else 0
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        if stop.together:
            torch.distributed.barrier()
        leave_at_once(code)
    sys.exit(code)


def leave_processes() -> None:
    """End the process group when all are done.

    Python's ordinary exit tears gloo's threads down, and under load that aborts now and then: a finished run would
    count as a failed one. So a process of gloo's leaves after Python's exit functions (logs, visualizers).
    """
    if not torch.distributed.is_initialized():
        return
    torch.distributed.barrier()
    if torch.distributed.get_backend() == 'gloo':
        leave_at_once(0)
    torch.distributed.destroy_process_group()


def leave_at_once(code: int) -> None:
    """End this process after Python's exit functions, without tearing anything else down."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
