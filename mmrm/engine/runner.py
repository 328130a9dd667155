"""mmengine's Runner for long runs: checkpoints that survive a crash, and more than one process on the CPU.

Nothing here changes a config: what a run dumps into its work dir also runs under the toolboxes' own tools.
"""
import datetime
import os
import subprocess
from pathlib import Path
from typing import Optional

import torch
from mmengine.device import get_device
from mmengine.dist import all_gather_object, is_distributed, is_main_process, master_only
from mmengine.hooks import CheckpointHook
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODEL_WRAPPERS
from mmengine.runner import Runner as MMEngineRunner

from ..utils.errors import UserError, UserValueError

# Which variables say the same in each launcher.
RANK_VARIABLES = {
    'pytorch': dict(RANK='RANK', WORLD_SIZE='WORLD_SIZE', LOCAL_RANK='LOCAL_RANK'),
    'slurm': dict(RANK='SLURM_PROCID', WORLD_SIZE='SLURM_NTASKS', LOCAL_RANK='SLURM_LOCALID'),
    'mpi': dict(
        RANK='OMPI_COMM_WORLD_RANK', WORLD_SIZE='OMPI_COMM_WORLD_SIZE', LOCAL_RANK='OMPI_COMM_WORLD_LOCAL_RANK'),
}


class Runner(MMEngineRunner):
    """mmengine's Runner, with three differences.

    - A checkpoint is written beside its final name and moved there when it is complete; an older one is removed only
      after that. A run killed at any moment leaves a complete checkpoint behind, whatever ``max_keep_ckpts`` is.
    - On the CPU, several processes talk through gloo, and SyncBN, which has no CPU implementation, becomes BN.
    - All processes must start from the same place: where one node does not see the checkpoint the others resume from,
      training stops with an error.
    """

    def setup_env(self, env_cfg: dict) -> None:
        if self.distributed and get_device() == 'cpu' and not is_distributed():
            start_gloo(self.launcher, env_cfg.get('dist_cfg', {}).get('timeout'))
        super().setup_env(env_cfg)

    def wrap_model(self, model_wrapper_cfg: Optional[dict], model: torch.nn.Module) -> torch.nn.Module:
        if self.distributed and get_device() == 'cpu':
            if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
                self.logger.warning('SyncBN has no CPU implementation: each process normalises its own samples (BN).')
                model = revert_sync_batchnorm(model)
            model_wrapper_cfg = cpu_wrapper(model_wrapper_cfg, self.cfg.get('find_unused_parameters', False))
        return super().wrap_model(model_wrapper_cfg, model)

    def register_default_hooks(self, hooks: Optional[dict] = None) -> None:
        hooks = dict(hooks or {})
        checkpoint = hooks.get('checkpoint', dict(type='CheckpointHook', interval=1))
        stock = ('CheckpointHook', 'mmengine.CheckpointHook', CheckpointHook)
        if isinstance(checkpoint, dict) and checkpoint.get('type') in stock:
            hooks['checkpoint'] = dict(checkpoint, type=CrashSafeCheckpointHook)
        super().register_default_hooks(hooks)

    def save_checkpoint(self, out_dir: str, filename: str, *args, **kwargs) -> None:
        if '://' in str(out_dir):  # object stores write whole objects
            super().save_checkpoint(out_dir, filename, *args, **kwargs)
            return
        part = Path(out_dir) / f'.{filename}.part'
        try:
            super().save_checkpoint(out_dir, part.name, *args, **kwargs)
            if is_main_process():
                with open(part, 'rb+') as file:  # on the disk, not only in its cache, before it counts as written
                    os.fsync(file.fileno())
                os.replace(part, Path(out_dir) / filename)
        finally:
            if is_main_process():
                part.unlink(missing_ok=True)

    def load_or_resume(self) -> None:
        super().load_or_resume()
        starts = all_gather_object((self.epoch, self.iter))
        if len(set(starts)) > 1:
            found = ', '.join(f'process {rank}: epoch {epoch}, iteration {step}'
                              for rank, (epoch, step) in enumerate(starts))
            raise UserError(f'the processes do not start from the same checkpoint ({found}). The work dir must be on a '
                            'file system that all nodes share, or --resume PATH must name a copy on each.')


class TestRunner(Runner):
    """A runner that writes its config into the folder of its log: the one in the work dir is the training run's."""

    __test__ = False  # not a test of pytest's

    @master_only
    def dump_config(self) -> None:
        self.cfg.dump(Path(self.log_dir) / Path(self.cfg.filename or 'config.py').name)


class CrashSafeCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook, which removes an older checkpoint only after the newer one is written.

    It removes none outside its own folder: a checkpoint remembers the path of the best one, and a run that goes on in
    another folder, or in a copy, would remove that of the run it came from.
    """

    def before_train(self, runner) -> None:
        super().before_train(runner)
        if getattr(self, 'best_ckpt_path', None):
            self.best_ckpt_path = self._here(self.best_ckpt_path)
        for key, path in getattr(self, 'best_ckpt_path_dict', {}).items():
            self.best_ckpt_path_dict[key] = self._here(path) if path else path

    def _here(self, path: str) -> Optional[str]:
        here = self.file_backend.join_path(self.out_dir, Path(path).name)
        return here if self.file_backend.isfile(here) or self.file_backend.isdir(here) else None

    def _save_checkpoint_with_step(self, runner, step, meta):
        self._remove_afterwards(super()._save_checkpoint_with_step, runner, step, meta)

    def _save_best_checkpoint(self, runner, metrics):
        self._remove_afterwards(super()._save_best_checkpoint, runner, metrics)

    def _remove_afterwards(self, save, *args) -> None:
        backend = self.file_backend
        self.file_backend = postponed = PostponedRemovals(backend)
        try:
            save(*args)
        finally:
            self.file_backend = backend
        written = {self.last_ckpt, getattr(self, 'best_ckpt_path', None)}
        written.update(getattr(self, 'best_ckpt_path_dict', {}).values())
        for remove, path in postponed.removals:
            if path not in written:
                remove(path)


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


def cpu_wrapper(model_wrapper_cfg: Optional[dict], find_unused_parameters: bool = False) -> dict:
    """The config of the DDP wrapper for the CPU: the given one (or mmengine's default) without a device."""
    if model_wrapper_cfg is None:
        model_wrapper_cfg = dict(broadcast_buffers=False, find_unused_parameters=find_unused_parameters)
    wrapper = dict(model_wrapper_cfg)
    wrapper.setdefault('type', 'MMDistributedDataParallel')
    cls = MODEL_WRAPPERS.get(wrapper['type']) if isinstance(wrapper['type'], str) else wrapper['type']
    if cls is not None and issubclass(cls, torch.nn.parallel.DistributedDataParallel):
        wrapper['device_ids'] = None
    return wrapper


def start_gloo(launcher: str, timeout: Optional[float] = None) -> None:
    """Start the gloo process group; mmengine's own start would choose a CUDA device.

    Args:
        launcher: 'pytorch', 'slurm' or 'mpi'.
        timeout: Seconds that a collective operation may take; None for torch's default.
    """
    for name, source in RANK_VARIABLES[launcher].items():
        os.environ[name] = os.environ.get(source, '0')
    os.environ.setdefault('MASTER_PORT', '29500')
    if 'MASTER_ADDR' not in os.environ:
        os.environ['MASTER_ADDR'] = first_slurm_host() if launcher == 'slurm' else ''
    if not os.environ['MASTER_ADDR']:
        raise UserValueError(f'MASTER_ADDR is not set: --launcher {launcher} needs the address of the first node.')
    kwargs = {} if timeout is None else dict(timeout=datetime.timedelta(seconds=timeout))
    torch.distributed.init_process_group('gloo', **kwargs)


def first_slurm_host() -> str:
    """The first host of the Slurm job, '' if Slurm does not tell."""
    nodes = os.environ.get('SLURM_NODELIST', '')
    try:
        shown = subprocess.run(['scontrol', 'show', 'hostnames', nodes], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ''
    return shown.stdout.split()[0] if shown.stdout.split() else ''
