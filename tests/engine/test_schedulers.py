"""The learning-rate curves, epoch by epoch, through mmengine's own Runner."""

import contextlib
import math
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

import mmrm.models  # noqa: F401
from mmrm.engine.schedulers import RMCosineLR, RMStepLR
from mmrm.utils.errors import UserError

SCHEDULES = Path(__file__).parents[2] / 'configs' / '_base_' / 'schedules'


def cosine(lr, epochs, start=1 / 6, minimum=0.0):
    def rate(epoch):
        if epoch <= 5:
            return lr * (start + (1 - start) * (epoch - 1) / 5)
        return minimum * lr + (1 - minimum) * lr * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / epochs))

    return [rate(epoch) for epoch in range(1, epochs + 1)]


def logged_steps(lr):
    return [lr * e / 6 for e in range(1, 6)] + [lr] * 145 + [lr / 10] * 75 + [lr / 100] * 75


CURVES = {
    'cifar_200e': cosine(0.1, 200),
    'cifar_200e_bf16': cosine(0.05, 200),
    'cifar_300e': logged_steps(0.25),
    'imagenet_300e': cosine(0.2, 300),
    'imagenet_300e_steps': [0.1] * 75 + [0.01] * 75 + [0.001] * 75 + [0.0001] * 75,
    'imagenet_300e_adamw': cosine(5e-4, 300, start=1e-6 / 5e-4, minimum=1e-5 / 5e-4),
}


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, inputs, mode='tensor'):
        return dict(loss=self.layer(inputs).sum())


class Rates(Hook):
    """Notes the learning rate of every epoch; may end the run before one."""

    def __init__(self, stop_before=None):
        self.rates, self.stop_before = {}, stop_before

    def before_train_epoch(self, runner):
        if runner.epoch + 1 == self.stop_before:
            raise KeyboardInterrupt

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.rates[runner.epoch + 1] = runner.optim_wrapper.get_lr()['lr'][0]


def run(tmp_path, schedule, name, stop_before=None, **more):
    """Train a one-weight model on one batch of two samples per epoch under a shipped schedule."""
    cfg = Config.fromfile(SCHEDULES / f'{schedule}.py') if isinstance(schedule, str) else schedule
    hook = Rates(stop_before)
    runner = Runner(
        Model(),
        str(tmp_path),
        DataLoader([dict(inputs=torch.ones(1))] * 2, batch_size=2),
        train_cfg=dict(cfg.train_cfg, val_interval=10**9),
        optim_wrapper=cfg.optim_wrapper,
        param_scheduler=cfg.param_scheduler,
        custom_hooks=[hook],
        log_level='ERROR',
        experiment_name=name,
        default_hooks=dict(
            logger=None,
            checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=1)
            if stop_before or more.get('resume')
            else None,
        ),
        **more,
    )
    with contextlib.suppress(KeyboardInterrupt):
        runner.train()
    return hook.rates


@pytest.mark.parametrize('schedule', CURVES)
def test_the_rate_of_every_epoch_is_the_logged_one(tmp_path, schedule):
    rates = run(tmp_path, schedule, f'curve_{schedule}')
    assert list(rates) == list(range(1, len(CURVES[schedule]) + 1))
    assert list(rates.values()) == pytest.approx(CURVES[schedule], rel=1e-9, abs=1e-15)


def test_every_shipped_schedule_has_a_tested_curve():
    assert {path.stem for path in SCHEDULES.glob('*.py')} == set(CURVES)


def test_resumed_run_continues_the_same_curve(tmp_path):
    cfg = Config.fromfile(SCHEDULES / 'cifar_200e.py')
    cfg.train_cfg.max_epochs = 12
    first = run(tmp_path, cfg, 'resume_1', stop_before=4)
    second = run(tmp_path, cfg, 'resume_2', resume=True)
    assert list(first) == [1, 2, 3] and list(second) == list(range(4, 13))
    assert list({**first, **second}.values()) == pytest.approx(cosine(0.1, 12))


def test_auto_scale_lr_scales_the_whole_curve(tmp_path):
    cfg = Config.fromfile(SCHEDULES / 'cifar_300e.py')
    cfg.train_cfg.max_epochs = 8
    rates = run(tmp_path, cfg, 'scale', auto_scale_lr=dict(cfg.auto_scale_lr, enable=True))
    ratio = 2 / cfg.auto_scale_lr.base_batch_size
    assert list(rates.values()) == pytest.approx([ratio * rate for rate in CURVES['cifar_300e'][:8]])


def test_each_parameter_group_keeps_its_own_rate():
    layers = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([dict(params=layer.parameters(), lr=lr) for layer, lr in zip(layers, (0.1, 0.3))])
    RMCosineLR(OptimWrapper(optimizer), epochs=10)
    assert [group['lr'] for group in optimizer.param_groups] == pytest.approx([0.1 / 6, 0.3 / 6])


@pytest.mark.parametrize(
    'scheduler, arguments, named',
    [
        (RMCosineLR, {}, 'epochs'),
        (RMCosineLR, dict(epochs=10, by_epoch=False), 'by_epoch=False'),
        (RMCosineLR, dict(epochs=10, begin=3), 'begin=3'),
        (RMCosineLR, dict(epochs=10, warmup=-1), 'warmup=-1'),
        (RMCosineLR, dict(epochs=10, min_factor=2.0), 'min_factor=2.0'),
        (RMStepLR, dict(milestones=[9, 5]), r'milestones=\[9, 5\]'),
        (RMStepLR, dict(milestones=[5], gamma=0), 'gamma=0'),
    ],
)
def test_a_wrong_argument_is_named(scheduler, arguments, named):
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(UserError, match=named):
        scheduler(optimizer, **arguments)
