"""What the tests of the entry points share."""

import pytest
from mmengine.device import utils as device_utils
from mmengine.logging import MessageHub, MMLogger
from mmengine.visualization import Visualizer
from tiny_run import write_run

from mmrm.cli import train
from mmrm.utils import paths


@pytest.fixture(scope='session')
def trained(tmp_path_factory):
    """A finished run of two epochs that keeps both checkpoints: (config, work dir)."""
    folder = tmp_path_factory.mktemp('trained')
    config = write_run(folder, more='default_hooks["checkpoint"]["max_keep_ckpts"] = 3\n')
    train.main([str(config), '--work-dir', str(folder / 'work'), '--device', 'cpu'])
    return config, folder / 'work'


@pytest.fixture(autouse=True)
def forget_runs():
    """Two runs that start in one second would share mmengine's objects, and the folder of the first may be gone."""
    yield
    for kind in (MMLogger, MessageHub, Visualizer):
        kind._instance_dict.clear()


@pytest.fixture
def run(tmp_path):
    """A config that has not run: (config, work dir)."""
    return write_run(tmp_path), tmp_path / 'work'


@pytest.fixture
def error(capsys):
    """Call an entry point that must end with exit code 2; returns its one line of error."""

    def call(function, *argv):
        with pytest.raises(SystemExit) as stop:
            function([str(arg) for arg in argv])
        assert stop.value.code == 2
        text = capsys.readouterr().err
        assert 'Traceback' not in text
        lines = [line for line in text.splitlines() if line.startswith('error:')]
        assert len(lines) == 1
        return lines[0]

    return call


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """The CPU is asked for, nothing goes to the checkout, and what a launcher changes in the process is put back."""
    monkeypatch.setattr(paths, 'home', lambda: tmp_path)
    names = 'NNODES', 'NODE_RANK', 'MASTER_ADDR', 'PORT', 'MMRM_PARENT', 'MMRM_TRACEBACK', 'LOCAL_WORLD_SIZE'
    for name in (*names, 'GLOO_SOCKET_IFNAME', 'NCCL_SOCKET_IFNAME'):
        monkeypatch.setenv(name, '')  # noted, so that it is put back
        monkeypatch.delenv(name)
    for name, value in dict(
        MMRM_DEVICE='cpu', CUDA_VISIBLE_DEVICES='', LOCAL_RANK='0', OMP_NUM_THREADS='1', MKL_NUM_THREADS='1'
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(device_utils, 'DEVICE', device_utils.DEVICE)
    monkeypatch.setattr('logging.raiseExceptions', True)
