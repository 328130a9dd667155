"""OpenMMLab's mim finds our configs and scripts, where it is installed (its requirements clash with ours)."""

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import mmrm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec('mim') is None, reason='openmim is not installed'),
]


@pytest.fixture(autouse=True)
def installed():
    try:
        distribution('mmrm')
    except PackageNotFoundError:
        pytest.skip('mim asks for an installed mmrm')
    if not (Path(mmrm.__file__).parent / '.mim' / 'aliases').is_dir():
        pytest.skip('mmrm was not installed by its setup.py')


def mim(*words, cwd):
    command = [sys.executable, '-m', 'mim', *map(str, words)]
    env = dict(os.environ, OMP_NUM_THREADS='1')
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)


def test_search(tmp_path):
    done = mim('search', 'mmrm', '--config', 'rm_resnet50_8xb64_in1k', cwd=tmp_path)
    assert done.returncode == 0 and 'configs/rm/resnet50_8xb64_in1k.py' in done.stdout


def test_run(tmp_path):
    settings = ('--runs', 1, '--iterations', 2, '--size', 32, '--batch', 4, '--num-classes', 10)
    done = mim('run', 'mmrm', 'effective_classes', 'a.png', *settings, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / 'a.png').is_file(), done.stderr


def test_train_resolves_the_name_in_the_model_index(tmp_path):
    done = mim('train', 'mmrm', 'rm_resnet18_2xb64_cifar10.py', '--gpus', 0, '--device', 'cpu', cwd=tmp_path)
    told = done.stdout + done.stderr
    assert 'aliases/rm_resnet18_2xb64_cifar10.py instead' in told and 'multiple config files' not in told
    assert "error: train_dataloader.dataset.data_root = 'data/cifar10' does not exist" in told, 'the config was read'
