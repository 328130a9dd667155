"""Every signal to every process of ``dist_train.sh``: exit code, no process left behind, exact resume."""

import os
import signal

import pytest
import torch
from launching import TOOLS, alive, children, clean_environment, losses, start, wait_for
from tiny_run import write_run

from mmrm.cli import train as command
from mmrm.utils.checkpoints import read_checkpoint

STOPPED = 75  # saved, and can be resumed
CELLS = [
    pytest.param(name, target, restarts, 2, marks=pytest.mark.slow)
    for name in ('SIGTERM', 'SIGUSR1', 'SIGINT', 'SIGKILL')
    for target in ('launcher', 'rank', 'all')
    for restarts in (0, 3)
]
# With one process, what comes before and after the launcher can be done here, where everything is imported.
QUICK = [('SIGTERM', 'launcher', 0, 1), ('SIGKILL', 'rank', 3, 1)]


def expected_code(name: str, target: str, restarts: int) -> int:
    """What the launcher ends with, as Python's subprocess reports it."""
    if name != 'SIGKILL':
        return STOPPED
    if target == 'rank':
        return 0 if restarts else 128 + signal.SIGKILL
    return -signal.SIGKILL


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory):
    """The config of a run of three epochs of 16 iterations, and its end, for a number of processes."""
    folder = tmp_path_factory.mktemp('unbroken')
    config, done = write_run(folder, epochs=3, images=64), {}

    def run(processes):
        if processes not in done:
            train(config, folder / str(processes), folder / 'log', processes)
            done[processes] = final_state(folder / str(processes))
        return config, done[processes]

    return run


def train(config, work, log, processes, *more) -> None:
    """Train to the end."""
    if processes == 1:
        command.main([str(config), '--work-dir', str(work), '--device', 'cpu', *more])
        return
    run = start(log, clean_environment(), TOOLS / 'dist_train.sh', config, processes, '--work-dir', work, *more)
    assert run.wait(timeout=300) == 0, log.read_text()[-3000:]
    assert not more or not losses(log, 1)


def final_state(work) -> dict:
    """What the last checkpoint holds of the training, without times and paths."""
    checkpoint = read_checkpoint(work / 'epoch_3.pth')
    state = {key: value for key, value in checkpoint.items() if key not in ('meta', 'message_hub')}
    # Whether it was written before or after the last validation, which a resumed run may repeat.
    state['resume_state'].pop('validated', None)
    return state


def assert_equal(one, other, name: str = 'checkpoint') -> None:
    """Two nested values are the same, bit for bit."""
    assert type(one) is type(other), name
    if isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key in one:
            assert_equal(one[key], other[key], f'{name}.{key}')
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), name
        for index, pair in enumerate(zip(one, other)):
            assert_equal(*pair, f'{name}.{index}')
    else:
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, name


@pytest.mark.parametrize('name, target, restarts, processes', [*QUICK, *CELLS])
def test_signal(name, target, restarts, processes, unbroken, tmp_path, monkeypatch):
    monkeypatch.setenv('LOCAL_RANK', '0')
    config, wanted = unbroken(processes)
    work, log = tmp_path / 'work', tmp_path / 'log'
    env = dict(clean_environment(), MAX_RESTARTS=str(restarts))
    run = start(log, env, TOOLS / 'dist_train.sh', config, processes, '--work-dir', work)
    wait_for(lambda: len(losses(log, 2)) > 2, log, run)
    ranks = children(run.pid)
    assert len(ranks) == processes
    for pid in dict(launcher=[run.pid], rank=ranks[-1:], all=[run.pid, *ranks])[target]:
        os.kill(pid, getattr(signal, name))
    code = run.wait(timeout=300)
    text = log.read_text()
    assert code == expected_code(name, target, restarts), text[-3000:]
    wait_for(lambda: not any(map(alive, ranks)), log)
    if code == STOPPED:
        assert f'stopped by {name} after iteration' in text.strip().splitlines()[-1] and 'Traceback' not in text
    if code:
        train(config, work, log, processes, '--resume')
    assert_equal(final_state(work), wanted)
