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
    (name, target, restarts)
    for name in ('SIGTERM', 'SIGUSR1', 'SIGINT', 'SIGKILL')
    for target in ('launcher', 'rank', 'all')
    for restarts in (0, 3)
]


def expected_code(name: str, target: str, restarts: int) -> int:
    """What the launcher ends with, as Python's subprocess reports it."""
    if name != 'SIGKILL':
        return STOPPED
    if target == 'rank':
        return 0 if restarts else 128 + signal.SIGKILL
    return -signal.SIGKILL


def train(config, work, log, *more) -> dict:
    """Train to the end, in two processes."""
    run = start(log, clean_environment(), TOOLS / 'dist_train.sh', config, 2, '--work-dir', work, *more)
    assert run.wait(timeout=300) == 0, log.read_text()[-3000:]
    return final_state(work)


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory):
    """The config of a run of three epochs of 16 iterations, and its last checkpoint."""
    folder = tmp_path_factory.mktemp('unbroken')
    config = write_run(folder, epochs=3, images=64)
    return config, train(config, folder / 'work', folder / 'log')


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


@pytest.mark.slow
@pytest.mark.parametrize('name, target, restarts', CELLS)
def test_signal(name, target, restarts, unbroken, tmp_path):
    config, wanted = unbroken
    work, log = tmp_path / 'work', tmp_path / 'log'
    env = dict(clean_environment(), MAX_RESTARTS=str(restarts))
    run = start(log, env, TOOLS / 'dist_train.sh', config, 2, '--work-dir', work)
    wait_for(lambda: len(losses(log, 2)) > 2, log, run)
    ranks = children(run.pid)
    assert len(ranks) == 2
    for pid in dict(launcher=[run.pid], rank=ranks[1:], all=[run.pid, *ranks])[target]:
        os.kill(pid, getattr(signal, name))
    code = run.wait(timeout=300)
    text = log.read_text()
    assert code == expected_code(name, target, restarts), text[-3000:]
    wait_for(lambda: not any(map(alive, ranks)), log)
    if code == STOPPED:
        assert f'stopped by {name} after iteration' in text.strip().splitlines()[-1] and 'Traceback' not in text
    if code:
        train(config, work, log, '--resume')
        assert not losses(log, 1)
    assert_equal(final_state(work), wanted)


def test_a_kill_a_restart_and_a_stop_of_one_process(tmp_path, monkeypatch):
    """From another folder. What comes before and after the launcher is done here, where everything is imported."""
    monkeypatch.setenv('LOCAL_RANK', '0')
    config, work, log = write_run(tmp_path, epochs=3, images=32), tmp_path / 'work', tmp_path / 'log'
    env = dict(clean_environment(), MAX_RESTARTS='1')
    run = start(log, env, TOOLS / 'dist_train.sh', config, 1, '--work-dir', work, cwd='/')
    wait_for(lambda: losses(log, 2), log, run)
    (first,) = children(run.pid)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: losses(log, 3), log, run)
    (second,) = children(run.pid)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=60) == STOPPED and not alive(first) and not alive(second), log.read_text()[-3000:]
    assert len(losses(log, 1)) == 16 and 'stopped by SIGTERM after iteration' in log.read_text()
    for folder, more in ((tmp_path / 'unbroken', []), (work, ['--resume'])):
        command.main([str(config), '--work-dir', str(folder), '--device', 'cpu', *more])
    assert_equal(final_state(work), final_state(tmp_path / 'unbroken'))
