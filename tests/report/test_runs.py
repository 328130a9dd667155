"""Logs of runs that were interrupted, resumed and restarted."""

import pytest
from run_logs import epochs, settings, write_run, write_session

from mmrm.report.published import METRICS
from mmrm.report.runs import find_runs, read_run
from mmrm.utils.errors import UserFileError


@pytest.mark.parametrize(
    'second, measured, state',
    [
        (epochs(3, [31.0, 40.0, 50.0]), [10.0, 20.0, 31.0, 40.0, 50.0], 'finished'),  # resumed
        (epochs(1, [10.5]), [10.5], '1 of 5 epochs'),  # restarted
        (epochs(2, [0.0])[:1], [10.0], '1 of 5 epochs'),  # resumed, and not validated yet
    ],
    ids=['resumed', 'restarted', 'not validated'],
)
def test_a_later_session_replaces_what_it_repeats(tmp_path, second, measured, state):
    first = [{'accuracy/top1': 99.0, 'step': 0}, *epochs(1, [10.0, 20.0, 30.0])]  # 0: a validation without training
    write_session(tmp_path, '20260101_000000', first, settings(length=5), broken='{"accuracy/top1": 9')
    write_session(tmp_path, '20260102_000000', second, settings(length=5))
    run = read_run(tmp_path)
    assert [metrics['accuracy/top1'] for metrics in run.validations.values()] == measured and run.state == state
    assert run.trained == len(measured) and list(run.validations) == list(range(1, len(measured) + 1))


@pytest.mark.parametrize('by_epoch', [True, False])
def test_a_session_that_resumed_while_the_clock_went_back_counts(tmp_path, by_epoch):
    """The folders are named in local time: at the end of summer time the second one has the earlier name."""
    config = settings(6 if by_epoch else 60, by_epoch=by_epoch)

    def session(first, last):
        records = epochs(first, [float(epoch) for epoch in range(first, last + 1)])
        for record in records if not by_epoch else ():
            record.pop('epoch', None)
            record['step'] *= 1 if 'lr' in record else 10
        return records

    write_session(tmp_path, '20261025_024500', session(1, 4), config)
    write_session(tmp_path, '20261025_021500', session(5, 6), config)
    write_session(tmp_path, '20261026_000000', session(6, 6), config)
    run = read_run(tmp_path)
    assert [metrics['accuracy/top1'] for metrics in run.validations.values()] == [1, 2, 3, 4, 5, 6]
    assert run.state == 'finished' and list(run.iterations) == [10, 20, 30, 40, 50, 60]


def test_an_interrupted_iteration_based_run_counts_iterations(tmp_path):
    config = settings(length=80, by_epoch=False)

    def session(first, last):
        train = [dict(lr=0.1, time=1.0, iter=step, step=step) for step in range(first, last + 1, 5)]
        return train + [{'mIoU': float(step), 'step': step} for step in range(first // 20 * 20 + 20, last + 1, 20)]

    write_session(tmp_path, '20260101_000000', session(5, 50), config)
    write_session(tmp_path, '20260102_000000', session(45, 60), config)
    run = read_run(tmp_path)
    assert list(run.validations) == [20, 40, 60] and run.state == '60 of 80 iterations'


def test_a_log_and_a_config_that_are_nested_too_deeply(tmp_path):
    deep = '[' * 100_000
    write_session(tmp_path / 'config', '20260101_000000', epochs(1, [10.0]), f'a = {deep}')
    assert read_run(tmp_path / 'config').settings is None
    write_session(tmp_path / 'kinds', '20260101_000000', epochs(1, [10.0]), "train_cfg = 'text'\nmodel = 3\n")
    assert read_run(tmp_path / 'kinds').settings is None
    write_session(tmp_path / 'log', '20260101_000000', epochs(1, [10.0]), settings(1), '{"step": ' + deep)
    with pytest.raises(UserFileError, match=r'scalars.json is not a log of mmengine: .* nested too deeply'):
        read_run(tmp_path / 'log')


def test_best_last_memory_and_hours(tmp_path):
    write_run(tmp_path, [10.0, 30.0, float('nan'), 30.0, 20.0], memory=5887)
    run = read_run(tmp_path)
    values = run.values(METRICS['top1'])
    assert values == {1: 90.0, 2: 70.0, 4: 70.0, 5: 80.0}, 'errors, as the paper shows them'
    assert METRICS['top1'].best_step(values) == 2, 'the first of equals'
    assert run.values(METRICS['miou']) == {} and METRICS['miou'].best_step({}) is None
    assert run.training == dict(memory=5887, hours=pytest.approx(50 * 0.5 / 3600))  # 50 iterations of half a second


def test_runs_are_found_through_links_and_not_inside_runs(tmp_path):
    write_run(tmp_path / 'disk' / 'run', [1.0])
    root = tmp_path / 'root'
    root.mkdir()
    (root / 'rm').symlink_to(tmp_path / 'disk')
    (tmp_path / 'disk' / 'loop').symlink_to(tmp_path / 'disk')
    assert find_runs(root) == [root / 'rm' / 'run']


def test_a_real_run_that_was_stopped_and_resumed(tmp_path):
    import mmengine
    from mmengine.config import Config
    from mmengine.registry import init_default_scope
    from mmengine.runner import Runner
    from tiny_run import write_run as write_tiny

    measured = {}

    class Keep(mmengine.hooks.Hook):
        def after_val_epoch(self, runner, metrics=None):
            measured[runner.epoch] = metrics['accuracy/top1']

    init_default_scope('mmpretrain')
    for length, resume in ((1, False), (2, True)):
        cfg = Config.fromfile(write_tiny(tmp_path, epochs=length, images=4))
        cfg.update(work_dir=str(tmp_path / 'work'), resume=resume, experiment_name=f'tables{length}{tmp_path.name}')
        runner = Runner.from_cfg(cfg)
        runner._timestamp = f'2026010{length}_000000'
        runner.register_hook(Keep())
        runner.train()
    run = read_run(tmp_path / 'work')
    assert {epoch: metrics['accuracy/top1'] for epoch, metrics in run.validations.items()} == measured
    assert list(measured) == [1, 2] and run.finished and run.seed == 0
    assert run.checkpoint(2, 'last').name == 'epoch_2.pth'
    best = METRICS['top1'].best_step(run.values(METRICS['top1']))
    assert run.checkpoint(best, 'best').name.startswith('best_accuracy_top1_epoch_')
