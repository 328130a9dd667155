import random
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import DefaultScope

sys.path.insert(0, str(Path(__file__).parent))  # helpers.py and reference.py, from every folder of tests


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same random state, whatever ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_default_scope():
    """mmengine's default scope is global: a test must not build from the registry that another one left behind."""
    DefaultScope._instance_dict.clear()


@pytest.fixture
def free_port():
    """A TCP port that is free on this host now."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]
