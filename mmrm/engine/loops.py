"""mmengine's training loops, which resume at the very batch where a run was stopped.

A checkpoint then holds under ``resume_state`` where the loop stood, which validation was the last, and of each process
RM's history, its buffers (batch norm counts in every process by itself) and, between two updates of an accumulated
gradient, the gradient so far; under ``random_state`` each process's random states. mmengine's own loops do not read the
first, and a run resumes as it always did.
"""

import copy
from types import SimpleNamespace
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import torch
from mmengine.dist import all_gather_object, broadcast_object_list, get_rank, get_world_size
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, IterBasedTrainLoop
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ..models.data_preprocessor import history_state, load_history_state, reset_history
from ..utils.errors import UserValueError
from ..utils.random_state import get_random_state, seeded, set_random_state
from . import signals
from .batched_images import takes_batched_images, unwrapped
from .samplers import make_resumable

RANDOM_KEY = 'random_state'
SEED_KEY = 'sampler_seed'
STATE_KEY = 'resume_state'


class ResumableLoop:
    """What the two loops share: their place in the data, and all that a checkpoint needs to come back to it.

    ``_place`` is the next batch to train on, ``(epoch, batch)``. ``_random_state`` is that of the training while
    something else runs (a validation, the hooks between two epochs), else None.
    """

    def _init_resumable(self) -> None:
        batched = takes_batched_images(self.runner.model)
        self.batches = make_resumable(self.dataloader, self.runner.seed, batched)
        self._place = (0, 0)
        self._validated: Optional[int] = 0  # the iteration after which the last validation came, None if unknown
        self._random_state: Optional[dict] = None
        self._tensors: Dict[str, torch.Tensor] = {}
        self._warm_up = False  # whether DDP must order its buckets first
        if self.batches is None:
            self.runner.logger.warning(
                f'{type(self.dataloader.dataset).__name__} is not read by index: its samples have no seeds, '
                'and a resumed run is not exact.'
            )

    # ------------------------------------------------------------------------------------------------- checkpoints
    def gather_resume_state(self, history: bool = True) -> Optional[dict]:
        """What a checkpoint needs, of all processes, in main memory. Every process must call this.

        Args:
            history: False leaves RM's history out. The iteration after a resume is not mixed then.

        Returns:
            In process 0 the entries for the checkpoint, None in the others.
        """
        epoch, batch = self._place
        tensors = {}
        if history and (batch > 0 or not self._history_ends_with_epoch()):
            for number, augment in enumerate(history_state(self.runner.model)):
                tensors.update({f'history.{number}.{key}': tensor for key, tensor in augment.items()})
        if accumulating(self.runner.optim_wrapper):
            named = unwrapped(self.runner.model).named_parameters()
            gradients = ((name, parameter.grad) for name, parameter in named)
            tensors.update({f'gradient.{name}': grad for name, grad in gradients if grad is not None})
        if get_rank() > 0:  # each process has its own statistics of batch norm, and those of process 0 are the model's
            tensors.update({f'buffer.{name}': buffer for name, buffer in buffers(self.runner)})
        random_states = all_gather_object(self._random_state or get_random_state())
        gathered = gather_tensors(tensors)
        if gathered is None:
            return None
        state = dict(
            loop=type(self).__name__,
            epoch=epoch,
            batch=batch,
            validated=self._validated,
            samples=self._samples_per_batch(),
            tensors=gathered,
        )
        return {RANDOM_KEY: random_states, SEED_KEY: getattr(self.batches, 'seed', None), STATE_KEY: state}

    def load_resume_state(self, checkpoint: dict) -> None:
        """Take what :meth:`gather_resume_state` wrote out of a checkpoint that is about to be resumed from.

        Called before mmengine sets the loop's epoch and iteration. What does not fit this run is ignored, with a
        warning.
        """
        self._place, self._validated = self._stock_place(checkpoint), None
        random_states, state = checkpoint.get(RANDOM_KEY), checkpoint.pop(STATE_KEY, None)
        if self.batches is not None and checkpoint.get(SEED_KEY) is not None:
            self.batches.seed = checkpoint[SEED_KEY]  # without one in the config this run drew another
        before, now = (state or {}).get('samples'), self._samples_per_batch()
        processes = get_world_size() if random_states is None else len(random_states)
        wrong = []
        if state is not None and state['loop'] == type(self).__name__:
            self._place, self._validated = (state['epoch'], state['batch']), state['validated']
        elif state is not None:
            wrong.append(f'is of a {state["loop"]} and this run has a {type(self).__name__}')
        elif random_states is None:
            wrong.append('is not one of this Runner and holds neither random states nor a place in the data')
        if before not in (None, now):
            samples = f'is of a run with {before} samples per iteration over all processes and this one has {now}'
            if isinstance(self, EpochBasedTrainLoop) and accumulates(self.runner.optim_wrapper):
                raise UserValueError(
                    f'the checkpoint {samples}: gradients are accumulated by the number of the iteration, which '
                    'changed. Resume with the same number of processes and the same batch size.'
                )
            wrong.append(samples)
            self._place = (self._place[0], self._place[1] * before // now)
        if processes != get_world_size():
            wrong.append(f'holds the random state of {processes} process(es) and this run has {get_world_size()}')
        if wrong:
            self.runner.logger.warning(
                f'The checkpoint {", and ".join(wrong)}: training resumes {self._where()}, but not bit for bit.'
            )
        if processes != get_world_size():
            return
        if random_states is not None:
            self._random_state = random_states[get_rank()]
        if state is not None:
            self._tensors = state['tensors'][get_rank()]
            self._warm_up = get_world_size() > 2 and isinstance(self.runner.model, DistributedDataParallel)

    @property
    def resumes_gradients(self) -> bool:
        """Whether the checkpoint that is resumed from holds what was accumulated of a gradient."""
        return any(name.startswith('gradient.') for name in self._tensors)

    def _where(self) -> str:
        return f'in epoch {self._place[0] + 1} at batch {self._place[1] + 1}'

    def _samples_per_batch(self) -> int:
        """Of all processes together."""
        return (getattr(self.dataloader.batch_sampler, 'batch_size', None) or 1) * get_world_size()

    def _history_ends_with_epoch(self) -> bool:
        return any(getattr(hook, 'empties_history', False) for hook in self.runner.hooks)

    # ------------------------------------------------------------------------------------------------------ running
    def _loader_from(self, epoch: int, batch: int):
        """An iterator over the loader's batches from one on, which draws nothing from the generators of training."""
        seed = 0
        if self.batches is not None:
            self.batches.epoch, self.batches.first, seed = epoch, batch, self.batches.seed
        with seeded(seed, epoch, get_rank(), -1, -1):  # torch draws a seed for its workers
            iterator = iter(self.dataloader)
        for _ in range(batch if self.batches is None else 0):
            next(iterator)
        return iterator

    def _restore(self) -> None:
        """Make the state of training that of the checkpoint, after all hooks that come before an iteration."""
        if self._random_state is not None:
            set_random_state(self._random_state)
            self._random_state = None
        histories: List[dict] = [{} for _ in history_state(self.runner.model)]
        for name, tensor in self._tensors.items():
            if name.startswith('history.'):
                _, number, key = name.split('.', 2)
                histories[int(number)][key] = tensor
        if any(histories):
            load_history_state(self.runner.model, histories)
        for name, parameter in unwrapped(self.runner.model).named_parameters():
            gradient = self._tensors.get(f'gradient.{name}')
            if gradient is not None:
                parameter.grad = gradient.to(parameter)
        self._tensors = {}

    def _restore_buffers(self) -> None:
        """Give this process its own buffers back, before it validates or trains."""
        for name, buffer in buffers(self.runner):
            if f'buffer.{name}' in self._tensors:
                with torch.no_grad():
                    buffer.copy_(self._tensors[f'buffer.{name}'])

    def run_iter(self, *args) -> None:
        """Train on one batch, the last argument."""
        if self._warm_up:
            order_buckets(self.runner, args[-1])
            self._warm_up = False
        super().run_iter(*args)

    def _make_up_for_validation(self, epoch: int) -> None:
        """Validate if it was due when the run was stopped, with what mmengine's message hub said then."""
        if self._validated is None or self._validated >= self._iter:  # as far as the checkpoint knows
            return
        self.runner.message_hub.update_info('epoch', epoch)
        self.runner.message_hub.update_info('iter', self._iter - 1)
        self._validate_if_due()

    def _validate_if_due(self) -> None:
        self._decide_current_val_interval()
        done, last = self._progress()
        due = done >= self.val_begin and (done % self.val_interval == 0 or done == last)
        if due and self.runner.val_loop is not None:
            self._validate()

    def _progress(self) -> Tuple[int, int]:
        """How many epochs or iterations are done, and how many there are."""
        raise NotImplementedError

    def _validate(self) -> None:
        """Validate, from the random states of training, which it leaves as they are."""
        if self._random_state is None:
            self._random_state = get_random_state()
        set_random_state(self._random_state)
        before, self._validated = self._validated, self._iter
        kept = copies(self.runner) if signals.is_deferred() else []
        cut_off = None
        try:
            self.runner.val_loop.run()
        except ValidationCutOff as error:
            cut_off = error
        if cut_off is not None:
            put_back(kept)  # such as weights whose place the moving average's had taken
            self._validated = self._iter - 1 if before is None else before
            cut_off.end()


class ResumableEpochLoop(ResumableLoop, EpochBasedTrainLoop):
    """``EpochBasedTrainLoop`` that resumes in mid-epoch. Its arguments are the same."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._init_resumable()

    def run(self) -> torch.nn.Module:
        """Train, and validate when it is due. A validation that the checkpoint does not know of is repeated."""
        self.runner.call_hook('before_train')
        self._restore_buffers()
        if self._place[1] == 0:
            self._make_up_for_validation(epoch=self._epoch - 1)
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._validate_if_due()
        self.runner.call_hook('after_train')
        return self.runner.model

    def run_epoch(self) -> None:
        """Train on the batches of one epoch, after a resume on those that are left of it."""
        first = self._place[1] if self._place[0] == self._epoch else 0
        if self._random_state is not None:
            set_random_state(self._random_state)  # as if nothing had come since the last iteration
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        iterator = self._loader_from(self._epoch, first)
        if first == 0:  # the hooks before the epoch may have drawn, as they always do
            self._random_state = None
        self._restore()
        for index, data_batch in enumerate(iterator, first):
            self._place = (self._epoch, index + 1)
            self.run_iter(index, data_batch)
        self._random_state = get_random_state()
        self._place = (self._epoch + 1, 0)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def _stock_place(self, checkpoint: dict) -> tuple:
        meta, info = checkpoint['meta'], checkpoint.get('message_hub', {}).get('runtime_info', {})
        if STATE_KEY not in checkpoint and meta['iter'] > 0 and info.get('epoch') == meta['epoch']:
            self.runner.logger.warning(
                f'The checkpoint was written in the middle of epoch {meta["epoch"] + 1}, at iteration '
                f'{meta["iter"]}, by another Runner: the epoch starts again.'
            )
            meta['iter'] = meta['epoch'] * len(self.dataloader)
        return meta['epoch'], 0

    def _progress(self) -> Tuple[int, int]:
        return self._epoch, self._max_epochs


class ResumableIterLoop(ResumableLoop, IterBasedTrainLoop):
    """``IterBasedTrainLoop`` that resumes at the next batch without loading those before. Its arguments are the same.

    The epoch of its place counts how often the loader was gone through; with an infinite sampler it stays 0.
    """

    def __init__(self, runner, dataloader, *args, **kwargs):
        BaseLoop.__init__(self, runner, dataloader)
        loader = self.dataloader
        # mmengine would start to load here, before it is known from where on.
        super().__init__(runner, DataLoader(loader.dataset, batch_sampler=[]), *args, **kwargs)
        self.dataloader = loader
        self.dataloader_iterator = None
        self._init_resumable()

    def run(self) -> torch.nn.Module:
        """Train, and validate when it is due. A validation that the checkpoint does not know of is repeated."""
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')
        self._restore_buffers()
        self.dataloader_iterator = self._endless()
        self._make_up_for_validation(epoch=self._epoch)
        self._restore()
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(next(self.dataloader_iterator))
            self._validate_if_due()
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model

    def _endless(self):
        epoch, batch = self._place
        while True:
            if epoch > 0 and self.batches is not None:
                self.batches.set_epoch(epoch)
            for number, data_batch in enumerate(self._loader_from(epoch, batch), batch + 1):
                self._place = (epoch, number)
                yield data_batch
            epoch, batch = epoch + 1, 0

    def _where(self) -> str:
        epoch, batch = self._place
        return f'at batch {batch + 1}' + (f' of pass {epoch + 1} over the data' if epoch else '')

    def _stock_place(self, checkpoint: dict) -> tuple:
        meta = checkpoint['meta']
        sampler = getattr(self.batches, 'sampler', None)
        endless = hasattr(sampler, '_infinite_indices')
        return (0, meta['iter']) if endless else divmod(meta['iter'], len(self.dataloader))

    def _progress(self) -> Tuple[int, int]:
        return self._iter, self._max_iters

    def _validate(self) -> None:
        super()._validate()
        set_random_state(self._random_state)
        self._random_state = None


class ValidationCutOff(Exception):
    """A run is to end in the middle of a validation.

    Args:
        end: Ends the run, when everything is as it was before the validation.
    """

    def __init__(self, end: Callable[[], None]):
        super().__init__('a validation was cut off')
        self.end = end


def order_buckets(runner, data_batch) -> None:
    """Let DDP order its buckets by one forward and backward pass that leaves everything as it was.

    DDP adds up the gradients of all processes bucket by bucket, and reorders the buckets after its first backward
    pass, by the order in which the gradients came. From three processes on, the last bits of a sum depend on where in
    its bucket a gradient lies: the first iteration after a resume would round as the first one of a run does.
    """
    model, wrapper = runner.model, runner.optim_wrapper
    if not isinstance(wrapper, OptimWrapper):
        return
    random_state, history = get_random_state(), history_state(model)
    kept, gradients = copies(runner), [(parameter, parameter.grad) for parameter in model.parameters()]
    reset_history(model)  # nothing was mixed in the first iteration of the run
    for parameter, _ in gradients:
        parameter.grad = None
    model.train()
    wrapper.should_sync = lambda: True  # also where a gradient would be accumulated
    backward = SimpleNamespace(optim_context=wrapper.optim_context, update_params=lambda loss: loss.backward())
    model.train_step(copy.deepcopy(data_batch), backward)
    del wrapper.should_sync
    for parameter, gradient in gradients:
        parameter.grad = gradient
    put_back(kept)
    load_history_state(model, history)
    set_random_state(random_state)


# ------------------------------------------------------------------------------------------------------------- tensors
def modules(runner) -> Iterator[Tuple[int, torch.nn.Module]]:
    """The model and its moving averages, which hooks keep."""
    averages = [getattr(hook, 'ema_model', None) for hook in runner.hooks]
    for number, module in enumerate([runner.model, *averages]):
        if isinstance(module, torch.nn.Module):
            yield number, module


def buffers(runner):
    """Names and buffers of the model and its moving averages."""
    for number, module in modules(runner):
        for name, buffer in module.named_buffers():
            yield f'{number}.{name}', buffer


def copies(runner) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    """Weights and buffers of the model and its moving averages, each with a copy."""
    found = (tensor for _, module in modules(runner) for tensor in (*module.parameters(), *module.buffers()))
    return [(tensor, tensor.detach().clone()) for tensor in found]


@torch.no_grad()
def put_back(kept: List[Tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give tensors the values of their :func:`copies`."""
    for tensor, value in kept:
        tensor.copy_(value)


def accumulating(optim_wrapper) -> bool:
    """Whether the gradients of some iterations wait for those of the next ones."""
    return any(not wrapper.should_update() for wrapper in wrappers_of(optim_wrapper))


def accumulates(optim_wrapper) -> bool:
    """Whether an update takes the gradients of several iterations."""
    return any(wrapper._accumulative_counts > 1 for wrapper in wrappers_of(optim_wrapper))


def wrappers_of(optim_wrapper) -> List[OptimWrapper]:
    """One, or those of several optimizers."""
    return list(optim_wrapper.values()) if isinstance(optim_wrapper, OptimWrapperDict) else [optim_wrapper]


def gather_tensors(tensors: Dict[str, torch.Tensor]) -> Optional[List[Dict[str, torch.Tensor]]]:
    """Each process's tensors, in main memory, at process 0; None at the others.

    Those of one process travel at a time and together: a broadcast for each of many small ones takes long.
    """
    own = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}  # in the layout that each has
    gathered: List[Dict[str, torch.Tensor]] = [own]
    for rank in range(1, get_world_size()):
        sent = [own if rank == get_rank() else None]
        broadcast_object_list(sent, rank)
        gathered += sent if get_rank() == 0 else []
    return gathered if get_rank() == 0 else None
