"""Checkpoints that survive a kill, and a folder that is in order after one."""

import inspect
import signal
import time
from pathlib import Path
from typing import List, Optional

from mmengine.dist import barrier, get_world_size, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop

from ...utils.errors import abbreviate, check_names, check_numbers
from ...utils.files import write_text
from ...utils.saved import find_saved
from .. import signals
from ..loops import ResumableLoop, ValidationCutOff, accumulating
from .non_finite import agree, check_weights


@HOOKS.register_module()
class CrashSafeCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook, for runs that are killed, that diverge, or that resume in another folder.

    - An older checkpoint is removed only after the newer one is written. None is removed outside the own folder: a
      checkpoint remembers the path of the best one, and a run that resumes in another folder, or in a copy, would
      remove that of the run it came from.
    - Weights that contain NaN or Inf are not saved: the run ends, and what is there stays.
    - At the start, half-written files are removed. Checkpoints that the resumed one does not know of,
      later ones and other best ones, are moved to ``replaced-<time>``.
    - With ``by_epoch=False`` in a loop of epochs, a checkpoint at the end of an epoch is written when the epoch counts
      as done, so that it can be resumed from.
    - In the loops of :mod:`mmrm.engine.loops` a checkpoint can be resumed from exactly, also in mid-epoch.
    - A run that a signal asks to end (:mod:`mmrm.engine.signals`) ends after a step, the same in all processes, with a
      checkpoint of that step, ``iter_<N>.pth``. A validation is cut off; the resumed run begins with it. One process
      looks for a signal after every step. Several exchange it every ``LOOK_EVERY`` (10) iterations or batches of a
      validation, and at the end of an epoch, together with the clock.

    Args:
        every_minutes (float, optional): Write a checkpoint, ``iter_<N>.pth``, also when the last one is that old. The
            next one replaces it. Process 0 looks at its clock every 10 iterations and at the end of an epoch, and the
            exchange above informs the others. Defaults to None, never; the tools' Runner gives mmengine's
            ``CheckpointHook`` 10, where its interval is above 0.
        save_history (bool): Whether a checkpoint in mid-epoch holds RM's history, in float32 the size of each process's
            batch of images (39 MB for 64 of 224 x 224). Without it, the first iteration after a resume is not mixed,
            and the run is not exact. Defaults to True.
        kwargs: Those of mmengine's ``CheckpointHook``.
    """

    LOOK_EVERY = 10  # iterations, or batches of a validation

    def __init__(self, *args, every_minutes: Optional[float] = None, save_history: bool = True, **kwargs):
        super().__init__(*args, **kwargs)
        known = inspect.signature(CheckpointHook).parameters
        check_names('default_hooks.checkpoint', self.args, [name for name in known if name != 'kwargs'])
        if every_minutes is not None:
            check_numbers('checkpoint', 0, every_minutes=every_minutes)
        self.every_minutes = every_minutes
        self.save_history = save_history
        self._resume_state: Optional[dict] = None
        self._midway: List[str] = []  # names of checkpoints by the clock that the next one replaces
        self._by_clock = self._due = False
        self._stop = 0  # the signal that all processes know of
        self._written = 0.0
        self._saved_at = -1  # iterations that the last checkpoint holds
        self._training = False
        self._val_batches = 0  # that every process has

    def saves_on_signals(self, runner) -> bool:
        """Whether a run that is asked to end writes a checkpoint first: it can, and it writes checkpoints at all."""
        return isinstance(runner.train_loop, ResumableLoop) and (self.interval > 0 or self.every_minutes is not None)

    def before_train(self, runner) -> None:
        super().before_train(runner)
        self._written, self._saved_at = time.monotonic(), runner.iter  # nothing is lost before the first iteration
        self._midway = list(runner.message_hub.runtime_info.get('midway_ckpts', []))
        if getattr(self, 'best_ckpt_path', None):
            self.best_ckpt_path = self._here(self.best_ckpt_path)
        for key, path in getattr(self, 'best_ckpt_path_dict', {}).items():
            self.best_ckpt_path_dict[key] = self._here(path) if path else path
        barrier()  # all have looked
        if is_main_process() and '://' not in str(self.out_dir):
            self._tidy(runner)
        if not isinstance(runner.train_loop, ResumableLoop):
            self.every_minutes = None
        self._stop, self._training = 0, self.saves_on_signals(runner)
        self._look(0)
        self._act(runner, runner.iter, runner.epoch)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if isinstance(runner.train_loop, EpochBasedTrainLoop) and self.end_of_epoch(runner.train_dataloader, batch_idx):
            return  # schedulers and random state are those of the next epoch only in after_train_epoch
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        if not isinstance(runner.train_loop, ResumableLoop):
            return
        step = runner.iter + 1
        self._look(step)
        # Between two updates of an accumulated gradient a checkpoint would have to hold that, too.
        if self._saved_at == step or not accumulating(runner.optim_wrapper):
            self._act(runner, step, runner.epoch)

    # ---------------------------------------------------------------------------------------- the clock and the signals
    def _look(self, step: int) -> None:
        """Learn whether a checkpoint is due by the clock, and whether the run is to end, in all processes alike.

        Args:
            step (int): Iterations or batches so far; several processes look every ``LOOK_EVERY`` of them.
        """
        alone, now = get_world_size() == 1, step % self.LOOK_EVERY == 0
        if not self._training or not (alone or now):
            return
        due = self._due
        if now and self.every_minutes is not None and is_main_process():
            due = due or time.monotonic() - self._written >= 60 * self.every_minutes
        self._due, self._stop = agree(due, signals.received())

    def _end(self, runner, step: int) -> None:
        """End the run, in all processes."""
        message = f'stopped by {signal.Signals(self._stop).name} after iteration {step}'
        if step == 0:
            message = f'{message}, nothing is lost. Start it again.'
        else:
            saved = self.last_ckpt or runner._load_from or 'the checkpoint it went on from'
            message = f'{message}, and {saved} holds everything. {signals.RESUME}'
        runner.logger.info(message)
        raise signals.Stopped(message, saved=self.last_ckpt is not None, together=True)

    def _act(self, runner, step: int, epochs: int) -> None:
        """Save and end the run if all know that it is time to, with ``step`` iterations and ``epochs`` epochs done."""
        if (self._due or self._stop) and self._saved_at != step:
            self._save_midway(runner, step, epochs)
        if self._stop:
            self._end(runner, step)

    def before_val_epoch(self, runner) -> None:
        if self._training:  # some samplers give some processes a batch more
            self._val_batches = -agree(-len(runner.val_dataloader))[0]

    def after_val_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self._training and batch_idx < self._val_batches:
            self._look(batch_idx + 1)
            if self._stop:
                raise ValidationCutOff(lambda: self._act(runner, runner.iter, runner.epoch))

    def _save_midway(self, runner, step: int, epochs: int) -> None:
        """Write ``iter_<step>.pth`` in place of the last one of its kind. Call it in all processes."""
        runner.logger.info(f'Saving checkpoint at {step} iterations')
        own = self.by_epoch, self.filename_tmpl, self.max_keep_ckpts
        self.by_epoch, self.filename_tmpl, self.max_keep_ckpts = False, 'iter_{}.pth', -1
        self._by_clock = True
        try:
            self._save_checkpoint_with_step(runner, step, dict(epoch=epochs, iter=step))
        finally:
            self.by_epoch, self.filename_tmpl, self.max_keep_ckpts = own
            self._by_clock = False

    def after_train_epoch(self, runner) -> None:
        super().after_train_epoch(runner)
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            return
        step = runner.iter
        due = self.interval > 0 and step >= self.save_begin and (step - self.save_begin) % self.interval == 0
        if not self.by_epoch and (due or (self.save_last and runner.epoch + 1 >= runner.max_epochs)):
            runner.logger.info(f'Saving checkpoint at {step} iterations')
            self._save_checkpoint_with_step(runner, step, dict(epoch=runner.epoch + 1, iter=step))
        if isinstance(runner.train_loop, ResumableLoop):
            self._look(0)
            self._act(runner, runner.iter, runner.epoch + 1)

    def after_train(self, runner) -> None:
        self._training = False
        super().after_train(runner)

    def _save_checkpoint_with_step(self, runner, step, meta):
        check_weights(runner)
        name = self.filename_tmpl.format(step)
        if isinstance(runner.train_loop, ResumableLoop):
            self._resume_state = runner.train_loop.gather_resume_state(self.save_history)
        # A checkpoint knows those that it replaces: a run killed before they are removed still removes them later.
        runner.message_hub.update_info('midway_ckpts', [*self._midway, name] if self._by_clock else self._midway)
        try:
            self._remove_afterwards(super()._save_checkpoint_with_step, runner, step, meta)
        finally:
            self._resume_state = None
        if is_main_process() and '://' not in str(self.out_dir):  # mmengine writes it in place and does not flush it
            write_text(Path(runner.work_dir) / 'last_checkpoint', self.last_ckpt, overwrite=True)
        for old in self._midway:
            path = self.file_backend.join_path(self.out_dir, old)
            if old != name and is_main_process() and self.file_backend.isfile(path):
                self.file_backend.remove(path)
        self._midway = [name] if self._by_clock else []
        runner.message_hub.update_info('midway_ckpts', self._midway)
        self._written, self._due, self._saved_at = time.monotonic(), False, meta['iter']

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        checkpoint.update(self._resume_state or {})

    def _save_best_checkpoint(self, runner, metrics):
        if self.save_best:
            check_weights(runner)
            self._remove_afterwards(super()._save_best_checkpoint, runner, metrics)

    def _remove_afterwards(self, save, *args) -> None:
        backend = self.file_backend
        self.file_backend = postponed = PostponedRemovals(backend)
        try:
            save(*args)
        finally:
            self.file_backend = backend
        for remove, path in postponed.removals:
            if path not in (self.last_ckpt, *self._best_paths()):
                remove(path)

    # ---------------------------------------------------------------------------------------- at the start of training
    def _here(self, path: str) -> Optional[str]:
        here = self.file_backend.join_path(self.out_dir, Path(path).name)
        return here if self.file_backend.isfile(here) or self.file_backend.isdir(here) else None

    def _best_paths(self) -> List[str]:
        paths = [getattr(self, 'best_ckpt_path', None), *getattr(self, 'best_ckpt_path_dict', {}).values()]
        return [path for path in paths if path]

    def _tidy(self, runner) -> None:
        """Put the folder in the state of the checkpoint that is resumed.

        Later checkpoints belong to a run that is left: a resume from an older checkpoint, or a start from the
        beginning. In their place they would pass for this run's newest or best. A best one that the checkpoint does not
        know of was written, or left beside a better one, just before a kill; the validation that made it comes again.
        """
        folder = Path(self.out_dir)
        for part in folder.glob('.*.pth.*'):  # as atomic_write names them
            runner.logger.info(f'{part} is removed: it is incomplete.')
            part.unlink()
        done = dict(epoch=runner.epoch, iter=runner.iter)
        known = [Path(path).name for path in self._best_paths()]
        moved = [
            saved.path
            for saved in find_saved(folder)
            if saved.step > done[saved.unit] or (saved.metric and self.save_best and saved.path.name not in known)
        ]
        if moved:
            target = folder / f'replaced-{runner.timestamp}'
            target.mkdir(exist_ok=True)
            for path in moved:
                path.rename(target / path.name)
            (Path(runner.work_dir) / 'last_checkpoint').unlink(missing_ok=True)
            runner.logger.warning(
                f'{abbreviate([path.name for path in moved])}: not of the run up to epoch {runner.epoch}, iteration '
                f'{runner.iter}, where training starts; now in {target}.'
            )


class PostponedRemovals:
    """A file backend of mmengine that notes what to remove instead of removing it."""

    def __init__(self, backend):
        self.backend = backend
        self.removals = []

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        self.removals.append((self.backend.remove, path))

    def rmtree(self, path: str) -> None:
        self.removals.append((self.backend.rmtree, path))
