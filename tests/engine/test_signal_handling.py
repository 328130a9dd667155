"""Signals that stop a run, in real processes."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mmrm.engine import signals
from mmrm.engine.runner import Runner


class Numbers(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index


def test_a_signal_is_noted_and_otherwise_raised_at_once():
    before = signal.getsignal(signal.SIGTERM)
    with signals.caught():
        with signals.deferred():
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.received() == signal.SIGUSR1
        with pytest.raises(signals.Stopped, match='stopped by SIGUSR1 before the first iteration') as stop:
            signals.check()
        assert stop.value.code == 76 and issubclass(signals.Stopped, SystemExit)
    with signals.caught(), pytest.raises(signals.Stopped):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) is before and not signals.received()


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with signals.caught():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not signals.received()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def forked(function, path) -> tuple:
    """The exit code of a copy of this process that calls a function, and what it printed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for descriptor in (1, 2):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), path.read_text()


def test_a_second_interrupt_ends_the_process(tmp_path):
    def interrupted():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with signals.caught(), signals.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.received() == signal.SIGINT
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)

    code, text = forked(interrupted, tmp_path / 'log')
    assert code == -signal.SIGINT and 'interrupted twice' in text


def test_workers_outlive_the_signals_that_go_to_all_processes():
    with signals.caught(), signals.deferred():
        loader = DataLoader(Numbers(), batch_size=2, num_workers=2, worker_init_fn=signals.IgnoreSignals())
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1]
        workers = [worker.pid for worker in batches._workers]
        next(batches)  # the second worker has begun, too
        for number in signals.SIGNALS:
            for pid in workers:
                os.kill(pid, number)
        assert torch.cat(list(batches)).tolist() == list(range(4, 1000))


WORKERS = """
import sys
from torch.utils.data import DataLoader
sys.path.append({folder!r})
from signals import IgnoreSignals

loader = DataLoader(list(range(8)), num_workers=2, persistent_workers=True, worker_init_fn=IgnoreSignals())
print(len(list(loader)), flush=True)
"""


def test_workers_that_stay_do_not_keep_a_process_from_its_end():
    code = WORKERS.format(folder=os.path.dirname(signals.__file__))
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, '8\n'), run.stderr


@pytest.mark.skipif(not hasattr(signal, 'pthread_sigmask'), reason='signals cannot be held here')
def test_worker_ignores_a_signal_at_its_start(tmp_path):
    """Schedulers send SIGTERM to all processes at once, also to one that was started a moment ago."""
    sampler = dict(type='DefaultSampler', shuffle=False)
    loader = Runner.build_dataloader(dict(dataset=Numbers(), batch_size=500, num_workers=2, sampler=sampler))

    def read():
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
        return len(list(loader))

    code, text = forked(read, tmp_path / 'log')
    assert code == 2, text
