import functools
import gc
import random
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.utils.dl_utils import collect_env
from mmengine.visualization import Visualizer

import mmrm.models  # noqa: F401  what every config imports, before a test imports mmdet or mmseg

sys.path.insert(0, str(Path(__file__).parent))  # helpers.py and reference.py, from every folder of tests
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/ and projects/


def pytest_collection_finish():
    """What is imported by now stays: mmengine collects garbage for every data set, and would visit all of it."""
    gc.freeze()


@pytest.fixture(scope='session', autouse=True)
def _quick_mmengine():
    """mmengine formats the config by yapf four times in a run, and asks gcc and git for their versions."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ('mmengine.config.config', 'yapf.yapflib.yapf_api'):  # OneDL's imports it when it is called
            patch.setattr(f'{module}.FormatCode', lambda text, **style: (text, True), raising=False)
        patch.setattr('mmengine.runner.runner.collect_env', functools.cache(collect_env))
        yield


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same random state, whatever ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_leftovers_in_the_environment(monkeypatch):
    """mmengine's launchers set these for good, and accelerate takes them for those of a distributed run."""
    for name in ('LOCAL_RANK', 'RANK', 'WORLD_SIZE'):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _no_leftovers_in_mmengine():
    """mmengine's scopes, loggers and visualizers are global, by name: a test must not meet another one's."""
    for kind in (DefaultScope, MMLogger, MessageHub, *_with_subclasses(Visualizer)):
        kind._instance_dict.clear()


def _with_subclasses(kind):
    """A class and all that inherit from it: each keeps instances of its own."""
    return [kind, *(heir for child in kind.__subclasses__() for heir in _with_subclasses(child))]


@pytest.fixture
def free_port():
    """A TCP port that is free on this host now."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


@pytest.fixture
def one_process(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group('gloo', init_method=f'file://{tmp_path}/group', rank=0, world_size=1)
    yield
    dist.destroy_process_group()
