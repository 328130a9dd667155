"""Each regulariser's arithmetic against a slow, literal reading of its paper, and against other packages' operators."""

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import drop_block2d

from mmrm.core import Box, mix_labels
from mmrm.models import regularisers
from mmrm.models.regularisers.dropblock import block_mask, drop_block, gamma, keep_rate
from mmrm.models.regularisers.feature_cutmix import box_mask, draw_box, feature_cutmix
from mmrm.models.regularisers.manifold_mixup import manifold_mixup
from mmrm.models.regularisers.moex import exchange_moments, moments


def features(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_the_functions_need_no_openmmlab():
    for path in Path(regularisers.__file__).parent.glob('*.py'):
        for node in ast.parse(path.read_text()).body:
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            assert not any(name.startswith(('mmpretrain', 'mmengine', 'mmcv')) for name in names), path


# --------------------------------------------------------------------------------------------------------------- labels
def test_the_loss_of_mixed_labels_is_the_weighted_sum_of_two_losses():
    logits, labels, index = features(4, 5), torch.tensor([0, 3, 3, 1]), torch.tensor([2, 0, 1, 3])
    scores = mix_labels(F.one_hot(labels, 5), F.one_hot(labels[index], 5), 0.7).double()
    both = 0.3 * F.cross_entropy(logits, labels) + 0.7 * F.cross_entropy(logits, labels[index])
    assert F.cross_entropy(logits, scores).item() == pytest.approx(both.item(), abs=1e-6)


def test_every_sample_may_have_its_own_share():
    scores, index, shares = torch.eye(3), torch.tensor([1, 2, 0]), torch.tensor([0.1, 0.5, 1.0])
    mixed = mix_labels(scores, scores[index], 1 - shares)
    for sample in range(3):
        expected = shares[sample] * scores[sample] + (1 - shares[sample]) * scores[index[sample]]
        assert torch.allclose(mixed[sample], expected)


# ------------------------------------------------------------------------------------------------------- manifold mixup
def test_manifold_mixup_interpolates_each_sample_with_its_partner():
    x, index, lam = features(3, 2, 4, 5), [2, 0, 1], 0.3
    mixed = manifold_mixup(x, torch.tensor(index), lam)
    for i, c, h, w in itertools.product(range(3), range(2), range(4), range(5)):
        expected = lam * x[i, c, h, w].item() + (1 - lam) * x[index[i], c, h, w].item()
        assert mixed[i, c, h, w].item() == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------------- feature cutmix
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1), st.integers(0, 10_000))
def test_feature_cutmix_is_a_loop_over_cells_and_the_share_is_what_was_left(height, width, lam, seed):
    box, share = draw_box(lam, height, width, np.random.RandomState(seed))
    x, index = features(3, 2, height, width), [1, 2, 0]
    mixed = feature_cutmix(x, torch.tensor(index), box_mask(box, height, width))
    own = 0
    for h, w in itertools.product(range(height), range(width)):
        inside = box.y1 <= h < box.y2 and box.x1 <= w < box.x2
        own += not inside
        for i in range(3):
            assert mixed[i, :, h, w].equal(x[index[i] if inside else i, :, h, w])
    assert share == pytest.approx(own / (height * width))


def test_a_box_has_the_sides_of_the_share_that_is_cut():
    class Centre:
        def randint(self, size):
            return size // 2

    assert draw_box(0.75, 8, 16, Centre()) == (Box(4, 2, 12, 6), 0.75)


# ----------------------------------------------------------------------------------------------------------------- moex
def test_moments_are_those_of_torch_over_channels_at_each_position():
    x = features(2, 7, 3, 4)
    variance, mean = torch.var_mean(x, dim=1, keepdim=True, correction=1)
    got_mean, got_std = moments(x, eps=1e-5)
    assert torch.allclose(got_mean, mean) and torch.allclose(got_std, (variance + 1e-5).sqrt())
    assert got_mean.shape == (2, 1, 3, 4)


def test_moex_is_a_loop_over_positions():
    x, index = features(3, 5, 2, 3), [1, 2, 0]
    mixed = exchange_moments(x, torch.tensor(index), eps=1e-5)

    def of(vector):
        mean = sum(vector) / len(vector)
        return mean, (sum((v - mean) ** 2 for v in vector) / (len(vector) - 1) + 1e-5) ** 0.5

    for i, h, w in itertools.product(range(3), range(2), range(3)):
        mean_a, std_a = of(x[i, :, h, w].tolist())
        mean_b, std_b = of(x[index[i], :, h, w].tolist())
        expected = [(v - mean_a) / std_a * std_b + mean_b for v in x[i, :, h, w].tolist()]
        assert mixed[i, :, h, w].tolist() == pytest.approx(expected)


def test_the_mixed_features_have_the_partners_moments():
    x, index = features(4, 32, 3, 3), torch.tensor([1, 2, 3, 0])
    mean, std = moments(x)
    got_mean, got_std = moments(exchange_moments(x, index))
    assert torch.allclose(got_mean, mean[index]) and torch.allclose(got_std, std[index], rtol=1e-3)


def test_gradients_of_moex_flow_through_both_samples():
    x = features(2, 4, 1, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: exchange_moments(x, torch.tensor([1, 0])), x)
    exchange_moments(x, torch.tensor([1, 0]))[0, 0].sum().backward()
    assert (x.grad.abs().flatten(1).sum(1) > 0).all()


def test_moex_takes_tokens_by_their_last_dimension():
    maps, index = features(2, 5, 3, 4), torch.tensor([1, 0])
    tokens = maps.flatten(2).transpose(1, 2)
    mixed = exchange_moments(tokens, index)
    assert torch.allclose(mixed.transpose(1, 2).reshape(maps.shape), exchange_moments(maps, index))


def test_moex_computes_in_float32_and_returns_what_it_got():
    x = (features(4, 64, 2, 2, dtype=torch.float32) * 300).half()  # squares beyond float16's range
    mixed = exchange_moments(x, torch.tensor([1, 2, 3, 0]))
    assert mixed.dtype == torch.half and mixed.isfinite().all()


def test_moex_of_one_channel_is_an_error():
    with pytest.raises(ValueError, match='1 channel; the moments over channels need two or more'):
        exchange_moments(torch.rand(2, 1, 4, 4), torch.tensor([1, 0]))


# ------------------------------------------------------------------------------------------------------------ dropblock
@pytest.mark.parametrize('block', [1, 3, 5, 7])
def test_dropblock_is_torchvisions_for_odd_blocks(block):
    x = features(2, 4, 9, 7, dtype=torch.float32)
    torch.manual_seed(1)
    expected = drop_block2d(x, 0.2, block)
    torch.manual_seed(1)
    assert torch.allclose(drop_block(x, block, 0.8), expected, rtol=1e-5)
    assert not expected.equal(x)


@pytest.mark.parametrize('block', [2, 3, 4])
def test_what_is_dropped_is_the_union_of_blocks_inside_the_map(block):
    torch.manual_seed(0)
    mask = block_mask((1, 1, 9, 11), block, 0.4)[0, 0]
    torch.manual_seed(0)
    begins = torch.empty(1, 1, 10 - block, 12 - block).bernoulli_(gamma(0.4, block, 9, 11))[0, 0]
    expected = torch.ones(9, 11)
    for h, w in torch.nonzero(begins).tolist():
        expected[h : h + block, w : w + block] = 0
    assert begins.any() and mask.equal(expected)


@pytest.mark.parametrize('block, size, keep', [(4, 8, 0.9), (4, 16, 0.9), (7, 14, 0.9), (2, 32, 0.9), (3, 10, 0.97)])
def test_about_keep_prob_of_the_cells_is_kept(block, size, keep):
    torch.manual_seed(0)
    share = block_mask((64, 64, size, size), block, keep).mean().item()
    # Where blocks overlap, less is dropped than the formula counts; the paper says "about", too.
    assert keep - 0.005 < share < keep + 0.12 * (1 - keep)


def test_gamma_is_the_papers():
    assert gamma(0.9, 7, 14, 14) == pytest.approx(0.1 / 49 * 196 / 64)
    assert gamma(0.9, 4, 8, 16) == pytest.approx(0.1 / 16 * 128 / (5 * 13))


def test_the_scale_makes_up_for_what_was_dropped():
    torch.manual_seed(0)
    dropped = drop_block(torch.ones(4, 8, 16, 16), 4, 0.8)
    assert dropped.mean().item() == pytest.approx(1, abs=1e-5) and (dropped == 0).any()


def test_dropblock_counts_beyond_float16():
    torch.manual_seed(0)
    dropped = drop_block(torch.ones(4, 64, 32, 32, dtype=torch.half), 4, 0.9)
    assert dropped.dtype == torch.half
    assert dropped.float().mean().item() == pytest.approx(1, abs=1e-2) and dropped.isfinite().all()


def test_a_block_larger_than_the_map_drops_the_whole_map_of_a_channel():
    torch.manual_seed(0)
    dropped = drop_block(torch.ones(64, 64, 3, 3), 7, 0.9)
    whole = dropped.flatten(2).ne(0)
    assert (whole.all(-1) | ~whole.any(-1)).all()
    assert whole[..., 0].float().mean().item() == pytest.approx(0.9, abs=0.02)


def test_keep_prob_1_changes_nothing_and_draws_nothing():
    x, state = torch.rand(1, 2, 4, 4), torch.get_rng_state()
    assert drop_block(x, 2, 1.0) is x and torch.get_rng_state().equal(state)


def test_the_keep_rate_falls_on_a_line_from_1():
    assert [keep_rate(progress, 0.9) for progress in (0, 0.5, 1)] == pytest.approx([1, 0.95, 0.9])


def test_dropblock_wants_maps():
    with pytest.raises(ValueError, match=r'needs maps \(N, C, H, W\), but got features of shape \(2, 3, 4\)'):
        drop_block(torch.rand(2, 3, 4), 2, 0.9)
