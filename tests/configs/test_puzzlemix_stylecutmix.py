"""The configs of PuzzleMix and StyleCutMix, their networks shrunk: they train under mmengine's Runner and learn."""

import sys

import pytest
import torch
from exact_masks import solve_exactly
from test_regularisers import CLASSES, loss_of_a_fixed_batch, shrunk

from mmrm.models.regularisers import PuzzleMix, bound_augments, stylecutmix
from mmrm.utils.errors import UserError, UserFileError

AUGMENT = 'model.data_preprocessor.batch_augments.augments'
PUZZLE, STYLE = 'puzzlemix/resnet50_8xb64_in1k', 'stylecutmix/pyramidnet200_1xb64_cifar10'


def trained(runner):
    """Loss of a fixed batch before and after the run."""
    runner.model.init_weights()
    before = loss_of_a_fixed_batch(runner.model)
    runner.train()
    assert all(augment._model is None for augment in bound_augments(runner.model))  # nothing is left behind
    return before, loss_of_a_fixed_batch(runner.model)


@pytest.fixture
def no_graph_cut(monkeypatch):
    """Masks of up to 4 x 4 blocks by another solver, so that gco-wrapper is not needed."""
    monkeypatch.setattr(PuzzleMix, 'solve', staticmethod(solve_exactly))
    monkeypatch.setitem(sys.modules, 'gco', None)


def test_puzzlemix_learns(tmp_path, no_graph_cut):
    before, after = trained(shrunk(PUZZLE, tmp_path, **{f'{AUGMENT}.blocks': [2, 4]}))
    assert after < 0.8 * before


def test_puzzlemix_learns_with_the_graph_cut(tmp_path):
    pytest.importorskip('gco')
    before, after = trained(shrunk(PUZZLE, tmp_path))
    assert after < 0.8 * before


def test_without_the_graph_cut_puzzlemix_stops_before_the_first_iteration(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'gco', None)
    runner = shrunk(PUZZLE, tmp_path, iterations=2)
    with pytest.raises(UserError, match='pip install gco-wrapper'):
        runner.train()
    assert runner.iter == 0


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of one's own to run in: paths stay short, as mmengine is slow to print long ones."""
    monkeypatch.delenv('MMRM_DATA', raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_stylecutmix_learns(here, monkeypatch):
    # A style network that is quick; the real one is built in tests/models/test_stylecutmix.py.
    encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 8, stride=8), torch.nn.ReLU()).requires_grad_(False)
    decoder = torch.nn.ConvTranspose2d(8, 3, 8, stride=8).requires_grad_(False)
    monkeypatch.setattr(stylecutmix, 'build_encoder', lambda weights, name: encoder)
    monkeypatch.setattr(stylecutmix, 'build_decoder', lambda weights, name: decoder)
    folder = here / 'data' / 'adain'
    folder.mkdir(parents=True)
    for name in ('vgg_normalised.pth', 'decoder.pth'):
        torch.save({}, folder / name)
    torch.save(torch.rand(CLASSES, CLASSES), folder / 'styleDistanceMatrix10.pt')
    before, after = trained(shrunk(STYLE, here / 'run', **{f'{AUGMENT}.size': 16}))
    assert after < 0.8 * before


def test_without_its_files_stylecutmix_stops_before_the_first_iteration(here):
    runner = shrunk(STYLE, here / 'run', iterations=2)
    with pytest.raises(UserFileError, match=r'adain/vgg_normalised\.pth does not exist'):
        runner.train()
    assert runner.iter == 0
