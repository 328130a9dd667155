"""Stopped at any iteration and resumed is, bit for bit, never stopped."""

import json
import os
import signal

import pytest
import torch
from exact_run import (
    BATCH,
    IMAGES,
    SpeckledPictures,
    Stop,
    StopAfter,
    StopIn,
    assert_same,
    logged,
    no_programs_asked,  # noqa: F401 (a fixture)
    runner,
    stopped_and_resumed,
)
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner as MMEngineRunner
from tiny_run import write_run

from mmrm.engine import signals
from mmrm.engine.hooks import CrashSafeCheckpointHook
from mmrm.engine.runner import Runner
from mmrm.utils.checkpoints import read_checkpoint
from mmrm.utils.errors import UserError, UserFileError, UserValueError

ITERATIONS = dict(
    loop=dict(type='IterBasedTrainLoop', max_iters=12, val_interval=5), sampler=dict(type='InfiniteSampler')
)
CASES = {
    'epochs': dict(),
    'epochs, the history never emptied': dict(reset=False),
    'epochs, mixed rarely and not in the last one': dict(
        reset=False,
        model_settings=dict(augments=dict(type='RecursiveMix', alpha=1.0, prob=0.7)),
        schedule=dict(type='MixScheduleHook', last_epochs=1),
    ),
    'epochs, accumulated': dict(accumulate=2, every=1),
    'iterations': ITERATIONS,
    'iterations, accumulated': dict(ITERATIONS, accumulate=2, every=1),
    'iterations over a finite sampler': dict(loop=dict(by_epoch=False, max_iters=12, val_interval=5)),
}


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory):
    """The run that was never stopped, of each case, trained once."""
    done = {}

    def train(name):
        if name not in done:
            folder = tmp_path_factory.mktemp('whole')
            done[name] = runner(folder, **CASES[name]), folder
            done[name][0].train()
        return done[name]

    return train


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize(
    'step', [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow), 7, 11]
)
def test_run_stopped_after_any_iteration_resumes_bit_for_bit(tmp_path, unbroken, name, step):
    """At iteration 4 an epoch ends, at 7 one has begun, at 11 it is two iterations past a checkpoint."""
    whole, folder = unbroken(name)
    parts = stopped_and_resumed(tmp_path, StopAfter(step), **CASES[name])
    assert parts.iter == whole.iter == 12
    assert_same(whole, parts)
    assert logged(tmp_path) == logged(folder)


@pytest.mark.parametrize('before, after', [pytest.param(0, 2, marks=pytest.mark.slow), (2, 1)])
def test_the_number_of_workers_does_not_matter_also_if_it_changes(tmp_path, unbroken, before, after):
    whole, folder = unbroken('epochs')
    parts = stopped_and_resumed(tmp_path, StopAfter(7), after=dict(workers=after), workers=before)
    assert_same(whole, parts)
    assert logged(tmp_path) == logged(folder)


@pytest.mark.parametrize('name', ['epochs', 'iterations'])
@pytest.mark.parametrize('point', ['before_val_epoch', 'after_val_epoch'])
def test_interrupted_validation_is_repeated(tmp_path, unbroken, name, point):
    """Killed in the last validation: nothing is left to train."""
    whole, folder = unbroken(name)
    parts = stopped_and_resumed(tmp_path, StopIn(point, 3), **dict(CASES[name], every=1))
    assert_same(whole, parts, history=name != 'epochs')  # at an epoch's end there is none to keep
    assert logged(tmp_path) == logged(folder)


def test_a_validation_that_was_made_and_kept_is_not_made_again(tmp_path):
    """With a new best the checkpoint is written once more, after the validation."""
    with pytest.raises(Stop):
        runner(
            tmp_path,
            hooks=[StopIn('before_train_epoch', 2)],
            every=1,
            by_epoch=True,
            checkpoint=dict(save_best='accuracy/top1', rule='greater'),
        ).train()
    watch = StopIn('before_val_epoch', 0)
    runner(tmp_path, hooks=[watch], resume=True, every=1, by_epoch=True, loop=dict(by_epoch=True, max_epochs=2)).train()
    assert watch.times == -1  # that of the second epoch


def test_validation_changes_nothing_in_training(tmp_path, unbroken):
    """Its pictures are speckled, too, from the generators of the training."""
    whole, _ = unbroken('iterations')
    seldom = runner(tmp_path, **dict(ITERATIONS, loop=dict(ITERATIONS['loop'], val_interval=100)))
    seldom.train()
    assert_same(whole, seldom)


def test_without_a_seed_in_the_config_a_resume_keeps_that_of_the_run(tmp_path, monkeypatch):
    drawn = iter([11, 11, 12])
    monkeypatch.setattr('mmengine.runner.utils.sync_random_seed', lambda: next(drawn))
    whole = runner(tmp_path / 'whole', seed=None)
    whole.train()
    parts = stopped_and_resumed(tmp_path / 'parts', StopAfter(6), seed=None)
    assert_same(whole, parts)


# -------------------------------------------------------------------------------------------------------- warnings
def warned(folder):
    return ' '.join(path.read_text() for path in folder.glob('*/*.log'))


def test_resume_with_other_processes_warns_and_starts_at_the_same_sample(tmp_path):
    with pytest.raises(Stop):
        runner(tmp_path, hooks=[StopAfter(6)], validate=False).train()
    checkpoint = torch.load(tmp_path / 'iter_6.pth')
    checkpoint['random_state'] *= 2
    checkpoint['resume_state'].update(samples=2 * BATCH, batch=1)
    torch.save(checkpoint, tmp_path / 'iter_6.pth')
    SpeckledPictures.loaded.clear()
    runner(tmp_path, resume=True, validate=False, loop=dict(by_epoch=True, max_epochs=2)).train()
    assert 'this run has 1: training resumes in epoch 2 at batch 3, but not bit for bit' in warned(tmp_path)
    assert len(SpeckledPictures.loaded) == IMAGES - 2 * BATCH


def test_resume_with_another_batch_size_warns_or_fails_with_accumulated_gradients(tmp_path):
    stopped_and_resumed(tmp_path, StopAfter(6), after=dict(batch=4), validate=False)
    assert 'has 4: training resumes in epoch 2 at batch 4' in warned(tmp_path)
    with pytest.raises(UserValueError, match=r'6 samples per iteration .* has 4: gradients are accumulated'):
        stopped_and_resumed(tmp_path / 'two', StopAfter(6), after=dict(batch=4), accumulate=2, validate=False)


@pytest.mark.parametrize(
    'after, before, wanted',
    [
        (dict(loop=dict(by_epoch=True, max_epochs=4)), 'CosineAnnealingLR to 3', 'CosineAnnealingLR to 4'),
        (dict(batch=BATCH // 2), 'lr 0.025', 'lr 0.0125'),
        (dict(), None, None),
    ],
)
def test_resume_with_another_schedule_warns(tmp_path, after, before, wanted):
    scale = dict(auto_scale_lr=dict(enable=True, base_batch_size=2 * BATCH))
    stopped_and_resumed(tmp_path, StopAfter(6), after=after, validate=False, **scale)
    told = warned(tmp_path).partition('The schedule of the checkpoint is kept')[2]
    assert told.find(str(before)) < told.find(str(wanted)) if after else not told


def test_a_checkpoint_without_its_schedule_is_not_resumed_from(tmp_path):
    with pytest.raises(UserFileError, match='has no param_schedulers: the learning rate would start again'):
        stopped_and_resumed(tmp_path, StopAfter(6), validate=False, checkpoint=dict(save_param_scheduler=False))


@pytest.mark.parametrize('name', ['epochs', 'iterations'])
def test_checkpoint_of_mmengines_runner_resumes_with_a_warning(tmp_path, name):
    case = dict(CASES[name], every=1, by_epoch=name == 'epochs')
    stop = StopIn('before_train_epoch', 2) if name == 'epochs' else StopAfter(7)
    with pytest.raises(Stop):
        runner(tmp_path, hooks=[stop], **case).train()
    path = tmp_path / ('epoch_1.pth' if name == 'epochs' else 'iter_7.pth')
    checkpoint = torch.load(path)
    for key in ('random_state', 'resume_state', 'sampler_seed'):
        del checkpoint[key]
    torch.save(checkpoint, path)
    SpeckledPictures.loaded.clear()
    resumed = runner(tmp_path, resume=True, **dict(case, validate=False))
    resumed.train()
    where = 'in epoch 2 at batch 1' if name == 'epochs' else 'at batch 8'
    assert f'training resumes {where}' in warned(tmp_path) and 'not bit for bit' in warned(tmp_path)
    assert resumed.iter == 12
    assert len(SpeckledPictures.loaded) == (2 * IMAGES if name == 'epochs' else 5 * BATCH)


def test_a_checkpoint_of_mmengines_own_runner_from_mid_epoch_begins_the_epoch_again(tmp_path):
    with pytest.raises(Stop):
        runner(tmp_path, hooks=[StopAfter(7)], kind=MMEngineRunner).train()
    resumed = runner(tmp_path, resume=True)
    resumed.train()
    assert 'by another Runner: the epoch starts again' in warned(tmp_path)
    assert resumed.iter == 12


def test_mmengines_own_runner_resumes_from_a_checkpoint_at_an_epochs_end(tmp_path):
    with pytest.raises(Stop):
        runner(tmp_path, hooks=[StopIn('before_train_epoch', 2)], every=1, by_epoch=True).train()
    stock = runner(tmp_path, resume=True, every=1, by_epoch=True, kind=MMEngineRunner)
    stock.train()
    assert type(stock.train_loop).__name__ == 'EpochBasedTrainLoop' and stock.iter == 12


def test_the_loops_are_not_in_the_config(tmp_path):
    config = write_run(tmp_path, more="train_cfg = dict(type='IterBasedTrainLoop', max_iters=1)\n")
    built = Runner.from_cfg(Config(dict(Config.fromfile(config), work_dir=str(tmp_path / 'run')), filename=str(config)))
    assert type(built.train_loop).__name__ == 'ResumableIterLoop'
    dumped = Config.fromfile(tmp_path / 'run' / config.name)
    assert dumped.train_cfg == dict(type='IterBasedTrainLoop', max_iters=1)
    assert dumped.default_hooks.checkpoint.type == 'CheckpointHook'


def test_processes_with_different_checkpoints_fail(tmp_path, monkeypatch):
    """As on nodes that do not share the work dir."""
    monkeypatch.setattr('mmrm.engine.runner.all_gather_object', lambda start: [start, (1, 4)])
    with pytest.raises(UserError, match=r'process 0: epoch 0, iteration 0, process 1: epoch 1, iteration 4'):
        runner(tmp_path, validate=False).train()


# ------------------------------------------------------------------------------------------------------- checkpoints
class Clock:
    """A clock that advances by a minute with every iteration."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr('mmrm.engine.hooks.crash_safe_checkpoint.time.monotonic', lambda: self.now)

    def hook(self):
        ticking = Hook()
        ticking.priority = 'VERY_HIGH'
        ticking.after_train_iter = lambda *args, **kwargs: setattr(self, 'now', self.now + 60)
        return ticking


def saved(folder):
    return sorted(path.name for path in folder.glob('*_*.pth'))


def test_checkpoints_by_the_clock_replace_each_other_and_go_with_the_next_one(tmp_path, monkeypatch, unbroken):
    monkeypatch.setattr(CrashSafeCheckpointHook, 'LOOK_EVERY', 1)
    settings = dict(every=1, by_epoch=True, checkpoint=dict(every_minutes=2))
    for step, names in (
        (2, ['iter_2.pth']),
        (3, ['iter_2.pth']),
        (5, ['epoch_1.pth']),
        (7, ['epoch_1.pth', 'iter_6.pth']),
    ):
        with pytest.raises(Stop):
            runner(tmp_path / str(step), hooks=[Clock(monkeypatch).hook(), StopAfter(step)], **settings).train()
        assert saved(tmp_path / str(step)) == names
    resumed = runner(tmp_path / '7', hooks=[Clock(monkeypatch).hook()], resume=True, **settings)
    resumed.train()
    assert saved(tmp_path / '7') == ['epoch_1.pth', 'epoch_2.pth', 'epoch_3.pth']
    assert_same(unbroken('epochs')[0], resumed)


def test_ten_minutes_are_the_longest_time_without_a_checkpoint_unless_something_else_is_asked_for(tmp_path):
    for minutes, settings in ((10, {}), (None, dict(every=-1)), (None, dict(checkpoint=dict(every_minutes=None)))):
        run = runner(tmp_path, **settings)
        (hook,) = [hook for hook in run.hooks if isinstance(hook, CrashSafeCheckpointHook)]
        assert hook.every_minutes == minutes and hook.saves_on_signals(run) == (settings != dict(every=-1))


@pytest.mark.parametrize('every, by_epoch, save_history', [(2, False, True), (1, True, True), (2, False, False)])
def test_only_a_checkpoint_in_mid_epoch_holds_the_history_and_not_if_it_is_not_wanted(
    tmp_path, every, by_epoch, save_history
):
    settings = dict(validate=False, loop=dict(by_epoch=True, max_epochs=1), checkpoint=dict(save_history=save_history))
    runner(tmp_path, every=every, by_epoch=by_epoch, **settings).train()
    (tensors,) = read_checkpoint(tmp_path / saved(tmp_path)[0])['resume_state']['tensors']
    names = {key.rpartition('.')[2] for key in tensors}
    assert names >= {'images', 'scores', 'prediction'} if save_history and not by_epoch else not names


@pytest.mark.parametrize('value', [-1, '10'])
def test_a_wrong_setting_of_the_checkpoints_is_named(tmp_path, value):
    with pytest.raises(UserError, match=f'every_minutes={value!r} must be'):
        runner(tmp_path, checkpoint=dict(every_minutes=value))


# -------------------------------------------------------------------------------------------------------------- signals
class Signalled(Hook):
    """Sends this process a signal at a named point of a run, the n-th time that it comes by."""

    priority = 'HIGHEST'

    def __init__(self, point, times, number=signal.SIGTERM):
        self.times, self.number = times, number
        setattr(self, point, self.send)

    def send(self, *args, **kwargs):
        self.times -= 1
        if self.times == 0:
            os.kill(os.getpid(), self.number)


def stopped_by_signal(folder, hook, **kwargs):
    """Run until a signal stops it; no other checkpoint is written. Returns the message."""
    with signals.caught(), signals.deferred(), pytest.raises(signals.Stopped) as stop:
        runner(folder, **{**kwargs, 'every': 100, 'hooks': [hook, *kwargs.get('hooks', ())]}).train()
    assert (stop.value.code == 75) == ('iter_' in stop.value.message)  # 76 without a new checkpoint
    return stop.value.message


@pytest.mark.parametrize('name', ['epochs', 'epochs, accumulated', 'iterations'])
@pytest.mark.parametrize(
    'point, times, saved',
    [
        pytest.param('after_train_iter', 2, 2, marks=pytest.mark.slow),
        ('after_train_iter', 3, 3),  # between two updates of an accumulated gradient
        pytest.param('after_train_iter', 4, 4, marks=pytest.mark.slow),  # the end of an epoch
        ('after_val_iter', 2, None),  # in the middle of a validation
        ('before_save_checkpoint', 1, 12),  # while the last checkpoint is written: a validation is left
    ],
)
def test_a_signal_saves_after_the_step_and_nothing_is_repeated(tmp_path, unbroken, name, point, times, saved):
    if saved is None:
        saved = 4 if name.startswith('epochs') else 5
    elif saved == 3 and 'accumulated' in name:
        saved = 4
    whole, folder = unbroken(name)
    case = dict(CASES[name], every=100)
    message = stopped_by_signal(tmp_path, Signalled(point, times), **case)
    assert [path.name for path in tmp_path.glob('*.pth')] == [f'iter_{saved}.pth']
    assert f'stopped by SIGTERM after iteration {saved}, and {tmp_path}/iter_{saved}.pth' in message
    parts = runner(tmp_path, resume=True, **case)
    parts.train()
    assert_same(whole, parts, history=saved < 12)
    assert logged(tmp_path) == logged(folder)
    steps = [entry['step'] for path in sorted(tmp_path.glob('*/vis_data/scalars.json')) for entry in losses_of(path)]
    assert steps == list(range(1, 13))


@pytest.mark.parametrize('name', ['epochs', 'iterations'])
def test_signal_in_a_repeated_validation_loses_nothing(tmp_path, unbroken, name):
    """RM's history is not back in its place yet: the checkpoint of before is the one to resume from."""
    whole, folder = unbroken(name)
    case = dict(CASES[name], every=100)
    first = stopped_by_signal(tmp_path, Signalled('after_val_iter', 2), **case)
    step = 4 if name == 'epochs' else 5
    assert f'after iteration {step},' in first
    assert f'after iteration {step},' in stopped_by_signal(
        tmp_path, Signalled('after_val_iter', 2), **case, resume=True
    )
    parts = runner(tmp_path, resume=True, **case)
    parts.train()
    assert_same(whole, parts)
    assert logged(tmp_path) == logged(folder)


def losses_of(path):
    entries = map(json.loads, path.read_text().splitlines())
    return [entry for entry in entries if 'loss' in entry]


def test_a_validation_that_is_cut_off_gives_the_weights_back_that_the_moving_average_had_replaced(tmp_path):
    average = dict(hooks=[dict(type='EMAHook', momentum=0.3)])
    whole = runner(tmp_path / 'whole', **average)
    whole.train()
    stopped_by_signal(tmp_path / 'parts', Signalled('after_val_iter', 6, signal.SIGUSR1), **average)
    parts = runner(tmp_path / 'parts', resume=True, **average)
    parts.train()
    assert_same(whole, parts)
    for left, right in zip(average_of(whole).parameters(), average_of(parts).parameters()):
        assert torch.equal(left, right)
    assert logged(tmp_path / 'parts') == logged(tmp_path / 'whole')


def average_of(run):
    return next(hook.ema_model for hook in run.hooks if hasattr(hook, 'ema_model'))


def test_a_signal_before_a_run_or_a_resumed_one_has_begun_saves_nothing(tmp_path):
    message = stopped_by_signal(tmp_path, Signalled('before_run', 1))
    assert 'after iteration 0, nothing is lost' in message and not list(tmp_path.glob('*.pth'))
    stopped_by_signal(tmp_path, Signalled('after_train_iter', 2))
    (before,) = [path.stat().st_mtime_ns for path in tmp_path.glob('*.pth')]
    message = stopped_by_signal(tmp_path, Signalled('before_run', 1), resume=True)
    assert 'after iteration 2, and the checkpoint it went on from holds everything' in message
    assert [path.stat().st_mtime_ns for path in tmp_path.glob('*.pth')] == [before]
