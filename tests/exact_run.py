"""Small runs with RM that are stopped and resumed, and what must be the same afterwards."""

import json

import numpy as np
import pytest
import torch
from helpers import classifier
from mmengine.hooks import Hook
from mmengine.model import BaseModule
from mmengine.registry import DATASETS, MODELS
from mmpretrain.structures import DataSample
from torch import nn
from torch.utils.data import Dataset

from mmrm.engine.runner import Runner
from mmrm.models.data_preprocessor import history_state

IMAGES, BATCH = 20, 6


@DATASETS.register_module()
class SpeckledPictures(Dataset):
    """Twenty pictures, with noise drawn again each time from the global generators."""

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


@MODELS.register_module()
class TwoLayers(BaseModule):
    """The smallest backbone with batch norm and randomness of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(8, 8, 3), nn.ReLU()
        )

    def forward(self, x):
        return (self.layers(x),)


def runner(
    work_dir,
    hooks=(),
    workers=0,
    loop=None,
    sampler=None,
    accumulate=1,
    every=3,
    by_epoch=False,
    batch=BATCH,
    seed=3,
    validate=True,
    checkpoint=(),
    reset=True,
    schedule=None,
    kind=Runner,
    level='WARNING',
    worker_init=None,
    persistent=True,
    model_settings=(),
    evaluator=None,
    **kwargs,
):
    """Twelve iterations with RM: three epochs of four, if ``loop`` does not say otherwise."""
    torch.manual_seed(0)  # the same initial weights in every run
    settings = dict(model_settings) or dict(alpha=1.0)
    model = classifier(backbone=dict(type='TwoLayers'), in_channels=8, **settings)
    loader = dict(
        dataset=dict(type='SpeckledPictures'),
        batch_size=batch,
        num_workers=workers,
        persistent_workers=persistent and workers > 0,
    )
    runner.count += 1
    return kind(
        model=model,
        work_dir=str(work_dir),
        default_scope='mmpretrain',
        train_dataloader=dict(
            loader,
            sampler=sampler or dict(type='DefaultSampler', shuffle=True),
            **(dict(worker_init_fn=worker_init) if worker_init else {}),
        ),
        val_dataloader=dict(
            loader, num_workers=0, persistent_workers=False, sampler=dict(type='DefaultSampler', shuffle=False)
        )
        if validate
        else None,
        train_cfg=loop or dict(by_epoch=True, max_epochs=3),
        val_cfg=dict() if validate else None,
        val_evaluator=(evaluator or dict(type='Accuracy')) if validate else None,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.05, momentum=0.9), accumulative_counts=accumulate),
        param_scheduler=[
            dict(type='CosineAnnealingLR', T_max=4),
            dict(type='LinearLR', start_factor=0.1, end=7, by_epoch=False),
        ],
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=1, log_metric_by_epoch=loop is None),
            checkpoint=dict(type='CheckpointHook', interval=every, by_epoch=by_epoch, **dict(checkpoint)),
        ),
        custom_hooks=[*([dict(type='ResetHistoryHook')] if reset else []), *([schedule] if schedule else []), *hooks],
        randomness=dict(seed=seed, diff_rank_seed=True),
        log_level=level,
        experiment_name=f'exact-{runner.count}',
        **kwargs,
    )


runner.count = 0


def logged(work_dir):
    """step -> what was logged of it, from all parts of a run, the last word winning; times are left out."""
    found = {}
    for path in sorted(work_dir.glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            entry = {key: value for key, value in json.loads(line).items() if 'time' not in key}
            found[entry['step'], 'accuracy/top1' in entry] = entry
    return found


def assert_same(one, other, history=True):
    for (name, left), (_, right) in zip(one.model.state_dict().items(), other.model.state_dict().items()):
        assert torch.equal(left, right), name
    left, right = one.optim_wrapper.state_dict(), other.optim_wrapper.state_dict()
    assert left['param_groups'] == right['param_groups'] and left['state'].keys() == right['state'].keys()
    for key in left['state']:
        assert torch.equal(left['state'][key]['momentum_buffer'], right['state'][key]['momentum_buffer'])
    for left, right in zip(history_state(one.model), history_state(other.model)) if history else ():
        assert left.keys() == right.keys() >= {'images', 'scores', 'prediction'}
        assert all(torch.equal(left[key], right[key]) for key in left)


def stopped_and_resumed(folder, hook, after=(), **kwargs):
    """Run until ``hook`` stops it, then resume it with the settings ``after`` changed; returns the second runner."""
    first = runner(folder, hooks=[hook], **kwargs)
    with pytest.raises(Stop):
        first.train()
    if first.train_dataloader._iterator is not None:
        first.train_dataloader._iterator._shutdown_workers()
    second = runner(folder, resume=True, **{**kwargs, **dict(after)})
    second.train()
    return second


@pytest.fixture(autouse=True)
def no_programs_asked(monkeypatch):
    """mmengine asks gcc and git about the environment for every runner and every checkpoint."""
    monkeypatch.setattr('mmengine.runner.runner.collect_env', dict)
    monkeypatch.setattr('mmengine.runner.runner.get_git_hash', lambda: '')
