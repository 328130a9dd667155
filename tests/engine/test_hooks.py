"""History at epochs, and exact resume under mmengine's own Runner, from the end of an epoch."""

import random
import warnings

import numpy as np
import pytest
import torch
from exact_run import Stop, StopIn, assert_same, logged, no_programs_asked, runner  # noqa: F401 (a fixture)
from helpers import classifier
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel
from mmengine.runner import Runner
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample

from mmrm.engine.hooks import ChannelsLastHook
from mmrm.engine.hooks.random_state import get_random_state, set_random_state
from mmrm.engine.runner import Runner as MMRMRunner

SEEDED = dict(type='rm_worker_init')


class WatchLambda(Hook):
    """Records in which epochs batches are mixed."""

    def __init__(self):
        self.mixed = set()

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if outputs['rm_lambda'] > 0:
            self.mixed.add(runner.epoch)


class WatchHistory(Hook):
    """Notes before each iteration whether there is a history."""

    def __init__(self):
        self.had_history = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        augment = runner.model.data_preprocessor.batch_augments.augments[0]
        self.had_history.append((batch_idx, augment._history is not None))


def stock(work_dir, hooks=(), workers=0, **kwargs):
    """A run of mmengine's own Runner with RandomStateHook."""
    kwargs = dict(dict(every=1, by_epoch=True, level='ERROR'), **kwargs)
    hooks = [dict(type='RandomStateHook'), *hooks]
    return runner(work_dir, hooks, workers, kind=Runner, worker_init=SEEDED, persistent=False, **kwargs)


def stop_after_epoch(work_dir, epoch, **kwargs):
    with pytest.raises(Stop):
        stock(work_dir, hooks=[StopIn('before_train_epoch', epoch + 1)], **kwargs).train()


@pytest.mark.parametrize('workers', [0, 2])
def test_a_resumed_run_is_bit_for_bit_the_run_that_was_never_stopped(tmp_path, workers, monkeypatch):
    """Without a seed in the config: mmengine draws one for each run, and only the first two must agree here."""
    seeds = iter([11, 11, 12])
    monkeypatch.setattr('mmengine.runner.utils.sync_random_seed', lambda: next(seeds))
    whole = stock(tmp_path / 'whole', workers=workers, seed=None)
    whole.train()
    stop_after_epoch(tmp_path / 'parts', 2, workers=workers, seed=None)
    resumed = stock(tmp_path / 'parts', workers=workers, seed=None, resume=True)
    resumed.train()
    assert resumed.epoch == 3
    assert_same(whole, resumed)
    assert logged(tmp_path / 'whole') == logged(tmp_path / 'parts') and len(logged(tmp_path / 'whole')) == 15


def test_epochs_differ_in_their_noise_with_workers(tmp_path):
    """mmengine's own worker seeding repeats the same random numbers in every epoch; ours must not."""
    loader = stock(tmp_path, workers=1).build_dataloader(
        dict(
            dataset=dict(type='SpeckledPictures'),
            batch_size=20,
            num_workers=1,
            persistent_workers=False,
            sampler=dict(type='DefaultSampler', shuffle=False),
            worker_init_fn=SEEDED,
        )
    )
    first, second = (torch.stack(next(iter(loader))['inputs']) for _ in range(2))
    assert not torch.equal(first, second)


def test_the_history_is_empty_at_the_start_of_every_epoch_and_kept_in_iteration_based_loops(tmp_path):
    watch = WatchHistory()
    stock(tmp_path / 'epochs', hooks=[watch]).train()
    assert watch.had_history == [(number, number > 0) for _ in range(3) for number in range(4)]
    watch = WatchHistory()
    loop = dict(type='IterBasedTrainLoop', max_iters=9, val_interval=1000)
    stock(tmp_path / 'iterations', hooks=[watch], loop=loop, sampler=dict(type='InfiniteSampler')).train()
    assert [had for _, had in watch.had_history] == [False] + [True] * 8


@pytest.mark.parametrize(
    'kind, reset', [(Runner, True), (MMRMRunner, False), (MMRMRunner, True)], ids=['stock', 'own, no hook', 'own']
)
@pytest.mark.parametrize('omega, times', [(0.5, 1), (0, 0)])
def test_a_missing_part_of_rm_is_warned_of_once_when_training_starts(kind, reset, omega, times, tmp_path):
    """With mmengine's own Runner too, which mmpretrain's train.py uses."""
    settings = dict(augments=dict(type='Mixup', alpha=1.0), omega=omega)
    runner(tmp_path, kind=kind, reset=reset, validate=False, model_settings=settings, every=-1).train()
    (log,) = tmp_path.glob('*/*.log')
    assert log.read_text().count('omega=0.5, but RecursiveMix is off: there will be no consistency loss') == times


def test_random_state_round_trip_in_types_that_load_safely(tmp_path):
    path = tmp_path / 'state.pth'
    torch.save(get_random_state(), path)
    expected = random.random(), np.random.rand(), np.random.randn(), torch.rand(1)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        set_random_state(torch.load(path, weights_only=True))
    assert (random.random(), np.random.rand(), np.random.randn(), torch.rand(1)) == expected


def test_another_number_of_processes_is_warned_of_and_weights_alone_bring_no_random_state(tmp_path):
    stop_after_epoch(tmp_path, 1)
    fresh = stock(tmp_path / 'two', load_from=str(tmp_path / 'epoch_1.pth'))
    fresh.load_or_resume()
    assert next(hook for hook in fresh.hooks if type(hook).__name__ == 'RandomStateHook')._states is None
    checkpoint = torch.load(tmp_path / 'epoch_1.pth')
    checkpoint['random_state'] *= 2
    torch.save(checkpoint, tmp_path / 'epoch_1.pth')
    with pytest.warns(UserWarning, match=r'2 process\(es\) and this run has 1'):
        stock(tmp_path, resume=True).train()


def test_channels_last_changes_the_layout_and_only_rounding(tmp_path):
    layouts = []
    for name, hooks in (('one', []), ('two', [ChannelsLastHook()])):
        each = stock(tmp_path / name, hooks=hooks, validate=False)
        each.model.backbone.layers[3].p = 0  # dropout draws its mask in the order of the layout
        each.model.backbone.layers[4].register_forward_hook(
            lambda module, inputs, output: layouts.append(output.is_contiguous(memory_format=torch.channels_last))
        )
        each.train()
    assert not layouts[0] and layouts[-1]
    one, two = ([logged(tmp_path / name)[step, False]['loss'] for step in (1, 2, 3)] for name in ('one', 'two'))
    assert one == pytest.approx(two, rel=1e-3)


def test_channels_last_leaves_the_gradients_of_several_processes_in_one_layout(tmp_path, monkeypatch):
    monkeypatch.setenv('LOCAL_RANK', '0')
    torch.distributed.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        each = object.__new__(MMRMRunner)  # only what wraps
        each._distributed = True
        each.cfg = Config(dict(model_wrapper_cfg=dict(find_unused_parameters=True, broadcast_buffers=False)))
        each.model = before = each.wrap_model(each.cfg.model_wrapper_cfg, classifier())
        ChannelsLastHook().before_train(each)
        assert each.model is not before and each.model.module is before.module
        assert each.model.find_unused_parameters and type(each.model) is MMDistributedDataParallel
        each.model.train_step = each.model.train_step  # as mmengine's compile leaves it
        compiled = each.model
        ChannelsLastHook().before_train(each)
        assert each.model is compiled
    finally:
        torch.distributed.destroy_process_group()


def test_mixing_is_off_in_the_first_and_the_last_epochs(tmp_path):
    watch = WatchLambda()
    schedule = dict(type='MixScheduleHook', first_epochs=1, last_epochs=1)
    stock(tmp_path, [watch], schedule=schedule, loop=dict(by_epoch=True, max_epochs=4), validate=False).train()
    assert watch.mixed == {1, 2}


@pytest.mark.parametrize('kind', ['CutMix', 'Mixup', 'RecursiveMix'])
def test_a_preprocessor_that_does_not_mix_gives_plain_batches(kind):
    settings = dict(num_classes=3, batch_augments=dict(augments=dict(type=kind, alpha=0.5)))
    preprocessor = MODELS.build(dict(type='RMDataPreprocessor', **settings))
    images, batches = torch.rand(3, 3, 8, 8), []
    for preprocessor.mixing in (True, True, True, True, False):
        samples = [DataSample().set_gt_label(label) for label in range(3)]
        batch = preprocessor(dict(inputs=list(images), data_samples=samples), training=True)
        batches.append((batch['inputs'], torch.stack([sample.gt_score for sample in batch['data_samples']])))
    plain = [torch.equal(given, images) for given, _ in batches]
    assert not all(plain[:-1]) and plain[-1]
    assert torch.equal(batches[-1][1], torch.eye(3))


@pytest.mark.parametrize(
    'schedule, settings, message',
    [
        (dict(last_epochs=-1), {}, 'last_epochs=-1 must be an integer >= 0'),
        (dict(first_epochs=1, last_epochs=2), {}, 'first_epochs=1 and last_epochs=2 leave none of 3 epochs'),
        (dict(last_epochs=1), dict(loop=dict(by_epoch=False, max_iters=4)), 'counts epochs'),
        (
            dict(last_epochs=1),
            dict(model_settings=dict(preprocessor='ClsDataPreprocessor')),
            'there is no RMDataPreprocessor with batch_aug',
        ),
    ],
)
def test_an_impossible_schedule_is_named(schedule, settings, message, tmp_path):
    with pytest.raises(ValueError, match=f'MixScheduleHook.* {message}'):
        stock(tmp_path, schedule=dict(type='MixScheduleHook', **schedule), validate=False, **settings).train()
