"""The configs of PuzzleMix and StyleCutMix, their networks shrunk: they train under mmengine's Runner and learn."""

import sys

import pytest
import torch
from exact_masks import solve_exactly
from test_regularisers import CLASSES, loss_of_a_fixed_batch, shrunk

from mmrm.models.regularisers import PuzzleMix, bound_augments, stylecutmix

AUGMENT = 'model.data_preprocessor.batch_augments.augments'
PUZZLE, STYLE = 'puzzlemix/resnet50_8xb64_in1k', 'stylecutmix/pyramidnet200_1xb64_cifar10'


def trained(runner):
    """Loss of a fixed batch before and after the run."""
    runner.model.init_weights()
    before = loss_of_a_fixed_batch(runner.model)
    runner.train()
    assert all(augment._model is None for augment in bound_augments(runner.model))  # nothing is left behind
    return before, loss_of_a_fixed_batch(runner.model)


@pytest.mark.parametrize('solver', ['exact', 'gco'])
def test_puzzlemix_learns(tmp_path, monkeypatch, solver):
    options = {}
    if solver == 'exact':  # masks of up to 4 x 4 blocks by another solver, so that gco-wrapper is not needed
        monkeypatch.setattr(PuzzleMix, 'solve', staticmethod(solve_exactly))
        monkeypatch.setitem(sys.modules, 'gco', None)
        options = {f'{AUGMENT}.blocks': [2, 4]}
    else:
        pytest.importorskip('gco')
    before, after = trained(shrunk(PUZZLE, tmp_path, **options))
    assert after < 0.8 * before


def test_stylecutmix_learns(tmp_path, monkeypatch):
    monkeypatch.delenv('MMRM_DATA', raising=False)
    monkeypatch.chdir(tmp_path)  # paths stay short: mmengine is slow to print long ones
    # A style network that is quick; the real one is built in tests/models/test_stylecutmix.py.
    encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 8, stride=8), torch.nn.ReLU()).requires_grad_(False)
    decoder = torch.nn.ConvTranspose2d(8, 3, 8, stride=8).requires_grad_(False)
    monkeypatch.setattr(stylecutmix, 'build_encoder', lambda weights, name: encoder)
    monkeypatch.setattr(stylecutmix, 'build_decoder', lambda weights, name: decoder)
    folder = tmp_path / 'data' / 'adain'
    folder.mkdir(parents=True)
    for name in ('vgg_normalised.pth', 'decoder.pth'):
        torch.save({}, folder / name)
    torch.save(torch.rand(CLASSES, CLASSES), folder / 'styleDistanceMatrix10.pt')
    before, after = trained(shrunk(STYLE, tmp_path / 'run', **{f'{AUGMENT}.size': 16}))
    assert after < 0.8 * before
