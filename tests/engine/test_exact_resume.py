"""Stopped at any iteration and resumed is, bit for bit, never stopped."""
import json

import numpy as np
import pytest
import torch
from helpers import classifier
from mmengine.hooks import Hook
from mmengine.registry import DATASETS
from mmpretrain.structures import DataSample
from torch.utils.data import Dataset

from mmrm.engine.runner import Runner
from mmrm.models.data_preprocessor import history_state

IMAGES, BATCH = 20, 6


@DATASETS.register_module()
class SpeckledPictures(Dataset):
    """Twenty pictures, with noise drawn anew each time from the global generators."""
    metainfo = dict(classes=tuple('abcde'))
    loaded = []

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        SpeckledPictures.loaded.append(index)
        image = torch.from_numpy(np.random.RandomState(index).randint(0, 200, (3, 16, 16)))
        noise = torch.from_numpy(np.random.randint(0, 28, (3, 16, 16))) + torch.randint(0, 28, (3, 16, 16))
        return dict(inputs=(image + noise).to(torch.uint8), data_samples=DataSample().set_gt_label(index % 5))


class Stop(Exception):
    pass


class StopAfter(Hook):
    """Ends the run after an iteration, as a kill would."""
    priority = 'LOWEST'

    def __init__(self, iteration):
        self.iteration = iteration

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.iteration:
            raise Stop


class StopIn(Hook):
    """Ends the run at a named point of it, the n-th time that it comes by."""
    priority = 'HIGHEST'

    def __init__(self, point, times=1):
        self.times = times
        setattr(self, point, self.stop)

    def stop(self, *args, **kwargs):
        self.times -= 1
        if self.times == 0:
            raise Stop


def runner(work_dir, hooks=(), workers=0, loop=None, sampler=None, accumulate=1, every=1, by_epoch=False, batch=BATCH,
           wrapper=None, seed=3, validate=True, persistent=None, checkpoint=(), augment_hook=True, **kwargs):
    torch.manual_seed(0)  # the same initial weights in every run
    model = classifier(alpha=1.0)
    model.backbone.layer4.register_forward_hook(lambda m, i, o: torch.nn.functional.dropout(o, 0.1, m.training))
    loader = dict(dataset=dict(type='SpeckledPictures'), batch_size=batch, num_workers=workers,
                  persistent_workers=workers > 0 if persistent is None else persistent)
    train_cfg = loop or dict(by_epoch=True, max_epochs=3)
    runner.count += 1
    return Runner(
        model=model,
        work_dir=str(work_dir),
        default_scope='mmpretrain',
        train_dataloader=dict(loader, sampler=sampler or dict(type='DefaultSampler', shuffle=True)),
        val_dataloader=dict(loader, num_workers=0, persistent_workers=False,
                            sampler=dict(type='DefaultSampler', shuffle=False)) if validate else None,
        train_cfg=train_cfg,
        val_cfg=dict() if validate else None,
        val_evaluator=dict(type='Accuracy') if validate else None,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.05, momentum=0.9), accumulative_counts=accumulate),
        param_scheduler=[dict(type='CosineAnnealingLR', T_max=4),
                         dict(type='LinearLR', start_factor=0.1, end=7, by_epoch=False)],
        default_hooks=dict(logger=dict(type='LoggerHook', interval=1),
                           checkpoint=dict(type='CheckpointHook', interval=every, by_epoch=by_epoch,
                                           **dict(checkpoint))),
        custom_hooks=[*([dict(type='ResetHistoryHook')] if augment_hook else []), *hooks],
        randomness=dict(seed=seed, diff_rank_seed=True),
        log_level='ERROR',
        experiment_name=f'exact-{runner.count}',
        **kwargs)


runner.count = 0


def logged(work_dir):
    """step -> what was logged of it, from all parts of a run, the last word winning; times are left out."""
    found = {}
    for path in sorted(work_dir.glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            entry = {key: value for key, value in json.loads(line).items() if 'time' not in key}
            found[entry['step'], 'accuracy/top1' in entry] = entry
    return found


def assert_same(one, other):
    for (name, left), (_, right) in zip(one.model.state_dict().items(), other.model.state_dict().items()):
        assert torch.equal(left, right), name
    left, right = one.optim_wrapper.state_dict(), other.optim_wrapper.state_dict()
    assert left['param_groups'] == right['param_groups'] and left['state'].keys() == right['state'].keys()
    for key in left['state']:
        assert torch.equal(left['state'][key]['momentum_buffer'], right['state'][key]['momentum_buffer'])
    for left, right in zip(history_state(one.model), history_state(other.model)):
        assert left.keys() == right.keys() >= {'images', 'scores', 'prediction'}
        assert all(torch.equal(left[key], right[key]) for key in left)


def stopped_and_resumed(folder, hook, after=(), **kwargs):
    """Run until ``hook`` stops it, then resume it with the settings ``after`` changed; returns the second runner."""
    with pytest.raises(Stop):
        runner(folder, hooks=[hook], **kwargs).train()
    second = runner(folder, resume=True, **{**kwargs, **dict(after)})
    second.train()
    return second


EPOCHS = dict()
ITERATIONS = dict(loop=dict(type='IterBasedTrainLoop', max_iters=12, val_interval=5),
                  sampler=dict(type='InfiniteSampler'))
FINITE = dict(loop=dict(by_epoch=False, max_iters=12, val_interval=5))
CASES = {
    'epochs': EPOCHS,
    'accumulated': dict(accumulate=3),
    'iterations': ITERATIONS,
    'iterations, accumulated': dict(ITERATIONS, accumulate=2),
    'iterations over a finite sampler': FINITE,
}


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('step', [1, 4, 6, 11])
def test_stopped_after_any_iteration_it_goes_on_bit_for_bit(tmp_path, name, step):
    whole = runner(tmp_path / 'whole', **CASES[name])
    whole.train()
    parts = stopped_and_resumed(tmp_path / 'parts', StopAfter(step), **CASES[name])
    assert parts.iter == whole.iter == 12
    assert_same(whole, parts)
    assert logged(tmp_path / 'whole') == logged(tmp_path / 'parts')
