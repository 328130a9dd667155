"""History at epochs, and exact resume: stopped at an epoch's end and resumed is, bit for bit, never stopped."""

import json
import warnings

import numpy as np
import pytest
import torch
from helpers import batch, classifier, step
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from mmpretrain.structures import DataSample
from torch.utils.data import Dataset

from mmrm.engine.hooks import ChannelsLastHook
from mmrm.engine.hooks.random_state import get_random_state, rm_worker_init, set_random_state
from mmrm.engine.runner import Runner as MMRMRunner


@DATASETS.register_module()
class NoisyPictures(Dataset):
    """Twenty pictures, with noise drawn anew each time from whatever generator the worker has."""

    metainfo = dict(classes=tuple('abcde'))

    def __len__(self):
        return 20

    def __getitem__(self, index):
        image = torch.from_numpy(np.random.RandomState(index).randint(0, 200, (3, 16, 16)))
        noise = torch.from_numpy(np.random.randint(0, 28, (3, 16, 16))) + torch.randint(0, 28, (3, 16, 16))
        return dict(inputs=(image + noise).to(torch.uint8), data_samples=DataSample().set_gt_label(index % 5))


class Stop(Exception):
    pass


class StopAfter(Hook):
    """Ends the run as a kill at the end of an epoch would, after the checkpoint is written."""

    priority = 'LOWEST'

    def __init__(self, epoch):
        self.epoch = epoch

    def after_train_epoch(self, runner):
        if runner.epoch + 1 == self.epoch:
            raise Stop


class Watch(Hook):
    """Keeps the first lambda of each epoch and whether a history was there when it began."""

    def __init__(self):
        self.had_history = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if batch_idx == 0:
            self.had_history.append(runner.model.data_preprocessor.batch_augments.augments[0]._history is not None)


def runner(work_dir, workers=0, persistent=False, hooks=(), seed=3, iterations=None, own_seeds=False, **kwargs):
    torch.manual_seed(0)  # the same initial weights in every run
    model = classifier(alpha=1.0)
    model.backbone.layer4.register_forward_hook(lambda m, i, o: torch.nn.functional.dropout(o, 0.1, m.training))
    loader = dict(
        dataset=dict(type='NoisyPictures'),
        batch_size=6,
        num_workers=workers,
        persistent_workers=persistent,
        sampler=dict(type='DefaultSampler', shuffle=True),
    )
    if iterations:
        train_cfg = dict(type='IterBasedTrainLoop', max_iters=iterations, val_interval=1000)
        loader['sampler'] = dict(type='InfiniteSampler')
    else:
        train_cfg = dict(by_epoch=True, max_epochs=4)
    return Runner(
        model=model,
        work_dir=str(work_dir),
        default_scope='mmpretrain',
        train_dataloader=dict(worker_init_fn=dict(type='rm_worker_init'), **loader),
        val_dataloader=dict(loader, sampler=dict(type='DefaultSampler', shuffle=False)),
        train_cfg=train_cfg,
        val_cfg=dict(),
        val_evaluator=dict(type='Accuracy'),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.05, momentum=0.9)),
        param_scheduler=dict(type='CosineAnnealingLR', T_max=4),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=1, log_metric_by_epoch=True),
            checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=iterations is None),
        ),
        custom_hooks=[dict(type='ResetHistoryHook'), dict(type='RandomStateHook'), *hooks],
        randomness=dict(seed=seed, diff_rank_seed=own_seeds),
        log_level='ERROR',
        experiment_name=str(work_dir).replace('/', '_') + str(len(hooks)) + str(kwargs.get('resume')),
        **kwargs,
    )


def logged_losses(work_dir):
    """(epoch, iteration) -> losses, from mmengine's own log, the last word winning."""
    found = {}
    for path in sorted(work_dir.glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if 'loss' in entry:
                found[entry['step']] = {k: entry[k] for k in ('loss', 'loss_consistency', 'rm_kl', 'rm_lambda')}
    return found


@pytest.mark.parametrize('workers, seed', [(0, 3), (2, 3), (0, None)], ids=['no workers', 'two workers', 'no seed'])
def test_a_resumed_run_is_bit_for_bit_the_run_that_was_never_stopped(tmp_path, workers, seed, monkeypatch):
    own_seeds = workers == 0  # as the shipped configs have it
    if seed is None:  # the seed that mmengine draws differs from run to run; only the first two must agree here
        monkeypatch.setattr('mmengine.runner.utils.sync_random_seed', lambda: next(seeds))
        seeds = iter([11, 11, 12])
    whole = runner(tmp_path / 'whole', workers, seed=seed, own_seeds=own_seeds)
    whole.train()
    with pytest.raises(Stop):
        runner(tmp_path / 'parts', workers, hooks=[StopAfter(2)], seed=seed, own_seeds=own_seeds).train()
    resumed = runner(tmp_path / 'parts', workers, resume=True, seed=seed, own_seeds=own_seeds)
    resumed.train()
    assert resumed.epoch == 4
    for (name, one), (_, other) in zip(whole.model.state_dict().items(), resumed.model.state_dict().items()):
        assert torch.equal(one, other), name
    assert logged_losses(tmp_path / 'whole') == logged_losses(tmp_path / 'parts')
    assert len(logged_losses(tmp_path / 'whole')) == 16


def test_epochs_differ_in_their_noise_with_workers(tmp_path):
    """mmengine's own worker seeding repeats the same random numbers in every epoch; ours must not."""
    loader = runner(tmp_path, workers=1).build_dataloader(
        dict(
            dataset=dict(type='NoisyPictures'),
            batch_size=20,
            num_workers=1,
            persistent_workers=False,
            sampler=dict(type='DefaultSampler', shuffle=False),
            worker_init_fn=dict(type='rm_worker_init'),
        )
    )
    first, second = (torch.stack(next(iter(loader))['inputs']) for _ in range(2))
    assert not torch.equal(first, second)


def test_worker_seed_differs_between_workers_and_ranks(monkeypatch):
    def draw(seed, rank):
        monkeypatch.setattr('mmrm.engine.hooks.random_state.get_rank', lambda: rank)
        torch.manual_seed(seed)
        rm_worker_init(0)
        return np.random.randint(2**31)

    assert len({draw(1, 0), draw(2, 0), draw(1, 1)}) == 3 and draw(1, 1) == draw(1, 1)


def test_the_history_is_empty_at_the_start_of_every_epoch(tmp_path):
    watch = Watch()
    runner(tmp_path, hooks=[watch]).train()
    assert watch.had_history == [False] * 4


def test_the_history_is_kept_in_iteration_based_loops(tmp_path):
    watch = Watch()
    watch.before_train_iter = lambda runner, batch_idx, data_batch=None: watch.had_history.append(
        runner.model.data_preprocessor.batch_augments.augments[0]._history is not None
    )
    runner(tmp_path, hooks=[watch], iterations=9).train()
    assert watch.had_history == [False] + [True] * 8


@pytest.mark.parametrize(
    'kind, hooks',
    [(Runner, [dict(type='ResetHistoryHook')]), (MMRMRunner, []), (MMRMRunner, [dict(type='ResetHistoryHook')])],
    ids=['stock runner', 'own runner without the hook', 'own runner'],
)
@pytest.mark.parametrize('omega, times', [(0.5, 1), (0, 0)])
def test_a_missing_part_of_rm_is_told_once_when_training_starts(kind, hooks, omega, times, tmp_path):
    """With mmengine's own Runner too, which mmpretrain's train.py uses."""
    kind(
        model=classifier(augments=dict(type='Mixup', alpha=1.0), omega=omega),
        work_dir=str(tmp_path),
        train_dataloader=dict(
            dataset=dict(type='NoisyPictures'), batch_size=10, sampler=dict(type='DefaultSampler', shuffle=True)
        ),
        train_cfg=dict(by_epoch=True, max_epochs=2),
        default_scope='mmpretrain',
        custom_hooks=hooks,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=-1)),
    ).train()
    (log,) = tmp_path.glob('*/*.log')
    assert log.read_text().count('omega=0.5, but RecursiveMix is off: there will be no consistency loss') == times


def test_random_state_round_trip():
    import random

    state = get_random_state()
    expected = random.random(), np.random.rand(), np.random.randn(), torch.rand(1)
    set_random_state(state)
    assert (random.random(), np.random.rand(), np.random.randn(), torch.rand(1)) == expected


def test_another_number_of_processes_is_told(tmp_path):
    with pytest.raises(Stop):
        runner(tmp_path, hooks=[StopAfter(1)]).train()
    checkpoint = torch.load(tmp_path / 'epoch_1.pth')
    checkpoint['random_state'] *= 2
    torch.save(checkpoint, tmp_path / 'epoch_1.pth')
    with pytest.warns(UserWarning, match=r'2 process\(es\) and this run has 1'):
        runner(tmp_path, resume=True).train()


def test_starting_from_weights_does_not_bring_back_their_random_state(tmp_path):
    with pytest.raises(Stop):
        runner(tmp_path / 'one', hooks=[StopAfter(1)]).train()
    fresh = runner(tmp_path / 'two', load_from=str(tmp_path / 'one' / 'epoch_1.pth'))
    fresh.load_or_resume()
    hook = next(hook for hook in fresh.hooks if type(hook).__name__ == 'RandomStateHook')
    assert hook._states is None


def test_checkpoints_load_safely(tmp_path):
    """The random state is stored in types that torch's safe loader takes without any allow-list of ours."""
    path = tmp_path / 'state.pth'
    torch.save(get_random_state(), path)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        set_random_state(torch.load(path, weights_only=True))


def test_reset_by_hand(tmp_path):
    from mmrm import reset_history

    model = classifier()
    step(model, batch())
    reset_history(model)
    assert step(model, batch())['rm_lambda'] == 0


def test_channels_last_changes_the_layout_and_only_rounding(tmp_path):
    layouts = []
    for name, hooks in (('one', []), ('two', [ChannelsLastHook()])):
        each = runner(tmp_path / name, hooks=hooks)
        each.model.backbone.layer4._forward_hooks.clear()  # dropout draws its mask in the order of the layout
        each.model.backbone.layer1.register_forward_hook(
            lambda module, inputs, output: layouts.append(output.is_contiguous(memory_format=torch.channels_last))
        )
        each.train()
    assert not layouts[0] and layouts[-1]
    one, two = ([logged_losses(tmp_path / name)[step]['loss'] for step in (1, 2, 3)] for name in ('one', 'two'))
    assert one == pytest.approx(two, rel=1e-3)


def test_channels_last_leaves_the_gradients_of_several_processes_in_one_layout(tmp_path, monkeypatch):
    """torch warns where a gradient's layout is not that of its bucket."""
    monkeypatch.setenv('LOCAL_RANK', '0')
    torch.distributed.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        told = {}
        for late in (False, True):
            each = object.__new__(MMRMRunner)  # only what wraps
            each._distributed = True
            each.cfg = Config(dict(model_wrapper_cfg=dict(find_unused_parameters=True, broadcast_buffers=False)))
            each.model = before = each.wrap_model(each.cfg.model_wrapper_cfg, classifier())
            if late:
                each.model.to(memory_format=torch.channels_last)
            else:
                ChannelsLastHook().before_train(each)
                assert each.model is not before and each.model.module is before.module
                assert each.model.find_unused_parameters and type(each.model) is MMDistributedDataParallel
            wrapper = OptimWrapper(torch.optim.SGD(each.model.parameters(), lr=0.01))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter('always')
                for _ in range(2):
                    each.model.train_step(batch(), wrapper)
            told[late] = [warning for warning in caught if 'Grad strides do not match' in str(warning.message)]
        each.model.train_step = each.model.train_step  # as mmengine's compile leaves it
        compiled = each.model
        ChannelsLastHook().before_train(each)
        assert each.model is compiled
    finally:
        torch.set_warn_always(always)
        torch.distributed.destroy_process_group()
    assert told[True] and not told[False]
