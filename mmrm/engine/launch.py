"""Several processes on this node, one per GPU: ``torch.distributed.run`` with signals, exit codes and exact restarts.

Alone, torchrun kills its processes 30 seconds after SIGTERM, dies by SIGUSR1 and leaves them running, and restarts a
run that was stopped. Here the launcher forwards signals to the processes and waits for them. They append to one file,
``MMRM_STATUS``, their process ids, that they were ``stopped`` after saving, and that a restart is no use (``mistake``).
"""

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import List, Sequence

from ..utils.errors import UserError, UserValueError
from ..utils.processes import PARENT, STATUS, launched, leave
from . import signals


def whole_number(name: str, default: int, low: int, high: int) -> int:
    """An environment variable that is a whole number; an empty one counts as not set."""
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or not low <= int(text) <= high:
        raise UserValueError(f'{name}={text} must be a whole number from {low} to {high}.')
    return int(text)


def torchrun_options(processes: int) -> List[str]:
    """The options of torchrun, from ``MAX_RESTARTS``, ``NNODES``, ``NODE_RANK``, ``MASTER_ADDR`` and ``PORT``."""
    nodes = whole_number('NNODES', 1, 1, 65536)
    rank, port = whole_number('NODE_RANK', 0, 0, nodes - 1), whole_number('PORT', 29500, 1, 65535)
    restarts = f'--max_restarts={whole_number("MAX_RESTARTS", 0, 0, 1000)}'
    options = [f'--nnodes={nodes}', f'--nproc_per_node={processes}', restarts]
    # A store of its own for each start: in the launcher's, a restart would find the addresses of the first start.
    os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] = '1'
    if nodes == 1:
        for name in ('GLOO_SOCKET_IFNAME', 'NCCL_SOCKET_IFNAME'):  # not reachable from other machines
            os.environ.setdefault(name, 'lo' if sys.platform.startswith('linux') else 'lo0')
        return [*options, '--standalone', '--local_addr=127.0.0.1']
    address = os.environ.get('MASTER_ADDR')
    if not address:
        raise UserValueError(f'NNODES={nodes} needs MASTER_ADDR, the address of the first node.')
    try:
        family, kind, *_, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as route:
            route.connect(target)  # sends nothing
            own = route.getsockname()[0]
        if rank == 0:
            socket.create_server(('', port), reuse_port=False).close()  # SO_REUSEADDR: a port just left is free
    except OSError as error:
        raise UserValueError(
            f'MASTER_ADDR={address} PORT={port} cannot be used: {error.strerror}. All nodes need the same two.'
        ) from error
    # Node 0 holds the meeting point. Nodes give each other the address that leads there, not a name.
    meeting = ['--rdzv_backend=c10d', f'--rdzv_endpoint={address}:{port}', '--rdzv_id=mmrm', f'--local_addr={own}']
    return [*options, *meeting, f'--rdzv_conf=is_host={int(rank == 0)},read_timeout=900,join_timeout=900']


# --------------------------------------------------------------------------------------------------------- the launcher
def run(script: Path, argv: Sequence[str], processes: int, saves: bool = True) -> None:
    """Run ``script`` in several processes of this node and exit as they did.

    The exit code is 75 if they were stopped and saved, 76 if they were stopped and did not, 2 after a mistake of the
    user, else that of the first failure.

    Args:
        script: What each process runs.
        argv: Its arguments.
        processes: How many.
        saves: Whether the processes handle signals by saving; else the first signal ends them.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    args = torchrun.parse_args([*torchrun_options(processes), str(script), *argv])
    logging.getLogger('torch.distributed.elastic').setLevel(logging.CRITICAL)  # the launcher prints one line itself
    folder = tempfile.mkdtemp(prefix='mmrm-')
    os.environ.update({STATUS: f'{folder}/status', PARENT: str(os.getpid()), 'MMRM_LAUNCH': uuid.uuid4().hex})
    forwarder = Forwarder(processes, saves)
    try:
        # In a thread, where torch leaves the signal handlers alone. Signals are blocked in it, and so in a process that
        # it starts, until that process can handle them.
        with ThreadPoolExecutor(1, initializer=signals.block if saves else None) as pool, forwarder.installed():
            done = pool.submit(torchrun.run, args)
            while not done.done():
                wait([done], timeout=0.2)
                forwarder.forward()
        if lines('mistake'):
            sys.exit(2)
        for line in sorted(lines('stopped'))[-1:]:  # if one process lost something, that
            code, _, message = line.partition(' ')
            print(message, file=sys.stderr, flush=True)
            sys.exit(int(code))
        done.result()
    except ChildFailedError as error:
        exit_failed(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Forwarder:
    """Forwards signals from the launcher to the processes. A second SIGINT ends them at once.

    Args:
        processes: How many there are on this node.
        saves: Whether they save; else the first signal ends them at once.
    """

    def __init__(self, processes: int, saves: bool):
        self.processes, self.saves = processes, saves
        self.received = self.interrupts = 0
        self.sent: set = set()

    @contextlib.contextmanager
    def installed(self):
        """Inside, signals come here. Afterwards the processes are gone: signals are ignored until it exits."""
        ending = [getattr(signal, name) for name in ('SIGHUP', 'SIGQUIT') if hasattr(signal, name)]
        caught = [each for each in (*signals.SIGNALS, *ending) if signal.getsignal(each) is not signal.SIG_IGN]
        for number in caught:
            signal.signal(number, self._note if number in signals.SIGNALS else self._end)
        try:
            yield
        finally:
            for number in caught:
                signal.signal(number, signal.SIG_IGN)

    def forward(self) -> None:
        """Send a received signal once to each process; if one of them was stopped, stop the others."""
        number = self.received or (signal.SIGUSR1 if lines('stopped') else 0)
        if number:
            new = set(self._pids()) - self.sent
            self.sent |= new
            self._send(new, number)

    def _note(self, number: int, frame) -> None:
        self.received = self.received or number
        self.interrupts += number == signal.SIGINT
        if not self.saves or self.interrupts > 1:
            self._end(number, frame)

    def _end(self, number: int, frame) -> None:
        self._send(self._pids(), signal.SIGKILL)
        name = f'stopped by {signal.Signals(number).name}'
        os.write(2, f'{signals.INTERRUPTED_TWICE if self.interrupts > 1 else name}\n'.encode())
        shutil.rmtree(os.path.dirname(os.environ[STATUS]), ignore_errors=True)
        os._exit(128 + number)

    def _pids(self) -> List[int]:
        return [int(line) for line in lines('pid')[-self.processes :]]

    def _send(self, pids, number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def exit_failed(error) -> None:
    """Name the process that failed and exit with its code. One that is killed makes others fail."""
    rank, failure = min(error.failures.items(), key=lambda item: (item[1].exitcode != -9, item[1].timestamp))
    code = failure.exitcode
    what = f'ended with exit code {code}; its message is above'
    if code < 0:
        what = f'was killed by {signal.Signals(-code).name}{" (out of memory?)" if code == -9 else ""}'
    print(f'stopped: process {rank} of the run {what}', file=sys.stderr, flush=True)
    sys.exit(code if code > 0 else 128 - code)


# ---------------------------------------------------------------------------------------------------- in each process
def lines(kind: str) -> List[str]:
    """What processes of this launch have reported, e.g. ``lines('pid')``."""
    with contextlib.suppress(OSError):
        rows = Path(os.environ[STATUS]).read_text().splitlines()
        return [row.partition(' ')[2] for row in rows if row.split(' ')[0] == kind]
    return []


def report(kind: str, text: str = '') -> None:
    """Append a line for the launcher. A short line appended by one write is not mixed with those of other processes."""
    with open(os.environ[STATUS], 'ab', buffering=0) as file:
        file.write(f'{kind} {" ".join(text.split())}\n'.encode())


@contextlib.contextmanager
def joined():
    """Inside, the launcher knows this process. It exits at once if the run was stopped, or a restart cannot help."""
    if not launched():
        yield
        return
    if lines('stopped') or lines('mistake'):
        sys.exit(0)
    report('pid', str(os.getpid()))
    try:
        yield
    except UserError as error:
        mistakes = lines('mistake')
        if not isinstance(error, OSError):  # a file may be back at the next start
            report('mistake')
        if mistakes:
            sys.exit(2)
        raise


def leave_stopped(stop: signals.Stopped) -> None:
    """End this process after :class:`~mmrm.engine.signals.Stopped`: with its code, or 0 where the launcher reports it.

    torchrun would take the code for a failure and start the processes again.
    """
    signals.ignore()
    if launched():
        report('stopped', f'{stop.code} {stop.message}')
    elif int(os.environ.get('RANK') or 0) == 0:
        print(stop.message, file=sys.stderr, flush=True)
    leave(0 if launched() else stop.code, wait=stop.together)
