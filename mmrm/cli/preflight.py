"""The checks before a run: config, device, data, folders, checkpoints.

Each function raises a :class:`mmrm.utils.errors.UserError` that names what is wrong, or returns what the run uses, or
writes it into the config. Where one process starts the others, it alone checks.
"""

import argparse
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Tuple

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.device import utils as device_utils
from mmengine.dist import barrier
from mmengine.registry import OPTIMIZERS, RUNNERS

from ..datasets.locate import find_data
from ..engine import launch as launching
from ..engine import signals
from ..engine.classes import check_classes, check_runner_classes
from ..engine.hooks.crash_safe_checkpoint import CrashSafeCheckpointHook
from ..engine.optim_wrapper import bfloat16_is_fast
from ..engine.runner import Runner
from ..engine.schedulers import INFINITE
from ..utils import files as writing
from ..utils import paths
from ..utils.checkpoints import own_folder, read_checkpoint
from ..utils.config import checkpoint_out_dir, datasets, read_config, require, type_name
from ..utils.errors import UserError, UserFileError, UserValueError, check_numbers
from ..utils.processes import RANK_VARIABLES, is_reporting_process, local_rank, print_once, thread_variables, warn
from ..utils.saved import parse_name
from ..weights import check_placement
from ..weights.runs import best_checkpoints, find_checkpoint, latest_checkpoint, saved_checkpoints
from ..weights.strict import MisfitError, check_weights, init_cfgs
from .options import DEVICES


def launch(task: str, args: argparse.Namespace, argv: Sequence[str]) -> None:
    """Check a run of ``tools/train.py`` or ``test.py``, then start it in ``--gpus`` processes and exit as they do."""
    device = choose_device(args.device)
    check_gpus(args.gpus, device)
    launching.torchrun_options(args.gpus)  # checks the environment variables
    (prepare_train if task == 'train' else prepare_test)(args)
    # One thread per process, as torchrun and mmengine choose (and warn about); processes on the CPU share its cores.
    for name, threads in thread_variables(args.gpus, device == 'cpu').items():
        os.environ.setdefault(name, threads)
    script = paths.shipped() / 'tools' / f'{task}.py'
    launching.run(script, [*argv, '--launcher', 'pytorch'], args.gpus, saves=task == 'train')


def read_run(args: argparse.Namespace, *fields: str) -> Tuple[Config, str]:
    """The config of a run, which must have ``fields``, with the options of train and test merged in, and its device."""
    config = paths.find_config(args.config)
    cfg = read_config(config, args.cfg_options)
    require(cfg, config, *fields)
    device = choose_device(args.device)
    set_launcher(cfg, args, device)
    set_loader_defaults(cfg, device)
    work_dir = args.work_dir or cfg.get('work_dir') or paths.default_work_dir(config, getattr(args, 'seed', None))
    cfg.work_dir = str(Path(work_dir).expanduser().absolute())
    return cfg, device


def prepare_train(args: argparse.Namespace) -> Config:
    """The config of a training run: options merged in, data found, checkpoint and work dir checked."""
    cfg, device = read_run(args, 'model', 'train_dataloader', 'train_cfg', 'optim_wrapper')
    if args.seed is not None:
        cfg.randomness = dict(cfg.get('randomness') or {}, seed=args.seed)
    if args.no_validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    if args.auto_scale_lr:
        # mmengine names base_batch_size where it is missing.
        cfg.auto_scale_lr = dict(cfg.get('auto_scale_lr') or {}, enable=True)
    find_data(cfg, ('train', 'val') if is_reporting_process() else ())
    if is_reporting_process():
        check_config(cfg)
        compare_classes(cfg, ('train', 'val'))
        check_unused(cfg, args)
    if is_restart(cfg):
        args.resume, args.overwrite = 'auto', False
    set_resume(cfg, args.resume, args.overwrite)
    if args.amp:
        set_amp(cfg, device, args.amp)
    if is_reporting_process():
        check_work_dir(cfg.work_dir)
    return cfg


def prepare_test(args: argparse.Namespace) -> Config:
    """The config of a test run: options merged in, data found, checkpoint, work dir and output file checked."""
    cfg, _ = read_run(args, 'model', 'test_dataloader', 'test_cfg', 'test_evaluator')
    find_data(cfg, ('test',) if is_reporting_process() else ())
    if is_reporting_process():
        check_runner_type(cfg)
        compare_classes(cfg, ('test',))
    if args.tta:
        set_tta(cfg)
    cfg.resume = False
    cfg.load_from = check_checkpoint(args.checkpoint)
    if is_reporting_process():
        if args.out:
            writing.check_out(args.out, args.overwrite, ('.json', '.pkl', '.pickle'))
        check_work_dir(cfg.work_dir)
    return cfg


def build_runner(cfg: Config, kind: type = Runner) -> Runner:
    """The runner of a config: of the class ``kind``, unless the config names its own."""
    return RUNNERS.build(cfg) if 'runner_type' in cfg else kind.from_cfg(cfg)


def check_runner(runner: Runner) -> None:
    """Build the data sets of a training run, and check what only the built model and data show."""
    check_free_space(runner)
    check_placement(runner.model)
    if runner.cfg.resume:
        check_weights(runner.model, runner.cfg.load_from)
        forget_weights(runner.model)
    elif runner.cfg.load_from:
        check_start(runner.model, runner.cfg)
    runner.train_loop, runner.val_loop  # noqa: B018, builds the data sets, which train() does first too
    check_runner_classes(runner)


def check_start(model: torch.nn.Module, cfg: Config) -> None:
    """Raise unless ``load_from`` fills the whole model; with ``allow_partial=True`` in the config, warn."""
    try:
        check_weights(model, cfg.load_from)
    except MisfitError as error:
        if not cfg.get('allow_partial'):
            raise UserFileError(f'load_from: {error}. To load what fits: --cfg-options allow_partial=True') from error
        warn(f'load_from: {error}. Only what fits is loaded.')


def forget_weights(model: torch.nn.Module) -> None:
    """Remove weight files from a model's initialisation, before a resume.

    The checkpoint holds all of it, and the file that the run started from may be gone.
    """
    for module in model.modules():
        given = init_cfgs(module)
        kept = [config for config in given if not config.get('checkpoint')]
        if len(kept) < len(given):
            module.init_cfg = kept or None


def saves_on_signals(runner: Runner) -> bool:
    """Whether a run that receives a signal saves before it ends."""
    return any(isinstance(hook, CrashSafeCheckpointHook) and hook.saves_on_signals(runner) for hook in runner.hooks)


def describe_stop(runner: Runner) -> str:
    """Where a run that does not save on a signal stands, and what of it is lost."""
    if runner.iter == 0:
        return 'before the first iteration, nothing is lost. Start it again.'
    saved = next((hook.last_ckpt for hook in runner.hooks if hasattr(hook, 'last_ckpt')), None)
    saved = saved or (runner.cfg.load_from if runner.cfg.resume else None)
    if saved is None:
        kept = 'it had written no checkpoint (default_hooks.checkpoint.interval): all of it is lost.'
    else:
        kept = f'what came after {saved} is lost. {signals.RESUME}'
    return f'after iteration {runner.iter}; {kept}'


def describe_start(runner: Runner) -> None:
    """Print what trains, in three lines; the log file has the rest."""
    batch = runner.cfg.train_dataloader.get('batch_size')
    print(f'model       {type(runner.model).__name__} on {get_device()}, {runner.world_size} process(es)')
    print(f'data        {len(runner.train_dataloader.dataset):,} training samples, {batch} per process and iteration')
    print(f'log         {runner.log_dir} (with environment, config and hooks)', flush=True)


def describe_result(runner: Runner, config: str) -> None:
    """Print the last validation, the best weights, and the command that tests them."""
    logged = runner.message_hub.log_scalars.items()
    metrics = {key[4:]: value.current() for key, value in logged if key.startswith('val/') and 'time' not in key}
    folder = checkpoint_dir(runner.cfg)
    weights = [*best_checkpoints(folder), *reversed(saved_checkpoints(folder))] if folder else []
    best = runner.message_hub.get_info('best_score', None)
    last = ', '.join(f'{name} {value:g}' for name, value in metrics.items())
    print(f'result      {f"{last} (last validation)" if last else "not validated"}')
    if weights:
        print(f'weights     {weights[0]}' + ('' if best is None else f' (best validation, {best:g})'))
        print(f'next        mmrm test {config} {paths.show_path(weights[0])}', flush=True)


# ------------------------------------------------------------------------------------------------------------ config
def check_config(cfg: Config) -> None:
    """Raise if a training run of a config would fail, or lose its checkpoints; warn of a schedule that does not fit."""
    check_runner_type(cfg)
    check_optimizer(cfg)
    check_schedule(cfg)
    check_file_names(cfg)


def check_optimizer(cfg: Config) -> None:
    """Raise unless the optimizer is a known one; mmengine's own message does not name it."""
    name = (cfg.optim_wrapper.get('optimizer') or {}).get('type')
    if isinstance(name, str):
        with OPTIMIZERS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
            if registry.get(name) is None:
                raise UserValueError(f'config: optim_wrapper.optimizer.type = {name!r} is not a known optimizer.')


def check_schedule(cfg: Config) -> None:
    """Raise if the training has no length; warn of a schedule that is longer than it."""
    lengths = {key: cfg.train_cfg[key] for key in ('max_epochs', 'max_iters') if cfg.train_cfg.get(key) is not None}
    check_numbers('train_cfg', 1, integer=True, **lengths)
    length = lengths.get('max_epochs')
    schedulers = cfg.get('param_scheduler') or []
    for each in [schedulers] if isinstance(schedulers, dict) else schedulers:
        if not isinstance(length, int) or not each.get('by_epoch', True):
            continue
        ends = [each.get('end'), each.get('T_max'), each.get('epochs'), *(each.get('milestones') or ())]
        last = max((end for end in ends if isinstance(end, int)), default=0)
        if length < last < INFINITE:
            warn(f'{type_name(each)} is set for {last} epochs, but train_cfg.max_epochs is {length}: change it too.')


def check_file_names(cfg: Config) -> None:
    """Raise if checkpoints would get names by which they are not found again."""
    name = ((cfg.get('default_hooks') or {}).get('checkpoint') or {}).get('filename_tmpl')
    if name not in (None, 'epoch_{}.pth', 'iter_{}.pth'):
        raise UserValueError(
            f"filename_tmpl = {name!r}: --resume finds 'epoch_{{}}.pth' and 'iter_{{}}.pth' only. Leave it out."
        )


def check_runner_type(cfg: Config) -> None:
    """Raise if a config asks for one of mmengine's ways to train that mmrm does not support."""
    kind = type_name(dict(type=cfg.get('runner_type') or ''))
    wrapper = type_name(cfg.get('model_wrapper_cfg') or {})
    if kind == 'FlexibleRunner':
        what = 'runner_type = FlexibleRunner (and with it strategy)'
    elif 'FullySharded' in wrapper:
        what = f'model_wrapper_cfg.type = {wrapper}'
    elif (cfg.get('optim_wrapper') or {}).get('use_fsdp'):
        what = 'optim_wrapper.use_fsdp'
    else:
        return
    raise UserValueError(f'config: {what} is not supported. Leave it out to train with DDP (docs/gpus.md).')


def set_amp(cfg: Config, device: str, precision: str) -> None:
    """``--amp``: bfloat16, or float16 with dynamic loss scaling.

    'auto' is the precision of the checkpoint that is resumed from, or of the config; else bfloat16 where the device
    has it.
    """
    given = type_name(cfg.optim_wrapper)
    if given not in ('', 'OptimWrapper', 'AmpOptimWrapper', 'BFloat16OptimWrapper'):
        raise UserValueError(f'--amp replaces OptimWrapper; the config has {given}.')
    if precision == 'auto':
        kept = saved_optim_wrapper(cfg.load_from) if cfg.resume else ''
        wrapper = kept if kept in ('AmpOptimWrapper', 'BFloat16OptimWrapper') else given
        scaled = wrapper == 'AmpOptimWrapper' or (wrapper != 'BFloat16OptimWrapper' and not bfloat16_is_fast(device))
        precision = 'float16' if scaled and device != 'cpu' else 'bfloat16'
    if device == 'cpu' and precision == 'float16':
        raise UserValueError('--amp float16 needs a GPU; on the CPU mixed precision is in bfloat16.')
    if precision == 'float16':
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
        return
    if device == 'cpu' and not bfloat16_is_fast(device):
        raise UserValueError('--amp: this CPU has no kernels for bfloat16, which would be far slower than float32.')
    cfg.optim_wrapper.type = 'BFloat16OptimWrapper'
    for key in ('loss_scale', 'dtype', 'use_fsdp'):
        cfg.optim_wrapper.pop(key, None)


def saved_optim_wrapper(path: str) -> str:
    """The type of the ``optim_wrapper`` that wrote a checkpoint of this Runner, '' if it is not known."""
    meta = {} if '://' in path else read_checkpoint(path).get('meta') or {}
    return type_name(((meta.get('mmrm_run') or {}).get('settings') or {}).get('optim_wrapper') or {})


def set_tta(cfg: Config) -> None:
    """``--tta``: test the config's ``tta_model`` with its ``tta_pipeline``."""
    require(cfg, Path(cfg.filename), 'tta_model', 'tta_pipeline')
    cfg.model = dict(cfg.tta_model, module=cfg.model)
    for dataset, _ in datasets(cfg.test_dataloader.dataset):
        dataset.pipeline = cfg.tta_pipeline


def set_loader_defaults(cfg: Config, device: str) -> None:
    """Set what mmpretrain's configs leave to its train.py; unset what the CPU or a loader without workers rules out."""
    for part in ('train', 'val', 'test'):
        loader = cfg.get(f'{part}_dataloader')
        if not isinstance(loader, dict):
            continue
        if cfg.get('default_scope') == 'mmpretrain':
            loader.setdefault('collate_fn', dict(type='default_collate'))
            loader.setdefault('pin_memory', True)
            loader.setdefault('persistent_workers', True)
        if device == 'cpu':
            loader.pin_memory = False
        if not loader.get('num_workers'):
            loader.pop('prefetch_factor', None)
            loader.persistent_workers = False


def compare_classes(cfg: Config, parts: Sequence[str]) -> None:
    """Raise unless head, preprocessor and data agree on the classes, as far as that can be known without the data."""
    verdict = check_classes(cfg, parts)
    verdict.check()
    for warning in verdict.warnings:
        warn(warning)


# ----------------------------------------------------------------------------------------------------------- folders
def check_work_dir(work_dir: str) -> None:
    """Create a folder and raise unless files can be written there."""
    try:
        os.makedirs(work_dir, exist_ok=True)
        with tempfile.TemporaryFile(dir=work_dir) as probe:
            probe.write(bytes(1 << 16))
            probe.flush()
            os.fsync(probe.fileno())
    except FileExistsError:
        raise UserFileError(f'{work_dir} is a file, not a folder; use another --work-dir.') from None
    except OSError as error:
        raise UserFileError(f'{work_dir} cannot be written to: {error.strerror}; use another --work-dir.') from error


def check_unused(cfg: Config, args: argparse.Namespace) -> None:
    """Raise if another run trains in this one's folders: the two would write over each other."""
    for folder in run_folders(cfg, args):
        holder = writing.lock_holder(folder / writing.RUN_LOCK)
        if holder:
            raise UserFileError(f'work dir {folder} is in use: {holder}. Wait for it, or give another --work-dir.')


@contextlib.contextmanager
def claimed(cfg: Config, args: argparse.Namespace) -> Iterator[None]:
    """Inside, the folders of a run are its own. The first of its processes holds their locks, for all."""
    with contextlib.ExitStack() as held:
        for folder in run_folders(cfg, args):
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(writing.locked(folder / writing.RUN_LOCK))
        yield


def run_folders(cfg: Config, args: argparse.Namespace) -> List[Path]:
    """The folders that this process locks: the work dir and, if that is another one on a disk, that of the checkpoints.

    None unless it is the first process of its run, or starts the first.
    """
    variable = RANK_VARIABLES.get(args.launcher, {}).get('RANK', 'NODE_RANK' if args.gpus else '')
    if int(os.environ.get(variable) or 0) != 0:
        return []
    return [folder for folder in dict.fromkeys([Path(cfg.work_dir), checkpoint_dir(cfg)]) if folder is not None]


def check_free_space(runner: Runner) -> None:
    """Raise if the disk cannot hold one checkpoint: weights and two states of the optimizer, 4 bytes each."""
    folder = checkpoint_dir(runner.cfg)
    if folder is None or runner.rank != 0 or not any(hasattr(hook, 'max_keep_ckpts') for hook in runner.hooks):
        return
    size = 3 * 4 * sum(parameter.numel() for parameter in runner.model.parameters())
    free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
    if free < size:
        raise UserFileError(f'work dir {folder} has {free >> 20} MiB free, a checkpoint takes about {size >> 20} MiB.')


# ------------------------------------------------------------------------------------------------------- checkpoints
def set_resume(cfg: Config, resume: Optional[str], overwrite: bool = False) -> None:
    """Decide where training starts: ``--resume``, ``resume`` and ``load_from`` of the config, or the beginning."""
    work_dir = Path(cfg.work_dir)
    for folder in filter(None, (work_dir, checkpoint_dir(cfg))):
        own_folder(folder)
    if resume is None and cfg.resume:
        resume = cfg.load_from or 'auto'
    if resume == 'auto':
        found = latest_checkpoint(work_dir, print_once) or next(reversed(saved_checkpoints(checkpoint_dir(cfg))), None)
        if found is None:
            print_once(f'--resume auto: no checkpoint in {work_dir}, training starts from the beginning.')
        else:
            print_once(f'--resume auto: resuming from {found}.')
            cfg.load_from = check_checkpoint(found, to_resume=True)
        cfg.resume = found is not None
    elif resume is not None:
        cfg.load_from, cfg.resume = check_checkpoint(resume, to_resume=True), True
    elif saved_checkpoints(checkpoint_dir(cfg)) and not overwrite:
        newest = saved_checkpoints(checkpoint_dir(cfg))[-1]
        ways = 'resume with --resume, replace them with --overwrite, or give another --work-dir'
        raise UserFileError(f'work dir {newest.parent} holds checkpoints up to {newest.name}: {ways}.')
    if cfg.load_from and not cfg.resume:
        cfg.load_from = check_checkpoint(cfg.load_from)
    saved = parse_name(Path(cfg.load_from)) if cfg.resume else None
    length = cfg.train_cfg.get(f'max_{saved.unit}s') if saved else None
    if length and saved.step >= length:
        longer = f'--cfg-options train_cfg.max_{saved.unit}s={2 * saved.step}'
        print_once(f'{saved.path} is the last checkpoint of a finished run. To train longer: {longer}')


def checkpoint_dir(cfg: Config) -> Optional[Path]:
    """Where a run's checkpoints go: its work dir or, with ``checkpoint.out_dir``, a folder of the same name there.

    None if that is not on a disk of this machine.
    """
    work_dir = Path(cfg.work_dir)
    out_dir = checkpoint_out_dir(cfg)
    if out_dir and '://' in str(out_dir):
        return None
    return work_dir if not out_dir or Path(out_dir) == work_dir else Path(out_dir).absolute() / work_dir.name


def set_aside(runner: Runner) -> None:
    """Move the checkpoints of an older run out of the way, into ``replaced-<time>``: they are not this run's.

    A run that is killed before its first checkpoint would else resume from them, and a folder of a run stands for its
    best checkpoint. Called by every process; the first of all moves.
    """
    folder = checkpoint_dir(runner.cfg)
    there = folder is not None and folder.is_dir()
    old = [*saved_checkpoints(folder), *best_checkpoints(folder)] if there else []
    target = folder / f'replaced-{runner.timestamp}' if there else None
    start = runner._load_from or ''
    if start and '://' not in start and Path(start).resolve() in [path.resolve() for path in old]:
        runner._load_from = str(target / Path(start).name)
    barrier()  # all have looked
    if runner.rank == 0 and old:
        target.mkdir()
        for path in old:
            path.rename(target / path.name)
        (Path(runner.work_dir) / 'last_checkpoint').unlink(missing_ok=True)
        runner.logger.info(f'--overwrite: moved {len(old)} checkpoints of an older run to {target}.')
    barrier()


def restarts() -> int:
    """How often this run was started again, by torchrun, Slurm or slurm_train.sh."""
    names = ('TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT', 'MMRM_RESTARTS')
    return sum(int(os.environ.get(name) or 0) for name in names)


def start_note(cfg: Config) -> Tuple[Path, str]:
    """The file in which a node notes the launch that trains in a work dir, and the name of this launch, '' for none.

    A launch keeps its name when it starts its processes again.
    """
    job = os.environ.get('SLURM_JOB_ID')
    name = os.environ.get('MMRM_LAUNCH') or (f'slurm-{job}' if job else '')
    node = os.environ.get('GROUP_RANK') or os.environ.get('SLURM_NODEID') or '0'
    return Path(cfg.work_dir) / f'.launch-{node}', name


def note_start(cfg: Config) -> None:
    """Note that the checkpoints in the work dir are this launch's, from now on. Called by every process."""
    path, name = start_note(cfg)
    if name and local_rank() == 0:
        writing.write_text(path, name, overwrite=True)


def is_restart(cfg: Config) -> bool:
    """Whether this launch has trained here before and left checkpoints: it resumes from them, whatever the options say.

    Before that a restart does what the first start should have done.
    """
    path, name = start_note(cfg)
    if not (restarts() and name and path.is_file() and path.read_text() == name):
        return False
    return bool(saved_checkpoints(checkpoint_dir(cfg)))


def check_checkpoint(path, to_resume: bool = False) -> str:
    """Raise unless a checkpoint can be read safely and, to resume from it, is whole. Returns its absolute path.

    The folder of a run stands for its best checkpoint, else its last; to resume, for its last. One at ``http(s)://`` or
    ``torchvision://`` is downloaded; other addresses are mmengine's, returned as they are.
    """
    if '://' in str(path) and not str(path).startswith(('http://', 'https://', 'torchvision://')):
        return str(path)
    folder = paths.find(path)
    path = (to_resume and folder.is_dir() and latest_checkpoint(folder, print_once)) or find_checkpoint(path)
    path = path.absolute()
    if not is_reporting_process():  # one process of a node reads the file for all
        return str(path)
    checkpoint = read_checkpoint(path)
    if not isinstance(checkpoint, dict):
        raise UserFileError(f'checkpoint {path} holds a {type(checkpoint).__name__}, not a dict of weights.')
    if to_resume:
        missing = [key for key in ('meta', 'state_dict', 'message_hub', 'optimizer') if key not in checkpoint]
        if missing:
            start = f'To start a new run from its weights: --cfg-options load_from={path}'
            raise UserFileError(f'checkpoint {path} has no {", ".join(missing)}, which a resume needs. {start}')
    return str(path)


# ----------------------------------------------------------------------------------------------------------- devices
def choose_device(asked: Optional[str] = None) -> str:
    """The device of this run: what was asked for (``--device``, ``MMRM_DEVICE``), else the accelerator.

    Raises:
        UserError: If there is no accelerator and the CPU was not asked for.
    """
    asked = asked or os.environ.get('MMRM_DEVICE') or None
    if asked not in (None, *DEVICES):
        raise UserValueError(f'MMRM_DEVICE={asked} must be {" or ".join(DEVICES)}.')
    if asked == 'cpu':
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
        device_utils.DEVICE = 'cpu'
    elif get_device() == 'cpu' or asked not in (None, get_device()):
        raise UserError(f'torch found no {asked or "GPU"} device. To use the CPU: --device cpu or MMRM_DEVICE=cpu.')
    return get_device()


def check_gpus(processes: int, device: str) -> None:
    """Raise if a node has fewer GPUs than processes."""
    count = getattr(getattr(torch, device, None), 'device_count', lambda: 1)
    if device != 'cpu' and processes > count():
        raise UserValueError(f'{processes} processes on this node, which has {count()} GPU(s); each process needs one.')


def set_launcher(cfg: Config, args: argparse.Namespace, device: str) -> None:
    """``--launcher``: check that the launcher's variables are there and that the node has the GPUs."""
    cfg.launcher = args.launcher
    if args.launcher == 'none':
        return
    missing = [name for name in RANK_VARIABLES[args.launcher].values() if name not in os.environ]
    if missing:
        how = dict(pytorch='tools/dist_train.sh (torchrun)', slurm='tools/slurm_train.sh (srun)')
        by = how[args.launcher]
        raise UserValueError(f'--launcher {args.launcher} is for processes of {by}: {", ".join(missing)} not set.')
    check_gpus(max(local_rank() + 1, int(os.environ.get('LOCAL_WORLD_SIZE', 1))), device)
