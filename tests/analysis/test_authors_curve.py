"""Runs against the authors' logs."""

from pathlib import Path

import pytest
from run_logs import settings, write_run, write_session

from mmrm.utils.errors import UserValueError
from tools.analysis import authors_curve as script

CIFAR10 = 'configs/rm/pyramidnet200_2xb32_cifar10.py'


def test_the_best_epochs_are_those_that_the_logs_are_named_after():
    """The CIFAR-10 logs end at 97.60, 97.62 and 97.72 best, ImageNet's at 79.20 best and 79.11 last."""
    curves = script.all_curves()
    cifar = curves['rm/pyramidnet200_1xb64_cifar10']
    assert sorted(max(run.values()) for run in cifar.runs.values()) == [97.60, 97.62, 97.72]
    (imagenet,) = curves['rm/resnet50_8xb64_in1k'].runs.values()
    assert (max(imagenet.values()), imagenet[300]) == (79.20, 79.11)
    assert max(curves['rm/upernet_r50_8xb2-80k_ade20k-512x512'].runs['rm'].values()) == pytest.approx(42.30, abs=0.01)
    assert curves['rm/atss_r50_fpn_1x_coco'].runs['rm'][12] == pytest.approx(41.5, abs=0.05)
    configs = Path(__file__).parents[2] / 'configs'
    assert all((configs / f'{name}.py').is_file() for name in curves)


def test_the_band_is_the_range_over_runs_and_neighbouring_epochs():
    curves = script.Curves(
        'x', 'k', 1, {'a': {1: 10.0, 2: 20.0, 3: 30.0, 4: 90.0}, 'b': {1: 5.0, 2: 25.0, 3: 35.0}}, around=1
    )
    assert curves.band(2) == (5.0, 35.0) and curves.band(3) == (20.0, 90.0) and curves.band(9) is None


def test_unfinished_run_is_compared_with_the_authors_at_the_same_epoch(tmp_path):
    folder = write_run(tmp_path / 'rm' / 'pyramidnet200_1xb64_cifar10' / 'seed0', [50.0, 60.0], length=300)
    run, curves = script.read(folder)
    low, high = curves.band(2)
    assert script.comparison_text(run, curves) == (
        f"epoch 2: 60.0, the authors' 3 runs had {low:.1f} to {high:.1f} (epochs 1 to 4)"
    )
    assert [line[-1] for line in script.table_lines(run, curves)] == ['within', 'within']
    assert curves.around_text(1) == 'epochs 1 to 3' and curves.around_text(300) == 'epochs 298 to 300'
    other = write_run(folder.parent / 'seed1', [10.0], length=300)
    low_run, _ = script.read(other)
    assert script.table_lines(low_run, curves)[0][-1] == 'below'


def test_a_detector_is_compared_in_percent_and_a_run_of_another_config_not_at_all(tmp_path):
    folder = write_run(tmp_path / 'rm' / 'mine', [0.2, 0.26], length=12, key='coco/bbox_mAP')
    run, curves = script.read(folder, 'configs/rm/atss_r50_fpn_1x_coco.py')
    assert script.comparison_text(run, curves) == "epoch 2: 26.0, the authors' run had 26.6"
    with pytest.raises(UserValueError, match=r'does not name a run .* configs/rm/resnet50_8xb64_in1k\.py'):
        script.read(folder)
    with pytest.raises(UserValueError, match=r'configs/rm/x\.py'):
        script.read(folder, 'configs/rm/x.py')


def test_the_script_prints_its_line_and_draws_the_curves(tmp_path, capsys):
    validated = write_run(tmp_path / 'rm' / 'resnet50_8xb64_in1k', [5.0, 18.0, 25.0], length=300)
    records = [dict(lr=0.1, loss=1.0, time=0.5, epoch=1, iter=10, step=10)]
    begun = write_session(tmp_path / 'cutmix' / 'atss_r50_fpn_1x_coco', '20260101_000000', records, settings(12))
    losses = first_epoch(tmp_path / 'rm' / 'pyramidnet200_2xb32_cifar10' / 'seed27', 2.06)
    for folder, options, line in (
        (validated, [], "epoch 3: 25.0, the authors' run had"),
        (begun, [], 'no validation yet'),
        (losses, ['--loss'], 'within the 95 % prediction interval of their 3 runs'),
    ):
        out = tmp_path / f'{folder.name}.png'
        script.main([str(folder), *(options or [str(out)])])
        assert line in capsys.readouterr().out and (options or out.stat().st_size > 10_000)


def losses(folder, name, steps, loss=lambda epoch, iteration: 2.0, **other):
    """Records of a log at some steps of epochs of 782 iterations, as mmengine counts them: on and on."""
    records = []
    for step in steps:
        epoch, iteration = (step - 1) // 782 + 1, (step - 1) % 782 + 1
        parts = dict(loss=loss(epoch, iteration) - 0.3, loss_consistency=0.1, rm_entropy=0.2)
        records.append(dict(lr=0.1, time=0.5, epoch=epoch, iter=step, step=step, **parts))
    return write_session(folder, name, records, settings(300))


def test_the_running_loss_is_the_mean_since_the_start_of_the_epoch(tmp_path):
    """Two epochs of 782 iterations, the second one broken off and resumed. Their last two are not logged."""
    folder = tmp_path / 'rm' / 'pyramidnet200_1xb64_cifar10'
    steps = [*range(10, 781, 10), *range(792, 1563, 10)]

    def loss(epoch, iteration):  # of the ten iterations up to this one
        return epoch + iteration / 1000

    losses(folder, '20260101_000000', steps[:100], loss)
    losses(folder, '20260102_000000', steps[98:], loss)
    run, curves = script.read(folder)
    mine = script.running_losses(run, curves)
    assert sorted(mine) == [(epoch, iteration) for epoch in (1, 2) for iteration in range(10, 781, 10)]
    for epoch in (1, 2):
        for count in (1, 20, 78):
            assert mine[epoch, 10 * count] == pytest.approx(epoch + 0.01 * (count + 1) / 2)
    lines = script.loss_lines(run, curves)
    assert [line[:2] for line in lines] == [[str(e), str(i)] for e in (1, 2) for i in range(100, 701, 100)]
    assert script.loss_verdict(run, curves).startswith('epoch 2, iteration 700: 2.355')
    theirs = [2.1948, 2.2047, 2.1925]
    mean = sum(theirs) / 3
    assert lines[0][2:] == ['1.055', f'{mean:.3f}', '2.192', '2.205', f'{100 * (1.055 / mean - 1):+.1f} %']


def test_log_without_rm_entropy_is_not_compared(tmp_path):
    """A record is the mean of ten iterations, also where the log has one in a hundred."""
    config = 'configs/rm/pyramidnet200_1xb64_cifar10.py'
    with pytest.raises(UserValueError, match='did not log rm_entropy'):
        script.loss_lines(*script.read(write_run(tmp_path / 'without', [50.0], length=300), config))
    detector = write_run(tmp_path / 'mine', [0.2], length=12, key='coco/bbox_mAP')
    with pytest.raises(UserValueError, match='no loss'):
        script.loss_lines(*script.read(detector, 'configs/rm/atss_r50_fpn_1x_coco.py'))
    sparse = losses(tmp_path / 'sparse', '20260101_000000', range(100, 301, 100))
    with pytest.raises(UserValueError, match=r'logged only every 100 iterations.*logger\.interval=10'):
        script.loss_verdict(*script.read(sparse, config))
    records = [dict(epoch=2, iter=130, step=130, loss=1.0, loss_consistency=0.1, rm_entropy=0.2, lr=0.1, time=0.5)]
    other = write_session(tmp_path / 'other', '20260101_000000', records, settings(300))
    with pytest.raises(UserValueError, match='step 130 cannot be in epoch 2, as their epochs have 782 iterations'):
        script.loss_lines(*script.read(other, config))
    # Epochs of which the authors' losses are not known may be logged as one likes.
    late = losses(tmp_path / 'late', '20260101_000000', [*range(10, 781, 10), 782 * 6 + 100])
    assert len(script.loss_lines(*script.read(late, config))) == 7


def first_epoch(folder, loss, until=300):
    """A run of the first epoch whose loss, with all its parts, is the same in every iteration."""
    return losses(folder, '20260101_000000', range(10, until + 1, 10), lambda epoch, iteration: loss)


def test_a_loss_is_judged_by_the_spread_of_the_authors_runs(tmp_path):
    """At iteration 300 they had 2.0554, 2.0702 and 2.0443."""
    config = CIFAR10
    mean = (2.0554 + 2.0702 + 2.0443) / 3
    near = script.loss_verdict(*script.read(first_epoch(tmp_path / 'near', 2.06), config))
    assert near.startswith('epoch 1, iteration 300: 2.060, +0.2 % from their mean; within the 95 % prediction interval')
    far = script.loss_verdict(*script.read(first_epoch(tmp_path / 'far', 2.2), config))
    assert '+7.0 % from their mean; outside the 95 % prediction interval of their 3 runs' in far
    losses = script.authors_losses(script.curves_of(config))
    reach = script.prediction_reach(losses, (1, 300))
    assert f'{mean - reach:.3f} to {mean + reach:.3f}' in far
    # Student's t with two degrees of freedom is 4.303; of three runs the deviation is about half the range.
    assert 0.04 < reach < 0.1
    early = script.read(first_epoch(tmp_path / 'early', 2.2, until=50), config)
    assert script.loss_verdict(*early) is None and script.loss_lines(*early) == []
    found = script.read(first_epoch(tmp_path / 'one', 7.6), 'configs/rm/resnet50_8xb64_in1k.py')
    assert script.loss_verdict(*found).endswith('one run has no spread to judge it by')


def test_the_published_losses_are_those_of_the_log():
    """docs/paper_figures.md: the first 300 iterations of the authors' CIFAR-10 run."""
    docs = Path(__file__).parents[2] / 'docs'
    run, curves = script.read(docs / 'first_epoch', CIFAR10)
    lines = script.loss_lines(run, curves)
    assert [line[:2] for line in lines] == [['1', '100'], ['1', '200'], ['1', '300']]
    page = (docs / 'paper_figures.md').read_text()
    assert all(f'| {" | ".join(line)} |' in page for line in lines)
    verdict = script.loss_verdict(run, curves)
    assert 'within the 95 % prediction interval of their 3 runs, 1.996 to 2.118' in verdict and '1.996 to 2.118' in page
    # The parts are those of the method: the mean of the areas of clipped boxes is about 0.17, and none is negative.
    shares = [record['rm_lambda'] for record in run.iterations.values()]
    assert len(shares) == 30 and 0.15 < sum(shares) / 30 < 0.2
    assert all(min(record['loss_consistency'], record['rm_entropy']) > 0 for record in run.iterations.values())
