"""The benchmarks of the input, in small: they run to their tables."""

import importlib.util
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / 'benchmarks'


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a benchmark's ``main`` and returns what it printed."""
    threads = torch.get_num_threads(), cv2.getNumThreads()

    def run(name, *arguments):
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f'{name}.py')
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setattr('sys.argv', [f'{name}.py', *arguments])
        monkeypatch.setattr('sys.path', list(sys.path))
        spec.loader.exec_module(module)
        module.main()
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(threads[0])
    cv2.setNumThreads(threads[1])


def test_input_speed_compares_the_pipelines(run, tmp_path):
    image = np.random.RandomState(0).randint(0, 256, (80, 100, 3)).astype(np.uint8)
    for name in ('a.JPEG', 'b.jpg'):
        cv2.imwrite(str(tmp_path / name), image)
    shown = run('input_speed', '--files', str(tmp_path), '--rounds', '1')
    for name in ('torchvision', "the authors'", 'timm, a worker', 'mmrm, in all', 'RMLoadResizedCrop'):
        assert name in shown
    assert '2 JPEGs, 100 x 80' in ' '.join(shown.split())


def test_input_speed_without_images_is_an_error(run, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        run('input_speed', '--files', str(tmp_path))
    assert stop.value.code == 2 and 'there is no JPEG in it' in capsys.readouterr().err


def test_epoch_start_compares_workers(run):
    shown = run('epoch_start', '--workers', '1', '--epochs', '1', '--batches', '1')
    assert 'CIFAR' in shown and 'ImageNet' in shown
