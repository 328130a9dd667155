"""Systems that lack what Linux has."""

import ctypes
import os
import subprocess
import sys

import pytest
from tiny_run import write_run

from mmrm.utils.paths import PACKAGE
from mmrm.utils.processes import follow_parent


@pytest.mark.parametrize('platform', ['darwin', 'win32'])
def test_without_prctl_a_process_does_not_look_for_its_parent(platform, monkeypatch):
    monkeypatch.setattr(sys, 'platform', platform)
    monkeypatch.setattr(ctypes, 'CDLL', lambda name: pytest.fail('there is no prctl'))
    monkeypatch.setenv('MMRM_PARENT', str(os.getppid()))
    follow_parent()


# What Windows does not have. torch and mmengine are imported first: theirs are built for this system.
WITHOUT = """
import os, signal, sys
import mmengine.runner, torch, torchvision, mmpretrain, yapf
sys.modules['fcntl'] = None
for name in ('register_at_fork', 'pread', 'pwrite', 'sync', 'sched_getaffinity', 'O_NOFOLLOW', 'geteuid', 'getuid'):
    delattr(os, name)
for name in ('SIGUSR1', 'SIGUSR2', 'SIGHUP', 'SIGALRM'):
    delattr(signal, name)
"""


def test_a_run_trains_without_the_calls_of_linux(tmp_path):
    """macOS lacks prctl, Windows also file locks and some signals: a run warns and continues."""
    config = write_run(tmp_path, epochs=1, images=4)
    script = f"""
{WITHOUT}
from mmrm.cli import train
sys.platform = 'darwin'
train.main(sys.argv[1:])
"""
    argv = [str(config), '--device', 'cpu', '--work-dir', str(tmp_path / 'work')]
    environment = {**os.environ, 'PYTHONPATH': str(PACKAGE.parent), 'MMRM_PARENT': str(os.getpid())}
    run = subprocess.run([sys.executable, '-c', script, *argv], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count('no file locks on darwin') == 1
    assert (tmp_path / 'work/epoch_1.pth').is_file()
