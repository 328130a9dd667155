"""Losses and weights that are NaN or infinite end a run and never take the place of good ones."""

import contextlib
import math

import pytest
import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner as MMEngineRunner
from tiny_run import write_run
from torch.utils.data import Dataset

from mmrm.cli import train
from mmrm.engine.hooks import NonFiniteLossHook, TrainingDivergedError
from mmrm.engine.runner import Runner
from mmrm.utils.errors import UserError

NAN, INF = math.nan, math.inf


class Numbers(Dataset):
    """The losses of a run, one an iteration."""

    metainfo = {}

    def __init__(self, losses):
        self.losses = losses

    def __len__(self):
        return len(self.losses)

    def __getitem__(self, index):
        return dict(value=torch.tensor(self.losses[index]))


class Told(BaseModel):
    """A model whose loss is the number that it is given, and whose weights stay as they are."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer('mean', torch.zeros(2))

    def forward(self, value, mode='tensor'):
        if mode == 'predict':
            return [value]
        return dict(loss_a=self.weight.sum() * 0 + value[0], loss_b=self.weight.sum() * 0, accuracy=torch.tensor(NAN))


class Score(BaseMetric):
    """A metric that is better every time."""

    times = 0

    def process(self, data_batch, data_samples):
        self.results.append(1)

    def compute_metrics(self, results):
        Score.times += 1
        return dict(score=Score.times)


class Spoil(Hook):
    """Puts NaN into a part of a run at the end of an epoch, before the checkpoint is written."""

    def __init__(self, epoch, part):
        self.epoch = epoch
        self.part = part

    def after_train_epoch(self, runner):
        if runner.epoch + 1 == self.epoch:
            ema = next((hook.ema_model for hook in runner.hooks if hasattr(hook, 'ema_model')), None)
            tensor = dict(
                weight=runner.model.weight, buffer=runner.model.mean, ema=None if ema is None else ema.module.weight
            )[self.part]
            tensor.data[0] = NAN


def loader_of(losses):
    return dict(
        batch_size=1, num_workers=0, dataset=Numbers(losses), sampler=dict(type='DefaultSampler', shuffle=False)
    )


def make(work_dir, losses, kind=Runner, epochs=1, hooks=(), checkpoint=(), by_epoch=True, **kwargs):
    return kind(
        model=Told(),
        work_dir=str(work_dir),
        train_dataloader=loader_of(losses),
        train_cfg=dict(by_epoch=True, max_epochs=epochs) if by_epoch else dict(by_epoch=False, max_iters=len(losses)),
        optim_wrapper=kwargs.pop('optim_wrapper', dict(optimizer=dict(type='SGD', lr=0.25))),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=1, **dict(checkpoint))),
        custom_hooks=list(hooks),
        log_level='WARNING',
        experiment_name=str(work_dir).replace('/', '_'),
        **kwargs,
    )


# --------------------------------------------------------------------------------------------------------------- loss
def test_three_non_finite_losses_in_a_row_stop_the_run_with_the_iteration(tmp_path):
    runner = make(tmp_path, [1.0, NAN, 1.0, -INF, NAN, INF, 1.0, 1.0])
    with pytest.raises(TrainingDivergedError) as stopped:
        runner.train()
    message = str(stopped.value)
    assert runner.iter + 1 == 6 and isinstance(stopped.value, UserError)
    for part in ('3 iterations in a row', 'from iteration 4 on', 'lr 0.25', 'loss_a = inf', 'No checkpoint'):
        assert part in message
    assert 'loss_b' not in message and 'accuracy' not in message


@pytest.mark.parametrize('losses', [[NAN, NAN, 1.0, NAN, NAN], [INF, 1.0] * 4])
def test_fewer_non_finite_losses_in_a_row_do_not_stop_the_run(losses, tmp_path):
    make(tmp_path, losses).train()
    assert (tmp_path / 'epoch_1.pth').is_file()


def test_non_finite_losses_count_across_epochs_and_the_last_checkpoint_is_named(tmp_path):
    with pytest.raises(TrainingDivergedError, match=r'iteration 3 on.*checkpoint is good: \S*epoch_1\.pth'):
        make(tmp_path, [NAN, 1.0, NAN, NAN], epochs=2).train()


def test_patience_is_a_setting_and_the_runner_adds_no_second_hook(tmp_path):
    runner = make(tmp_path, [NAN] * 4, hooks=[dict(type='NonFiniteLossHook', patience=5)])
    assert [hook.patience for hook in runner.hooks if isinstance(hook, NonFiniteLossHook)] == [5]
    runner.train()
    with pytest.raises(TrainingDivergedError, match='1 iterations'):
        make(tmp_path / 'one', [1.0, NAN, 1.0], hooks=[dict(type='NonFiniteLossHook', patience=1)]).train()


@pytest.mark.parametrize('name, value', [('patience', 0), ('patience', True), ('interval', 2.0)])
def test_settings_are_checked(name, value):
    with pytest.raises(ValueError, match=f'{name}={value} must be an integer'):
        NonFiniteLossHook(**{name: value})


def test_other_runners_can_have_the_hook_and_loops_of_iterations_end_too(tmp_path):
    with pytest.raises(TrainingDivergedError):
        make(tmp_path, [NAN] * 3, MMEngineRunner, hooks=[dict(type='NonFiniteLossHook')]).train()
    with pytest.raises(TrainingDivergedError, match='from iteration 2 on, with lr'):
        make(tmp_path, [1.0] + [NAN] * 5, by_epoch=False).train()


def test_processes_agree_now_and_then_and_all_end_with_the_message_of_the_one_that_failed(tmp_path, monkeypatch):
    """The other one has failed in its iterations 2 to 4; they agree after every fifth."""
    module, row = 'mmrm.engine.hooks.non_finite', [(step, dict(loss=NAN)) for step in (2, 3, 4)]
    monkeypatch.setattr(f'{module}.get_world_size', lambda: 2)
    monkeypatch.setattr(f'{module}.all_gather_object', lambda own: [own, row])
    runner = make(tmp_path, [1.0] * 8, hooks=[dict(type='NonFiniteLossHook', interval=5)])
    monkeypatch.setattr(f'{module}.agree', lambda *values: [True] * len(values))
    with pytest.raises(TrainingDivergedError, match='in 3 iterations in a row, from iteration 2 on'):
        runner.train()
    assert runner.iter + 1 == 5


class Scaled(OptimWrapper):
    """Loss scaling on the CPU, whose first steps overflow."""

    scaler, skipped = None, 0

    def backward(self, loss, **kwargs):
        self.scaler = self.scaler or torch.amp.GradScaler('cpu', init_scale=2.0**127)
        self.scaler.scale(loss).backward()
        self._inner_count += 1

    def step(self, **kwargs):
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.skipped += self.scaler.get_scale() < scale


@pytest.mark.parametrize('last', [1.0, NAN])
def test_steps_that_loss_scaling_skips_do_not_count_and_losses_that_are_nan_do(tmp_path, last):
    """A loss that is NaN only skips steps, too: the weights stay finite forever, and the run trains nothing."""
    model = Told()
    model.forward = lambda value, mode: dict(loss=model.weight.sum() * 1000 * value[0])
    wrapper = Scaled(optimizer=torch.optim.SGD(model.parameters(), lr=1e-6))
    runner = make(tmp_path, [1.0] * 8 + [last] * 4, optim_wrapper=wrapper)
    runner.model = model
    with contextlib.nullcontext() if last == 1 else pytest.raises(TrainingDivergedError, match='from iteration 9 on'):
        runner.train()
    assert wrapper.skipped >= 3 and model.weight.isfinite().all()


# ------------------------------------------------------------------------------------------------------------ weights
@pytest.mark.parametrize('part', ['weight', 'buffer', 'ema'])
def test_non_finite_weights_do_not_replace_good_checkpoints(part, tmp_path):
    loader = loader_of([1.0])
    runner = make(
        tmp_path,
        [1.0, 1.0],
        epochs=3,
        hooks=[Spoil(2, part), dict(type='EMAHook')],
        val_dataloader=loader,
        val_cfg=dict(),
        val_evaluator=[Score()],
        checkpoint=dict(max_keep_ckpts=1, save_best='score', rule='greater'),
    )
    name = dict(weight='weight', buffer='mean', ema='ema.module.weight')[part]
    with pytest.raises(TrainingDivergedError, match=rf'1 tensors .* contain NaN or Inf: {name}\..*epoch_1\.pth'):
        runner.train()
    assert runner.epoch + 1 == 2
    assert {path.name for path in tmp_path.glob('*.pth')} == {'epoch_1.pth', 'best_score_epoch_1.pth'}
    assert (tmp_path / 'last_checkpoint').read_text().endswith('epoch_1.pth')
    assert runner.message_hub.get_info('best_ckpt').endswith('best_score_epoch_1.pth')


# ---------------------------------------------------------------------------------------------------------- whole runs
def test_a_learning_rate_of_1e8_ends_with_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('MMRM_DEVICE', 'cpu')
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.setattr('logging.raiseExceptions', True)
    config = write_run(tmp_path, epochs=3)
    with pytest.raises(SystemExit) as stopped:
        train.main(
            [str(config), '--work-dir', str(tmp_path / 'work'), '--cfg-options', 'optim_wrapper.optimizer.lr=1e8']
        )
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and 'Traceback' not in error
    assert 'error: training was stopped: the loss was NaN or Inf' in error and 'lr 1e+08' in error
    assert not list((tmp_path / 'work').glob('*.pth'))
