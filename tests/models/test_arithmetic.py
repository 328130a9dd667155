"""Each regulariser's arithmetic against a slow, literal reading of its paper, and against other packages' operators."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import drop_block2d

from mmrm.models.regularisers.dropblock import block_mask, drop_block, gamma
from mmrm.models.regularisers.feature_cutmix import box_mask, draw_box, feature_cutmix
from mmrm.models.regularisers.moex import exchange_moments


def features(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


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


# ----------------------------------------------------------------------------------------------------------------- moex
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


def test_gradients_of_moex_flow_through_both_samples():
    x = features(2, 4, 1, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: exchange_moments(x, torch.tensor([1, 0])), x)


def test_moex_takes_tokens_by_their_last_dimension():
    maps, index = features(2, 5, 3, 4), torch.tensor([1, 0])
    tokens = maps.flatten(2).transpose(1, 2)
    mixed = exchange_moments(tokens, index)
    assert torch.allclose(mixed.transpose(1, 2).reshape(maps.shape), exchange_moments(maps, index))


def test_moex_computes_in_float32_and_returns_what_it_got():
    x = (features(4, 64, 2, 2, dtype=torch.float32) * 300).half()  # squares beyond float16's range
    mixed = exchange_moments(x, torch.tensor([1, 2, 3, 0]))
    assert mixed.dtype == torch.half and mixed.isfinite().all()


@pytest.mark.parametrize(
    'call, message',
    [
        (lambda: exchange_moments(torch.rand(2, 1, 4, 4), torch.tensor([1, 0])), '1 channel; the moments'),
        (lambda: drop_block(torch.rand(2, 3, 4), 2, 0.9), r'needs maps .* shape \(2, 3, 4\)'),
    ],
)
def test_features_that_do_not_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


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
def test_dropped_cells_are_the_union_of_blocks_inside_the_map(block):
    torch.manual_seed(0)
    mask = block_mask((1, 1, 9, 11), block, 0.4)[0, 0]
    torch.manual_seed(0)
    begins = torch.empty(1, 1, 10 - block, 12 - block).bernoulli_(gamma(0.4, block, 9, 11))[0, 0]
    expected = torch.ones(9, 11)
    for h, w in torch.nonzero(begins).tolist():
        expected[h : h + block, w : w + block] = 0
    assert begins.any() and mask.equal(expected)


def test_gamma_is_the_papers():
    assert gamma(0.9, 7, 14, 14) == pytest.approx(0.1 / 49 * 196 / 64)
    assert gamma(0.9, 4, 8, 16) == pytest.approx(0.1 / 16 * 128 / (5 * 13))


@pytest.mark.parametrize('dtype, tolerance', [(torch.float, 1e-5), (torch.half, 1e-2)])
def test_the_scale_makes_up_for_what_was_dropped(dtype, tolerance):
    """Also where the number of cells is beyond float16."""
    dropped = drop_block(torch.ones(4, 64, 32, 32, dtype=dtype), 4, 0.8)
    assert dropped.dtype == dtype and dropped.isfinite().all() and (dropped == 0).any()
    assert dropped.float().mean().item() == pytest.approx(1, abs=tolerance)


def test_a_block_larger_than_the_map_drops_the_whole_map_of_a_channel():
    torch.manual_seed(0)
    dropped = drop_block(torch.ones(64, 64, 3, 3), 7, 0.9)
    whole = dropped.flatten(2).ne(0)
    assert (whole.all(-1) | ~whole.any(-1)).all()
    assert whole[..., 0].float().mean().item() == pytest.approx(0.9, abs=0.02)


def test_keep_prob_1_changes_nothing_and_draws_nothing():
    x, state = torch.rand(1, 2, 4, 4), torch.get_rng_state()
    assert drop_block(x, 2, 1.0) is x and torch.get_rng_state().equal(state)
