"""A run whose loss or weights are NaN or infinite ends, and its good checkpoints stay."""

import math
from typing import Dict, List, Optional, Tuple

import torch
from mmengine.dist import all_gather_object, all_reduce, broadcast_object_list, get_world_size
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS

from ...utils.errors import UserError, abbreviate, check_numbers
from ..loops import modules, unwrapped

REMEDIES = (
    'Try a lower learning rate, a longer warm-up or gradient clipping (--cfg-options '
    'optim_wrapper.clip_grad.max_norm=1), train without --amp, and look for NaN or Inf in the data.'
)


# Iterations in a row whose loss is not finite: the number of each, from 1, and its losses that are not, by name.
Row = List[Tuple[int, Dict[str, float]]]


class TrainingDivergedError(UserError):
    """The loss or the weights of a run are not finite any more."""


@HOOKS.register_module()
class NonFiniteLossHook(Hook):
    """Ends a run with a :class:`TrainingDivergedError` after ``patience`` non-finite losses in a row.

    A test ends at the first scores of a classifier that are not finite.

    Only the loss counts: a step that loss scaling (AMP) skips because of its gradients has a finite loss. The runner of
    the tools always has this hook; ``custom_hooks`` gives it other values, or gives it to another runner.

    Several processes agree every ``interval`` iterations and at an epoch's end, so that all stop at the same place, up
    to ``interval`` iterations later than one process would.

    Args:
        patience (int): Non-finite losses in a row that end the run. Defaults to 3.
        interval (int): Iterations between two agreements of several processes. Defaults to 10.
    """

    # After the logger, so that the log holds the numbers; before the schedulers and the checkpoint.
    priority = 'BELOW_NORMAL'

    def __init__(self, patience: int = 3, interval: int = 10):
        check_numbers('NonFiniteLossHook', 1, integer=True, patience=patience, interval=interval)
        self.patience = patience
        self.interval = interval
        self._row: Row = []
        self._failed: Row = []

    def before_train(self, runner) -> None:
        self._row, self._failed = [], []

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs: Optional[dict] = None) -> None:
        losses = {name: float(torch.as_tensor(outputs[name]).detach()) for name in outputs or () if 'loss' in name}
        wrong = {name: value for name, value in losses.items() if not math.isfinite(value)}
        self._row = [*self._row, (runner.iter + 1, wrong)] if wrong else []
        if len(self._row) >= self.patience:
            self._failed = self._row
        if get_world_size() == 1 or (runner.iter + 1) % self.interval == 0:
            self._end_if_failed(runner)

    def after_train_epoch(self, runner) -> None:
        self._end_if_failed(runner)

    def after_test_iter(self, runner, batch_idx: int, data_batch=None, outputs: Optional[list] = None) -> None:
        scores = [sample.pred_score for sample in outputs or () if hasattr(sample, 'pred_score')]
        if not all(score.isfinite().all() for score in scores):
            raise UserError('the network returns NaN or Inf: its weights or the normalization of its input are wrong.')

    def _end_if_failed(self, runner) -> None:
        """Raise if a process has failed. All processes must call this after the same iteration."""
        if agree(bool(self._failed))[0]:
            row = next(filter(None, all_gather_object(self._failed)))
            raise diverged(runner, self._message(runner, row))

    @staticmethod
    def _message(runner, row: Row) -> str:
        first, (_, losses) = row[0][0], row[-1]
        parts = [name for name in losses if name != 'loss'] or ['loss']
        values = ', '.join(f'{name} = {losses[name]}' for name in parts)
        rates = [f'{name} {each[0]:.3g}' for name, each in runner.optim_wrapper.get_lr().items() if name.endswith('lr')]
        return (
            f'training was stopped: the loss was NaN or Inf in {len(row)} iterations in a row, from iteration {first} '
            f'on, with {", ".join(rates)}: {values}.'
        )


def diverged(runner, what: str) -> TrainingDivergedError:
    """The error for a diverged run: what happened, what to try, and the last good checkpoint."""
    return TrainingDivergedError(f'{what} {REMEDIES} {last_good_checkpoint(runner)}')


def agree(*values: int) -> List[int]:
    """The largest of each value over all processes. All of them must call this."""
    shared = torch.tensor([int(value) for value in values])
    all_reduce(shared, 'max')
    return shared.tolist()


def last_good_checkpoint(runner) -> str:
    """A sentence that names the last checkpoint; one whose weights are not finite is never written."""
    saved = next((hook.last_ckpt for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
    saved = saved or (runner._load_from if runner._resume else None)
    if not saved:
        return 'No checkpoint was written before that.'
    return f'The last checkpoint is good: {saved} (a new run from its weights: --cfg-options load_from={saved}).'


def check_weights(runner) -> None:
    """Raise if weights or buffers of the model, or of its moving average, in process 0 hold NaN or infinite values.

    The optimizer's state is left out: NaN there is NaN in the weights in the same step, and an infinite second moment
    (of Adam, after one huge gradient) only stops its weight from moving. All processes must call this.
    """
    states = {
        f'{"ema." * (number > 0)}{name}': value
        for number, module in modules(runner)
        for name, value in unwrapped(module).state_dict().items()
        if torch.is_tensor(value) and value.is_floating_point()
    }
    finite = [value.isfinite().all() for value in states.values()]
    finite = torch.stack([each.to(finite[0].device) for each in finite]).tolist() if finite else []  # one wait
    shared = [[name for name, good in zip(states, finite) if not good]]
    broadcast_object_list(shared)  # process 0 saves
    if shared[0]:
        what = f'{len(shared[0])} tensors of the model contain NaN or Inf: {abbreviate(shared[0], 3)}.'
        raise diverged(runner, f'training was stopped and no checkpoint written: {what}')
