"""Curves from hand-made results of the sweep, and the only points of the paper that exist."""

import pytest
from run_logs import write_run

from mmrm.report.published import CURVES
from mmrm.utils.errors import UserFileError, UserValueError
from tools.analysis import sweep_curves


@pytest.fixture
def root(tmp_path):
    for value, accuracies in (('0.5', (81.0, 82.0, 83.0)), ('0.1', (79.0,)), ('0.9', (70.0, 71.0))):
        for seed, accuracy in enumerate(accuracies):
            # The last run of 0.9 is unfinished.
            length = 9 if (value, seed) == ('0.9', 1) else None
            folder = tmp_path / 'alpha' / 'cifar100-resnet18' / value / f'seed{seed}'
            write_run(folder, [50.0, accuracy, accuracy - 1], length, seed)
    return tmp_path


def test_points_are_mean_and_deviation_over_finished_seeds(root):
    points = sweep_curves.read_sweep('alpha', root)['cifar100-resnet18']
    assert [point.value for point in points] == ['0.1', '0.5', '0.9']
    low, middle, high = points
    assert middle == ('0.5', pytest.approx(18.0), pytest.approx(1.0), 3, True)
    assert low[1:4] == (pytest.approx(21.0), 0.0, 1)
    assert high == ('0.9', pytest.approx(30.0), 0.0, 1, True)
    assert sweep_curves.read_sweep('alpha', root, kind='last')['cifar100-resnet18'][1].mean == pytest.approx(19.0)


def test_a_value_with_unfinished_runs_only_is_marked(tmp_path):
    write_run(tmp_path / 'omega' / 'x' / '0.1' / 'seed0', [60.0], length=200)
    (point,) = sweep_curves.read_sweep('omega', tmp_path)['x']
    assert point.finished is False and point.mean == 40.0


def test_values_are_sorted_as_numbers(tmp_path):
    for value in ('1', '0.08', '0', '0.5'):
        write_run(tmp_path / 'omega' / 'x' / value / 'seed0', [60.0])
    points = sweep_curves.read_sweep('omega', tmp_path)['x']
    assert [point.value for point in points] == ['0', '0.08', '0.5', '1']


def test_nothing_there_says_which_command_makes_it(tmp_path, root):
    with pytest.raises(UserFileError, match=r'come from: python tools/analysis/sweep\.py omega'):
        sweep_curves.read_sweep('omega', tmp_path)
    with pytest.raises(UserFileError, match='no results for in1k-resnet50'):
        sweep_curves.read_sweep('alpha', root, ['in1k-resnet50'])
    with pytest.raises(UserValueError, match="sweep 'beta' must be one of alpha, omega"):
        sweep_curves.read_sweep('beta')


def test_the_figure_shows_only_the_published_points_that_exist(root):
    assert {number for curve in CURVES.values() for number in curve.values()} == {3.85, 21.70, 2.35, 18.64}
    figure = sweep_curves.draw(dict(alpha=sweep_curves.read_sweep('alpha', root)))
    (axes,) = figure.axes
    labels = axes.get_legend_handles_labels()[1]
    assert {'baseline, published 21.70', 'RM, published 18.64'} < set(labels)
    (star,) = (line for line in axes.get_lines() if line.get_marker() == '*')
    assert [text.get_text() for text in axes.get_xticklabels()][int(star.get_xdata()[0])] == '0.5'
    assert star.get_ydata()[0] == 18.64


def test_a_setting_that_the_paper_has_no_points_of_gets_none(tmp_path):
    write_run(tmp_path / 'alpha' / 'mine' / '0.5' / 'seed0', [60.0])
    (axes,) = sweep_curves.draw(dict(alpha=sweep_curves.read_sweep('alpha', tmp_path))).axes
    assert axes.get_legend_handles_labels()[1] == ['RM']


def test_a_run_of_other_settings_is_no_seed(root):
    """What a short trial under another seed leaves."""
    write_run(root / 'alpha' / 'cifar100-resnet18' / '0.5' / 'seed9', [20.0])
    with pytest.raises(UserFileError, match=r'seed0 and .*seed9 are not seeds .*max_epochs: 3 -> 1'):
        sweep_curves.read_sweep('alpha', root)
