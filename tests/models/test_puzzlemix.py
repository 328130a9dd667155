"""PuzzleMix against slow, literal readings of its paper, an exact solver of its masks, and in training."""

import copy
import itertools
import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exact_masks import energy, solve_exactly
from helpers import batch, classifier, step
from mmpretrain.registry import BATCH_AUGMENTS, MODELS

from mmrm import bind_augments
from mmrm.models.regularisers import PuzzleMix
from mmrm.models.regularisers.puzzlemix import graph_cut, mask_energies, pool_saliency, puzzle_mix, saliency_map
from mmrm.utils.errors import UserError, UserValueError

HEAD = dict(type='LinearClsHead', num_classes=5, in_channels=64, loss=dict(type='CrossEntropyLoss'))


def augment(**options):
    """PuzzleMix that needs no graph cut, for images that are not cut finer than 4 x 4."""
    options = {'blocks': (2, 4), **options}
    made = BATCH_AUGMENTS.build(dict(type='PuzzleMix', **options))
    made.solve = solve_exactly
    return made


def net(augments, **options):
    model = classifier(augments=augments, preprocessor='ClsDataPreprocessor', head=HEAD, **options)
    model.neck = MODELS.build(dict(type='GlobalAveragePooling'))
    return model


# ---------------------------------------------------------------------------------------------------------- saliency
def small_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.5),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 5),
    )


def test_saliency_is_the_root_mean_square_of_the_input_gradient():
    model, images = small_model(), torch.randn(3, 3, 8, 8)
    model[1].running_mean.normal_()
    scores = F.one_hot(torch.tensor([1, 4, 0]), 5)
    found = saliency_map(model, images, scores, model)
    reference = copy.deepcopy(model).eval()
    for sample in range(3):
        x = images[sample : sample + 1].clone().requires_grad_()
        F.cross_entropy(reference(x), scores[sample : sample + 1].argmax(1)).backward()
        assert torch.allclose(found[sample], (x.grad[0] ** 2).mean(0).sqrt(), rtol=1e-4, atol=1e-9)


def test_the_saliency_pass_leaves_no_trace():
    model = small_model().train()
    model[1].eval()  # frozen by the user
    model(torch.randn(4, 3, 8, 8)).sum().backward()
    for parameter in model.parameters():
        parameter.grad.normal_()  # gradients that were accumulated so far
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    buffers, flags = copy.deepcopy(dict(model.named_buffers())), [module.training for module in model.modules()]
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    images = torch.randn(4, 3, 8, 8)
    torch.set_rng_state(torch_state)
    saliency_map(model, images, F.one_hot(torch.arange(4), 5), model)
    assert all(parameter.grad.equal(before) for parameter, before in zip(model.parameters(), gradients))
    assert all(value.equal(buffers[name]) for name, value in model.named_buffers())
    assert [module.training for module in model.modules()] == flags
    assert torch.get_rng_state().equal(torch_state) and (np.random.get_state()[1] == numpy_state).all()
    assert not images.requires_grad


def test_a_sample_without_saliency_counts_the_same_everywhere():
    saliency = torch.rand(3, 8, 8)
    saliency[1], saliency[2, 0, 0] = 0, math.inf
    pooled = pool_saliency(saliency, 4)
    assert torch.allclose(pooled.sum(dim=(1, 2)), torch.ones(3))
    assert (pooled[1:] == 1 / 16).all()
    assert torch.allclose(pooled[0, 1, 2], saliency[0, 2:4, 4:6].sum() / saliency[0].sum())


# -------------------------------------------------------------------------------------------------------------- mask
def literal_energy(mask, own, partner, lam, beta, gamma, eta, cell):
    """The paper's objective of a mask of 0 and 1 (1: the sample itself), with the scales of the authors' code.

    ``own`` and ``partner`` are pixels and pooled saliency.
    """
    blocks, side = len(mask), own[0].shape[-1] // len(mask)
    images, total = {1: own[0], 0: partner[0]}, 0.0
    for row, column in np.ndindex(mask.shape):
        shown = mask[row, column]
        total += float((partner if shown else own)[1][row, column])  # what is hidden is lost
        total -= eta / blocks**2 * math.log((lam**2 if shown else (1 - lam) ** 2) + 1e-8)
        for other_row, other_column in ((row + 1, column), (row, column + 1)):
            if max(other_row, other_column) == blocks:
                continue
            other = mask[other_row, other_column]
            total += beta / blocks / 16 * (shown != other)
            differences = []
            for begin in range(0, side, cell):
                if other_row > row:
                    along = slice(column * side + begin, column * side + begin + cell)
                    a = images[shown][:, other_row * side - cell : other_row * side, along]
                    b = images[other][:, other_row * side : other_row * side + cell, along]
                else:
                    along = slice(row * side + begin, row * side + begin + cell)
                    a = images[shown][:, along, other_column * side - cell : other_column * side]
                    b = images[other][:, along, other_column * side : other_column * side + cell]
                differences += [abs(float(x.mean() - y.mean())) for x, y in zip(a, b)]
            total += beta * gamma / blocks / 16 * sum(differences) / len(differences)
    return total


@pytest.mark.parametrize('cell, size', [(2, 12), (1, 12), (4, 18)])
def test_energies_of_masks_are_the_papers_but_for_a_constant(cell, size):
    pixels, lam, index = torch.rand(2, 3, size, size), 0.3, torch.tensor([1, 0])
    pooled = pool_saliency(torch.rand(2, size, size) ** 4, 3)
    settings = dict(beta=1.7, gamma=0.9, eta=0.2)
    terms = [
        term[0].double().numpy() for term in mask_energies(pooled, pixels, index, lam, neighbour_size=cell, **settings)
    ]
    offsets = []
    for bits in itertools.islice(itertools.product((0, 1), repeat=9), 0, 512, 7):
        mask = np.array(bits).reshape(3, 3)
        literal = literal_energy(
            mask, (pixels[0], pooled[0]), (pixels[1], pooled[1]), lam, cell=math.gcd(cell, size // 3), **settings
        )
        offsets.append(energy(2 * (1 - mask), *terms) - literal)
    assert np.ptp(offsets) < 1e-5


def test_the_prior_is_binomial():
    terms = [
        mask_energies(
            torch.full((1, 2, 2), 0.25), torch.zeros(1, 3, 4, 4), torch.tensor([0]), 0.3, labels=4, eta=eta
        ).unary[0, 0, 0]
        for eta in (0.0, 1.0)
    ]
    wanted = [0.3**3, 3 * 0.3**2 * 0.7, 3 * 0.3 * 0.7**2, 0.7**3]
    assert torch.allclose(terms[1] - terms[0], -torch.tensor(wanted).log() / 4, atol=1e-5)


def random_terms(blocks, seed):
    generator = torch.Generator().manual_seed(seed)
    pooled = pool_saliency(torch.rand(2, 16, 16, generator=generator) ** 3, blocks)
    pixels = torch.rand(2, 3, 16, 16, generator=generator)
    terms = mask_energies(pooled, pixels, torch.tensor([1, 0]), torch.rand((), generator=generator).item())
    return [term[0].double().numpy() for term in terms]


def test_the_tests_solver_is_exact():
    for seed in range(5):
        terms = random_terms(2, seed)
        all_of_them = [np.array(labels).reshape(2, 2) for labels in itertools.product(range(3), repeat=4)]
        assert energy(solve_exactly(*terms), *terms) == pytest.approx(min(energy(each, *terms) for each in all_of_them))


@pytest.mark.parametrize('blocks', [2, 4])
def test_the_graph_cut_finds_the_cheapest_masks(blocks):
    pytest.importorskip('gco')
    above = []
    for seed in range(30):
        terms = random_terms(blocks, seed)
        exact, found = energy(solve_exactly(*terms), *terms), energy(graph_cut(*terms), *terms)
        above.append((found - exact) / abs(exact))
    # Swaps end in a local minimum: nearly always the global one, never far from it.
    assert min(above) > -1e-6 and max(above) < 0.02 and np.mean(np.array(above) < 1e-5) > 0.8


# --------------------------------------------------------------------------------------------------------- transport
def literal_plan(mask, saliency, eps):
    """The paper's algorithm for masked transport, one block at a time: the block at each place that is shown."""
    blocks = len(mask)
    places = list(np.ndindex(blocks, blocks))
    cost = {
        (i, j): eps * ((i[0] - j[0]) ** 2 + (i[1] - j[1]) ** 2) / (blocks - 1) ** 2 - float(saliency[i]) * (mask[j] > 0)
        for i in places
        for j in places
    }
    for _ in range(blocks):
        wish = {i: min(places, key=lambda j, i=i: cost[i, j]) for i in places}
        winner = {}
        for i, j in wish.items():
            if j not in winner or cost[i, j] < cost[winner[j], j]:
                winner[j] = i
        for i, j in wish.items():
            if winner[j] != i:
                cost[i, j] += 1
    return {j: winner[j] for j in places if mask[j] > 0}


@pytest.mark.parametrize('blocks', [2, 4, 8])
def test_both_images_are_moved_each_by_its_own_saliency_and_mask(blocks):
    """Images that are not square: blocks of 4 x 6 pixels."""
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(2, 3, 4 * blocks, 6 * blocks, generator=generator)
    saliency = F.interpolate(torch.rand(2, 1, blocks, blocks, generator=generator) ** 9, scale_factor=(4, 6))[:, 0]
    labels = torch.randint(0, 3, (2, blocks, blocks), generator=generator).numpy()
    answers = iter(labels)
    mixed, share = puzzle_mix(
        images, images, saliency, torch.tensor([1, 0]), 0.5, blocks, solve=lambda *terms: next(answers)
    )
    pooled, moved = pool_saliency(saliency, blocks).numpy(), [0, 0]
    cells = images.unflatten(2, (blocks, 4)).unflatten(4, (blocks, 6))  # N, C, row, 4, column, 6
    for sample in range(2):
        mask, wanted = 1 - labels[sample] / 2, torch.zeros(3, blocks, 4, blocks, 6)
        for side, (source, shown) in enumerate(((sample, mask), (1 - sample, 1 - mask))):
            for (row, column), block in literal_plan(shown, pooled[source], 0.8).items():
                wanted[:, row, :, column] += shown[row, column] * cells[source, :, block[0], :, block[1]]
                moved[side] += block != (row, column)
        assert torch.allclose(mixed[sample], wanted.reshape(images[0].shape), atol=1e-6)
        assert share[sample].item() == pytest.approx(mask.mean())
    assert all(moved) or blocks == 2


# ------------------------------------------------------------------------------------------------------- the augment
@pytest.mark.parametrize('dtype', [None, torch.bfloat16, torch.float16])
def test_a_training_step_mixes_images_and_labels(dtype):
    model, data = net(augment()), batch(3)
    bind_augments(model)
    with torch.autocast('cpu', dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        ready = model.data_preprocessor(copy.deepcopy(data), training=True)
    plain = model.data_preprocessor(copy.deepcopy(data), training=False)['inputs']
    assert ready['inputs'].dtype == torch.float32 and ready['inputs'].isfinite().all()
    scores = torch.stack([sample.gt_score for sample in ready['data_samples']])
    assert torch.allclose(scores.sum(1), torch.ones(3)) and not ready['inputs'].equal(plain)
    assert all(parameter.grad is None for parameter in model.parameters())
    step(model, data)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_without_gco_wrapper_binding_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'gco', None)
    model = net(dict(type='PuzzleMix'))  # testing needs no graph cut
    with pytest.raises(UserError, match=r'pip install gco-wrapper.*Python 3\.11 and earlier'):
        bind_augments(model)


@pytest.mark.parametrize(
    'argument, value',
    [('alpha', 0), ('beta', -1), ('gamma', 'x'), ('eta', math.inf), ('eps', -0.1), ('labels', 1), ('blocks', ())]
    + [('blocks', [1]), ('neighbour_size', 0)],
)
def test_bad_arguments_are_named(argument, value):
    with pytest.raises(UserValueError, match=f'PuzzleMix: (each of: )?{argument}='):
        PuzzleMix(**{argument: value})


def test_images_that_cannot_be_cut_are_named():
    model = net(augment(blocks=(4, 8)))
    bind_augments(model)
    with pytest.raises(UserValueError, match=r'33 x 32 pixels.*blocks=\[4, 8\]'):
        model.data_preprocessor(batch(2, size=(33, 32)), training=True)


def test_activation_checkpointing_is_named():
    model = net(augment(), backbone=dict(type='ResNet', depth=18, base_channels=8, out_indices=(3,), with_cp=True))
    bind_augments(model)
    with pytest.raises(UserError, match='set with_cp=False'):
        model.data_preprocessor(batch(2), training=True)
