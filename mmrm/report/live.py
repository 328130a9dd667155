"""The report at an address: the same page, refreshed as the logs grow. It reads, and serves nothing but the page.

Two addresses answer: ``/`` is the page, ``/state`` what changed, as JSON. No file is ever served, so that no path can
leave the folders that were given. A page of another site cannot read it: the name in the request must be this
server's (DNS rebinding), and no header allows other origins.
"""

import contextlib
import hmac
import ipaddress
import json
import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import List, Optional, Sequence, Tuple, Union

from ..utils.errors import UserError, UserFileError, one_line
from . import logs, page
from .collect import Collected, collect, last_lines
from .runs import find_runs

LOOPBACK = ('127.0.0.1', 'localhost', '::1')
EVERY = 2.0  # seconds between two looks at the logs, however many ask
MOST_SHOWN = 20  # running runs


class State:
    """What the page shows now. Logs are read again only when one of them grew."""

    def __init__(self, given: Sequence[Union[str, Path]], pictures: Optional[dict] = None):
        self.given, self.pictures = [Path(each) for each in given], pictures
        self.lock = threading.Lock()
        self.looked = 0.0
        self.stamp: tuple = ()
        self.revision = ''
        self.collected: Collected = collect(self.given)
        self.machine = Machine()

    def refresh(self) -> None:
        """Read what grew. The page keeps what it has if the folders are gone for a moment."""
        with self.lock:
            if time.monotonic() - self.looked < EVERY and self.revision:
                return
            try:
                stamp = self._stamp()
                if stamp != self.stamp or any(run.status == 'running' for run in self.collected.runs):
                    self.collected = collect(self.given)
                if stamp != self.stamp or not self.revision:
                    self.stamp, self.revision = stamp, secrets.token_hex(8)
            except (UserError, OSError):
                pass
            self.looked = time.monotonic()

    def _stamp(self) -> tuple:
        found = [
            logs.log_of(session) for root in self.given for run in find_runs(root) for session in logs.sessions(run)
        ]
        return tuple((str(log), log.stat().st_size) for log in found if log)

    def html(self) -> str:
        self.refresh()
        return page.build(self.collected, self.pictures, live=True)

    def json(self, known: str) -> dict:
        """What is going on, and the parts of the page if they are not those of the revision ``known``."""
        self.refresh()
        answer = dict(revision=self.revision, now=dict(load=self.machine.load(), runs=self._running()))
        if known != self.revision:
            answer['page'] = page.fragments(self.collected, self.pictures)
        return answer

    def _running(self) -> List[dict]:
        found = []
        for run in [run for run in self.collected.runs if run.status == 'running'][:MOST_SHOWN]:
            left = '' if run.left is None else f', {page.duration(run.left)} left'
            found.append(
                dict(
                    name=f'{run.name} ({run.task})',
                    progress=run.progress,
                    told=f'{run.log.state}{left}',
                    lines=last_lines(run.log.folder),
                )
            )
        return found


class Machine:
    """The load of this machine: processors from /proc/stat, GPUs from nvidia-smi, where there are such."""

    def __init__(self):
        self.before = self._ticks()
        self.smi = shutil.which('nvidia-smi')
        self.gpus: Tuple[float, List[str]] = (0.0, [])

    @staticmethod
    def _ticks() -> Optional[Tuple[int, int]]:
        try:
            numbers = [int(each) for each in Path('/proc/stat').read_text().split('\n', 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        return sum(numbers), numbers[3] + numbers[4]

    def load(self) -> List[str]:
        """A line for the processors and one for each GPU."""
        found = []
        now = self._ticks()
        if now and self.before and now[0] > self.before[0]:
            idle = (now[1] - self.before[1]) / (now[0] - self.before[0])
            found.append(f'CPU {max(1 - idle, 0):.0%} of {os.cpu_count()} cores')
            if now[0] - self.before[0] > 100:
                self.before = now
        elif hasattr(os, 'getloadavg'):
            found.append(f'load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores')
        return found + self._gpus()

    def _gpus(self) -> List[str]:
        if self.smi and time.monotonic() - self.gpus[0] > EVERY:
            query = 'index,utilization.gpu,memory.used,memory.total'
            try:
                told = subprocess.run(
                    [self.smi, f'--query-gpu={query}', '--format=csv,noheader,nounits'],
                    capture_output=True,
                    text=True,
                    timeout=5,
                    check=True,
                ).stdout
                rows = [
                    [cell.strip() for cell in line.split(',')] for line in told.splitlines() if line.count(',') == 3
                ]
                lines = [f'GPU {index} {load} %, {used} of {total} MB' for index, load, used, total in rows]
            except (OSError, subprocess.SubprocessError):
                lines = []
            self.gpus = (time.monotonic(), lines)
        return self.gpus[1]


class Handler(BaseHTTPRequestHandler):
    """Answers GET for two addresses, and nothing else."""

    server: 'Server'
    server_version, sys_version = 'mmrm', ''
    protocol_version = 'HTTP/1.1'
    timeout = 30

    def do_GET(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(address.query)
        if not self.server.knows(self.headers.get('Host', '')):
            self.answer(421, 'text/plain', 'This server does not go by that name.\n')
        elif not self.server.admits(query.get('token', [''])[0]):
            self.answer(403, 'text/plain', 'The token is missing or wrong: take the address that the server printed.\n')
        elif address.path not in ('/', '/state'):
            self.answer(404, 'text/plain', 'There is nothing but the report here.\n')
        else:
            kind, text = 'text/html', ''
            try:
                if address.path == '/':
                    text = self.server.state.html()
                else:
                    kind = 'application/json'
                    text = json.dumps(self.server.state.json(query.get('revision', [''])[0]), allow_nan=False)
            except (OSError, UserError) as error:  # runs that are moved away while they are read
                self.answer(503, 'text/plain', f'The runs cannot be read now: {one_line(error)}\n')
                return
            self.answer(200, kind, text)

    def answer(self, code: int, kind: str, text: str) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the page was closed
            self._send(code, kind, text.encode())

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        for name, value in (
            ('Content-Type', f'{kind}; charset=utf-8'),
            ('Content-Length', str(len(body))),
            ('Cache-Control', 'no-store'),
            ('X-Content-Type-Options', 'nosniff'),
            ('X-Frame-Options', 'DENY'),
            ('Referrer-Policy', 'no-referrer'),
            ('Cross-Origin-Resource-Policy', 'same-origin'),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        """Requests are not told: the token stands in them."""


class Server(ThreadingHTTPServer):
    """The server of one report.

    Args:
        state (State): What it shows.
        host (str): The address to listen at. Any but this machine's own needs a token.
        port (int): 0 for any that is free.
    """

    daemon_threads = True

    def __init__(self, state: State, host: str = '127.0.0.1', port: int = 0):
        self.state = state
        self.address_family = socket.AF_INET6 if ':' in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            told = f'{error.strerror or error}. Give another --port, or 0 for any that is free.'
            raise UserFileError(f'cannot listen at {host}, port {port}: {told}') from error
        self.host = host
        self.token = '' if is_loopback(host) else secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        shown = socket.gethostname() if self.host in ('0.0.0.0', '::', '') else self.host
        shown = f'[{shown}]' if ':' in shown else shown
        return f'http://{shown}:{self.server_address[1]}/' + (f'?token={self.token}' if self.token else '')

    def knows(self, host: str) -> bool:
        """Whether a request names this server: a loopback name, the address it listens at, or, with a token, any."""
        name = urllib.parse.urlsplit(f'//{host}').hostname if host else None
        if name is None:
            return False
        return bool(self.token) or name in LOOPBACK or name == self.host

    def admits(self, token: str) -> bool:
        return not self.token or hmac.compare_digest(token.encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == 'localhost':
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    given: Sequence[Union[str, Path]], host: str = '127.0.0.1', port: int = 8765, pictures: Optional[dict] = None
) -> None:
    """Show the report of some folders until Ctrl-C."""
    server = Server(State(given, pictures), host, port)
    if server.token:
        print(
            f'warning: everybody who reaches {host} and has this address sees names, configs and results of these '
            'runs, and the connection is not encrypted. An SSH tunnel to 127.0.0.1 is safer.',
            flush=True,
        )
    print(f'{server.url}\nCtrl-C ends it.', flush=True)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print('ended', flush=True)
    finally:
        server.server_close()
