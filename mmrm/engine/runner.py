"""mmengine's Runner for long runs: checkpoints that survive a crash, and more than one process on the CPU.

Nothing here changes a config: what a run dumps into its work dir also runs under the toolboxes' own tools.
"""

import copy
import datetime
import inspect
import json
import logging
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any, Iterable, List, Optional

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import all_gather_object, broadcast_object_list, is_distributed, is_main_process, master_only
from mmengine.evaluator import Evaluator
from mmengine.hooks import CheckpointHook
from mmengine.logging import MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.runner import EpochBasedTrainLoop
from mmengine.runner import Runner as MMEngineRunner
from mmengine.visualization import Visualizer
from torch.utils.data import DataLoader

from ..utils import settings
from ..utils.checkpoints import check_class_order
from ..utils.config import type_name
from ..utils.errors import UserError, UserFileError, UserValueError, check_names
from ..utils.files import atomic_write, write_text
from ..utils.processes import RANK_VARIABLES
from .compiled import compile_losses
from .data import check_last_batch, check_same_data, describe_data, no_samples
from .hooks import BindAugmentsHook, NonFiniteLossHook
from .hooks.crash_safe_checkpoint import CrashSafeCheckpointHook
from .hooks.mixing import check_model_parts
from .loops import ResumableEpochLoop, ResumableIterLoop, ResumableLoop
from .signals import IgnoreSignals, blocked

# A checkpoint is written when the last one is that old, in runs that write any.
EVERY_MINUTES = 10
EXACT_LOOPS = dict(EpochBasedTrainLoop=ResumableEpochLoop, IterBasedTrainLoop=ResumableIterLoop)
# Seconds to wait for the others, e.g. while process 0 evaluates. torch's default for NCCL is 10 minutes, less
# than an evaluation of COCO may take. env_cfg.dist_cfg.timeout replaces it.
TIMEOUT = 3 * 3600


def _plan(runner) -> List[str]:
    """The initial learning rate and the end of each schedule, which a checkpoint restores."""
    groups = getattr(runner.optim_wrapper, 'param_groups', None)
    rates = [groups[0].get('initial_lr', groups[0]['lr'])] if isinstance(groups, list) and groups else []
    schedulers = runner.param_schedulers if isinstance(runner.param_schedulers, list) else []  # a dict: for several
    return [*(f'lr {rate:g}' for rate in rates), *(f'{type(each).__name__} to {each.end}' for each in schedulers)]


class Runner(MMEngineRunner):
    """mmengine's Runner, with these differences.

    - A run that was stopped at any iteration and resumed from its last checkpoint is the run that was never stopped:
      mmengine's two training loops become those of :mod:`mmrm.engine.loops`. In another loop of epochs, a checkpoint
      from the middle of an epoch is not resumed from.
    - A checkpoint is written beside its final name and moved there when it is complete; an older one is removed only
      after that. A run killed at any moment leaves a complete checkpoint behind, whatever ``max_keep_ckpts`` is.
    - A run whose loss is not finite any more ends (:class:`~mmrm.engine.hooks.NonFiniteLossHook`), and weights that
      are not finite are not saved.
    - On the CPU, several processes talk through gloo, and SyncBN, which has no CPU implementation, becomes BN.
    - A process waits hours for the others, not torch's ten minutes (``TIMEOUT``).
    - A data-loader worker does not end by a signal that asks the run to end.
    - All processes must start from the same place: where one node does not see the checkpoint the others resume from,
      training stops with an error.
    - When training starts, it warns if a part of RecursiveMix is missing, and batch augments that need the model get it
      (with BindAugmentsHook, the hook does).
    - The environment, the config and the list of hooks, hundreds of lines, go to the log file and not to the console.
    - ``compile`` compiles a classifier's network, head and losses, not its whole step (:mod:`mmrm.engine.compiled`).
    - A checkpoint remembers what decides its result, and a run that resumes from it with other settings lists them. One
      on other data, or with other metrics, is refused (:mod:`mmrm.engine.data`).
    """

    data: Optional[dict] = None  # what the run reads, see describe_data
    built = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.built = True

    def build_logger(self, *args, **kwargs) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        logger.handlers[0].addFilter(lambda record: self.built or record.levelno >= logging.WARNING)
        return logger

    def train(self) -> torch.nn.Module:
        check_model_parts(self)  # also without ResetHistoryHook; mmengine's logger does not repeat a warning
        check_last_batch(self)
        loops = dict(train=self.train_loop, val=self.val_loop)
        described = [describe_data(loops, self.cfg) if is_main_process() else None]
        broadcast_object_list(described)
        self.data = described[0]
        return super().train()

    def set_randomness(self, *args, **kwargs) -> None:
        check_randomness(kwargs)
        super().set_randomness(*args, **kwargs)

    def setup_env(self, env_cfg: dict) -> None:
        settings = dict(dict(timeout=TIMEOUT), **(env_cfg.get('dist_cfg') or {}))
        if self.distributed and not is_distributed() and get_device() == 'cpu':
            start_gloo(self.launcher, settings['timeout'])
        super().setup_env(dict(env_cfg, dist_cfg=settings))

    def wrap_model(self, model_wrapper_cfg: Optional[dict], model: torch.nn.Module) -> torch.nn.Module:
        if self.distributed and get_device() == 'cpu':
            if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
                self.logger.warning('SyncBN has no CPU implementation: each process normalizes its own samples (BN).')
                model = revert_sync_batchnorm(model)
            unused = self.cfg.get('find_unused_parameters', False)  # else as mmengine does without a config
            model_wrapper_cfg = model_wrapper_cfg or dict(broadcast_buffers=False, find_unused_parameters=unused)
            model_wrapper_cfg = dict(dict(type='MMDistributedDataParallel'), **dict(model_wrapper_cfg, device_ids=None))
        return super().wrap_model(model_wrapper_cfg, model)

    def register_default_hooks(self, hooks: Optional[dict] = None) -> None:
        hooks = dict(hooks or {})
        checkpoint = hooks.get('checkpoint', dict(type='CheckpointHook', interval=1))
        stock = ('CheckpointHook', 'mmengine.CheckpointHook', CheckpointHook)
        if isinstance(checkpoint, dict) and checkpoint.get('type') in stock:
            interval = checkpoint.get('interval', -1)
            if not isinstance(interval, int):
                raise UserValueError(f'default_hooks.checkpoint.interval={interval!r} must be a whole number.')
            clock = dict(every_minutes=EVERY_MINUTES) if interval > 0 else {}
            hooks['checkpoint'] = dict(clock, **dict(checkpoint, type=CrashSafeCheckpointHook))
        super().register_default_hooks(hooks)

    def call_hook(self, fn_name: str, **kwargs) -> None:
        if fn_name == 'after_train_iter':
            kwargs['outputs'] = read_at_once(kwargs.get('outputs'))
        super().call_hook(fn_name, **kwargs)

    def register_hooks(self, default_hooks: Optional[dict] = None, custom_hooks: Optional[list] = None) -> None:
        super().register_hooks(default_hooks, custom_hooks)
        for kind in (NonFiniteLossHook, BindAugmentsHook):
            if not any(isinstance(hook, kind) for hook in self.hooks):
                self.register_hook(kind())

    @staticmethod
    def build_dataloader(dataloader, *args, **kwargs) -> DataLoader:
        try:
            loader = MMEngineRunner.build_dataloader(dataloader, *args, **kwargs)
        except ValueError as error:
            if 'need at least one array' not in str(error):  # what mmengine says of a list without a sample
                raise
            raise no_samples(dataloader['dataset']) from error
        loader.worker_init_fn = IgnoreSignals(loader.worker_init_fn)
        start = loader._get_iterator

        def start_blocked():
            with blocked():
                return start()

        loader._get_iterator = start_blocked  # a worker that a signal meets at its start would take the run with it
        return loader

    def build_evaluator(self, evaluator) -> Evaluator:
        evaluator = super().build_evaluator(evaluator)
        for metric in evaluator.metrics if self.distributed else ():
            if getattr(metric, 'collect_device', None) == 'cpu' and getattr(metric, 'collect_dir', '') is None:
                # Through files in .dist_test of the current folder, which they leave. 'gpu' is mmengine's name for: by
                # an exchange, on whichever device there is.
                metric.collect_device = 'gpu'
        return evaluator

    def build_train_loop(self, loop):
        if isinstance(loop, dict) and ('type' in loop) != ('by_epoch' in loop):  # mmengine refuses both and neither
            stock = 'EpochBasedTrainLoop' if loop.get('by_epoch') else 'IterBasedTrainLoop'
            kind = EXACT_LOOPS.get(type_name(loop) or stock, loop.get('type'))
            loop = dict({key: value for key, value in loop.items() if key != 'by_epoch'}, type=kind)
        return super().build_train_loop(loop)

    def resume(self, filename: str, *args, **kwargs) -> None:
        planned = _plan(self)
        super().resume(filename, *args, **kwargs)
        if _plan(self) != planned:
            self.logger.warning(
                f'The schedule of the checkpoint is kept, not the one of this config ({", ".join(_plan(self))} instead '
                f'of {", ".join(planned)}): the learning rate does not follow --auto-scale-lr or a new length, number '
                'of processes or batch size. Another schedule needs a new run: --cfg-options load_from=CHECKPOINT'
            )
        other = isinstance(self.train_loop, EpochBasedTrainLoop) and not isinstance(self.train_loop, ResumableLoop)
        if other and self.iter > 0 and self.message_hub.runtime_info.get('epoch') == self.epoch:  # the one that began
            raise UserFileError(
                f'checkpoint {filename} was written in the middle of epoch {self.epoch + 1}, at iteration {self.iter}: '
                f'{type(self.train_loop).__name__} would begin the epoch again, but not the learning rate. Resume '
                'from one at the end of an epoch (default_hooks.checkpoint.by_epoch=True writes these). To start a new '
                f'run from its weights: --cfg-options load_from={filename}'
            )

    def _maybe_compile(self, target: str) -> None:
        if compile_losses(self.model, self.cfg.get('compile')):
            self.logger.info('The network, its head and its losses are compiled: the first iterations are slow.')
        else:
            super()._maybe_compile(target)

    def save_checkpoint(self, out_dir: str, filename: str, *args, **kwargs) -> None:
        run = dict(settings.describe_run(self.cfg, self.world_size), data=self.data)
        kwargs['meta'] = dict(kwargs.get('meta') or {}, mmrm_run=run)
        if '://' in str(out_dir) or not is_main_process():  # object stores write whole objects; process 0 writes
            super().save_checkpoint(out_dir, filename, *args, **kwargs)
            return
        with atomic_write(Path(out_dir) / filename, overwrite=True) as part:
            super().save_checkpoint(str(part.parent), part.name, *args, **kwargs)

    def load_checkpoint(self, filename: str, *args, **kwargs) -> dict:
        checkpoint = super().load_checkpoint(filename, *args, **kwargs)
        meta = checkpoint.get('meta') or {}
        for loop in (self._train_loop, self._test_loop):
            if hasattr(loop, 'dataloader'):
                check_class_order(meta, loop.dataloader.dataset, filename)
        if self._resume:
            if 'config' in meta:  # mmengine's resume would execute that text; its own checkpoints have 'cfg' instead
                raise UserFileError(
                    f"checkpoint {filename} has code in meta['config'], and a resume would execute it: "
                    f'refused. To start a new run from its weights: --cfg-options load_from={filename}'
                )
            if self.param_schedulers and 'param_schedulers' not in checkpoint:
                raise UserFileError(
                    f'checkpoint {filename} has no param_schedulers: the learning rate would start again. It was saved '
                    f'with save_param_scheduler=False; a new run from its weights: --cfg-options load_from={filename}'
                )
            check_same_data((meta.get('mmrm_run') or {}).get('data'), self.data or {}, filename)
            self._warn_of_other_settings(filename, meta)
            if isinstance(self.train_loop, ResumableLoop):
                self.train_loop.load_resume_state(checkpoint)
        return checkpoint

    def _warn_of_other_settings(self, filename: str, meta: dict) -> None:
        lines = settings.resume_differences(meta, self.cfg, self.world_size)
        if lines:
            self.logger.warning(
                f'{filename} was trained with other settings (its -> of this run):\n'
                + '\n'.join(f'  {line}' for line in lines)
                + '\nTraining continues with the new settings.'
            )

    def load_or_resume(self) -> None:
        super().load_or_resume()
        if is_main_process() and self.data is not None:
            write_text(Path(self.work_dir) / 'data.json', json.dumps(self.data, indent=1), overwrite=True)
        if getattr(self.train_loop, 'resumes_gradients', False):
            self.logger.addFilter(lambda record: 'gradient of some iterations is lost' not in record.getMessage())
        starts = all_gather_object((self.epoch, self.iter))
        if len(set(starts)) > 1:
            found = ', '.join(
                f'process {rank}: epoch {epoch}, iteration {step}' for rank, (epoch, step) in enumerate(starts)
            )
            raise UserError(
                f'the processes do not start from the same checkpoint ({found}). The work dir must be on a '
                'file system that all nodes share, or --resume PATH must name a copy on each.'
            )


def check_randomness(given: Iterable[str]) -> None:
    """Raise if ``randomness`` of a config has a setting that mmengine does not know."""
    check_names('randomness', given, list(inspect.signature(MMEngineRunner.set_randomness).parameters)[1:])


def build_hooks(cfg: Config) -> None:
    """Build every hook of a config, as a run does: what is wrong with one is known before it trains."""
    Visualizer.get_instance('build_hooks')  # some ask for one
    runner = object.__new__(Runner)  # only what holds hooks
    runner._hooks = []
    runner.register_hooks(copy.deepcopy(cfg.get('default_hooks')), copy.deepcopy(cfg.get('custom_hooks')))


def read_at_once(outputs: Any) -> Any:
    """The numbers of a step in main memory, by one copy: a hook that reads them one by one waits for each."""
    found = {
        name: value
        for name, value in (outputs.items() if isinstance(outputs, dict) else ())
        if torch.is_tensor(value) and value.ndim == 0 and value.dtype == torch.float32 and value.device.type != 'cpu'
    }
    if not found:
        return outputs
    return {**outputs, **dict(zip(found, torch.stack([*found.values()]).detach().cpu()))}


class TestRunner(Runner):
    """A runner that writes its config into the folder of its log: the one in the work dir is the training run's."""

    __test__ = False  # not a test of pytest's

    @master_only
    def dump_config(self) -> None:
        self.cfg.dump(Path(self.log_dir) / Path(self.cfg.filename or 'config.py').name)


def start_gloo(launcher: str, timeout: float) -> None:
    """Start the gloo process group; mmengine's own start would choose a CUDA device.

    Args:
        launcher: 'pytorch' or 'slurm'.
        timeout: Seconds that a collective operation may take.
    """
    for name, source in RANK_VARIABLES[launcher].items():
        os.environ[name] = os.environ.get(source, '0')
    os.environ.setdefault('MASTER_PORT', '29500')
    if launcher == 'slurm' and 'MASTER_ADDR' not in os.environ:
        nodes = shlex.quote(os.environ.get('SLURM_NODELIST', ''))
        hosts = subprocess.getoutput(f'scontrol show hostnames {nodes} 2> /dev/null')
        os.environ['MASTER_ADDR'] = hosts.partition('\n')[0]
    if not os.environ.get('MASTER_ADDR'):
        raise UserValueError(f'MASTER_ADDR is not set: --launcher {launcher} needs the address of the first node.')
    torch.distributed.init_process_group('gloo', timeout=datetime.timedelta(seconds=timeout))
