"""Curves from hand-made runs of mmrm compare, and the only points of the paper that exist."""

import pytest
from run_logs import write_run

from mmrm.report.published import CURVES
from mmrm.utils.errors import UserFileError
from tools.analysis import sweep_curves

R18 = 'resnet18_2xb64_cifar100'


@pytest.fixture
def root(tmp_path):
    for value, accuracies in (('0.5', (81.0, 82.0, 83.0)), ('0.1', (79.0,)), ('0.09', (60.0,)), ('0.9', (70.0, 71.0))):
        for seed, accuracy in enumerate(accuracies):
            # The last run of 0.9 is unfinished, and so is the only one of 0.09.
            length = 9 if (value, seed) in (('0.9', 1), ('0.09', 0)) else None
            write_run(tmp_path / f'rm_alpha={value}' / f'seed{seed}', [50.0, accuracy, accuracy - 1], length, seed)
    write_run(tmp_path / 'rm_alpha=0.5_omega=0.1' / 'seed0', [50.0])
    return tmp_path


def test_points_are_mean_and_deviation_over_finished_seeds(root):
    assert sweep_curves.read_sweep(root, 'alpha') == [
        ('0.09', pytest.approx(40.0), 0.0, 1, False),
        ('0.1', pytest.approx(21.0), 0.0, 1, True),
        ('0.5', pytest.approx(18.0), pytest.approx(1.0), 3, True),
        ('0.9', pytest.approx(30.0), 0.0, 1, True),
    ]
    assert sweep_curves.read_sweep(root, 'alpha', kind='last')[2].mean == pytest.approx(19.0)
    assert sweep_curves.read_sweep(root, 'omega') == []


@pytest.mark.parametrize('name', [R18, 'mine'])
def test_the_figure_shows_only_the_published_points_that_exist(root, name):
    assert {number for curve in CURVES.values() for number in curve.values()} == {3.85, 21.70, 2.35, 18.64}
    (axes,) = sweep_curves.draw(dict(alpha={name: sweep_curves.read_sweep(root, 'alpha')})).axes
    labels = axes.get_legend_handles_labels()[1]
    if name == 'mine':
        assert labels == ['RM']
        return
    assert {'baseline, published 21.70', 'RM, published 18.64'} < set(labels)
    (star,) = (line for line in axes.get_lines() if line.get_marker() == '*')
    assert [text.get_text() for text in axes.get_xticklabels()][int(star.get_xdata()[0])] == '0.5'
    assert star.get_ydata()[0] == 18.64


def test_a_run_of_other_settings_is_no_seed(root):
    """What a short trial under another seed leaves."""
    write_run(root / 'rm_alpha=0.5' / 'seed9', [20.0])
    with pytest.raises(UserFileError, match=r'seed0 and .*seed9 are not seeds .*max_epochs: 3 -> 1'):
        sweep_curves.read_sweep(root, 'alpha')
