"""A run whose loss or weights are NaN or infinite does not come back: it ends, and its good checkpoints stay."""

import math
from typing import Dict, List, NamedTuple, Optional

import torch
from mmengine.dist import all_gather_object, all_reduce, get_rank, get_world_size
from mmengine.hooks import CheckpointHook, Hook, RuntimeInfoHook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop

from ...utils.errors import UserError, check_numbers
from ..loops import modules

REMEDIES = (
    'Try a lower learning rate, a longer warm-up or gradient clipping (--cfg-options '
    'optim_wrapper.clip_grad.max_norm=1), train without --amp, and look for values that are not finite in the '
    'data.'
)


class TrainingDivergedError(UserError):
    """The loss or the weights of a run are not finite any more."""


class Row(NamedTuple):
    """Iterations in a row whose loss is not finite.

    Args:
        process (int): The process that saw them.
        first (int): The number of the first one, from 1.
        length (int): How many.
        losses (dict[str, float]): The losses of the last one that are not finite, by name.
    """

    process: int
    first: int
    length: int
    losses: Dict[str, float]


@HOOKS.register_module()
class NonFiniteLossHook(Hook):
    """Ends a run with a :class:`TrainingDivergedError` after ``patience`` non-finite losses in a row.

    Only the loss counts: a step that loss scaling (AMP) skips because of its gradients has a finite loss. The runner of
    the tools always has this hook; ``custom_hooks`` gives it other values, or gives it to another runner.

    It reads the numbers that ``RuntimeInfoHook`` has already brought to the CPU for the log, so it waits for no GPU.
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
        self._row: Optional[Row] = None
        self._failed: Optional[Row] = None
        self._logged = False

    def before_train(self, runner) -> None:
        self._row = self._failed = None
        self._logged = any(isinstance(hook, RuntimeInfoHook) for hook in runner.hooks)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs: Optional[dict] = None) -> None:
        logged = runner.message_hub.log_scalars if self._logged else {}
        names = [name for name in outputs or {} if 'loss' in name]
        self._count(
            runner.iter + 1,
            {
                name: logged[f'train/{name}'].current()
                if f'train/{name}' in logged
                else float(torch.as_tensor(outputs[name]).detach())
                for name in names
            },
        )
        if get_world_size() == 1 or (runner.iter + 1) % self.interval == 0:
            self._end_if_failed(runner)

    def after_train_epoch(self, runner) -> None:
        self._end_if_failed(runner)

    def _count(self, iteration: int, losses: Dict[str, float]) -> None:
        wrong = {name: value for name, value in losses.items() if not math.isfinite(value)}
        if not wrong:
            self._row = None
            return
        before = self._row or Row(get_rank(), iteration, 0, {})
        self._row = before._replace(length=before.length + 1, losses=wrong)
        if self._row.length >= self.patience:
            self._failed = self._row

    def _end_if_failed(self, runner) -> None:
        """Raise in every process if one has failed. All processes must call this in the same iteration."""
        if not agree(self._failed is not None)[0]:
            return
        failed = next(row for row in all_gather_object(self._failed) if row is not None)
        raise diverged(runner, self._message(runner, failed))

    @staticmethod
    def _message(runner, row: Row) -> str:
        parts = [name for name in row.losses if name != 'loss'] or ['loss']
        values = ', '.join(f'{name} = {row.losses[name]}' for name in parts)
        epoch = f', in epoch {runner.epoch + 1}' if isinstance(runner.train_loop, EpochBasedTrainLoop) else ''
        rates = [
            f'{name} {values[0]:.3g}'
            for name, values in runner.optim_wrapper.get_lr().items()
            if name.split('.')[-1] == 'lr'
        ]
        process = f' of process {row.process}' if get_world_size() > 1 else ''
        return (
            f'training was stopped: the loss{process} was not finite in {row.length} iterations in a row, from '
            f'iteration {row.first} on{epoch}, with {", ".join(rates)}: {values}.'
        )


def diverged(runner, what: str) -> TrainingDivergedError:
    """The error for a run that does not come back: what happened, what to try, and the last good checkpoint."""
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
    return (
        f'The last checkpoint has finite weights: {saved} (a new run starts from them with --cfg-options '
        f'load_from={saved}).'
    )


def non_finite_tensors(runner) -> List[str]:
    """The weights and buffers of the model, and of its moving average, that hold NaN or infinite values, by name.

    The optimizer's state is left out: NaN there is NaN in the weights in the same step, and an infinite second moment
    (of Adam, after one huge gradient) only stops its weight from moving.
    """
    states = {
        f'{"ema." * (number > 0)}{name}': value
        for number, module in modules(runner)
        for name, value in (module.module if is_model_wrapper(module) else module).state_dict().items()
        if torch.is_tensor(value) and value.is_floating_point()
    }
    if not states:
        return []
    finite = [value.isfinite().all() for value in states.values()]
    finite = torch.stack([each.to(finite[0].device) for each in finite]).tolist()  # one wait for the GPU
    return [name for name, good in zip(states, finite) if not good]
