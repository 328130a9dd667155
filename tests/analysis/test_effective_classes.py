"""Effective classes: the paper's figure, and a recursion that can be counted by hand."""

import numpy as np
import pytest

from mmrm.utils.errors import UserValueError
from tools.analysis import effective_classes as effective


@pytest.fixture(scope='module')
def results():
    return effective.effective_classes(thresholds=(1e-1, 1e-2, 1e-3, 1e-4), batch=8)


def test_rm_holds_about_five_classes_above_the_label_smoothing_threshold(results):
    assert 4.6 < results['RM'].above(1e-4) < 5.4  # 3 runs of 100 iterations, 1000 classes


def test_pairwise_methods_hold_at_most_two_classes(results):
    assert results['baseline'].mean.tolist() == [1.0] * 4
    assert 1 < results['Mixup'].above(1e-4) < 2
    assert 1.7 < results['CutMix'].above(1e-4) <= 2
    assert 1.8 < results['MoEx'].above(1e-4) <= 2  # a sample may be its own partner


def test_cutmix_with_moex_holds_a_third_in_a_quarter_of_the_batches(results):
    assert 0.1 < results['CutMix + MoEx'].above(1e-4) - results['CutMix'].above(1e-4) < 0.35


def test_a_lower_threshold_counts_more(results):
    assert all((np.diff(counts.mean) >= 0).all() for counts in results.values())


def test_a_fixed_lambda_gives_the_geometric_series():
    """With lambda 1/4 in every step, the label is 3/4, 3/16, 3/64 ...: five shares above 0.0025 once all are there."""

    class Fixed:
        history = None

        def __call__(self, images, scores):
            scores = scores if self.history is None else 0.25 * self.history + 0.75 * scores
            self.history = scores
            return images, scores

    # So many classes that none comes twice.
    counts = effective.one_run(Fixed(), [0.0025], iterations=12, num_classes=10**6, size=1, batch=1)
    expected = []
    for step in range(12):
        shares = [0.75 * 0.25**back for back in range(step)] + [0.25**step]
        expected.append(sum(share > 0.0025 for share in shares))
    assert counts[0] == pytest.approx(np.mean(expected)) and expected[-1] == 5


def test_effective_classes_are_repeatable_and_runs_differ():
    first, second = (
        effective.effective_classes({'RM': effective.METHODS['RM']}, iterations=5, size=32, batch=2) for _ in range(2)
    )
    assert np.array_equal(first['RM'].runs, second['RM'].runs)
    assert len({tuple(run) for run in first['RM'].runs}) == 3


def test_bad_arguments_are_named():
    with pytest.raises(UserValueError, match='runs=0 must be 1 or more'):
        effective.effective_classes(runs=0)
    with pytest.raises(UserValueError, match=r'must lie in \(0, 1\)'):
        effective.effective_classes(thresholds=(1.0,))


def test_the_figure_shows_every_method(results):
    (axes,) = effective.draw(results).axes
    labels = [line.get_label() for line in axes.get_lines()]
    assert [label.partition(':')[0] for label in labels[: len(results)]] == list(results)
    assert axes.get_xscale() == 'log'
