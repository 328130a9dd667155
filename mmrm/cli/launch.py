"""What tools/train.py, test.py and the dist scripts do: read the command line, check everything cheap, run.

A mistake of the user ends in one line on stderr and exit code 2, before long work starts where that is possible. A bug
keeps its traceback; ``--traceback`` (or ``MMRM_TRACEBACK=1``) shows that of a mistake as well.
"""

import argparse
import contextlib
import errno
import json
import logging
import os
import re
import sys
import time
import traceback
from typing import Iterator, Optional, Sequence

import torch
from mmengine.config import Config
from mmengine.registry import RUNNERS

from .. import core
from ..datasets.locate import find_data
from ..engine import stopping, supervision
from ..engine.classes import check_classes
from ..engine.hooks.check_classes import check_runner_classes
from ..engine.hooks.crash_safe_checkpoint import CrashSafeCheckpointHook
from ..engine.runner import RANK_VARIABLES, Runner, TestRunner
from ..utils import paths
from ..utils.config import read_config, require
from ..utils.errors import UserError, UserFileError, UserValueError, cli, one_line
from ..utils.files import write_text
from ..utils.processes import local_rank, warn
from ..weights import check_placement
from ..weights.strict import UNUSED_IN_TEST, check_weights, init_cfgs, unwrapped
from . import preflight
from .gpu_defaults import set_gpu_defaults
from .options import Parser, natural, positive
from .processes import (
    check_port,
    follow_parent,
    leave_processes,
    leave_stopped,
    meets_through_file,
    port_message,
    read_limits,
    read_nodes,
    run_processes,
    supervised,
)


# ---------------------------------------------------------------------------------------------------- command line
def train_parser(processes: bool = False) -> argparse.ArgumentParser:
    """The options of train.py; with ``processes``, those of dist_train.sh."""
    parser = Parser(
        prog='mmrm dist train' if processes else 'mmrm train',
        description='Train a classification, detection or segmentation config.',
        allow_abbrev=False,
    )
    parser.add_argument('config', help='config file, from the current folder, the checkout or its configs/')
    if processes:
        parser.add_argument('gpus', type=positive, metavar='GPUS', help='processes on this node, one a GPU')
    parser.add_argument('--work-dir', help='for checkpoints and logs (default: work_dirs/<regulariser>/<config>)')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='PATH|auto',
        help='go on from a checkpoint; without a path (or with "auto"), from the newest of the work dir',
    )
    parser.add_argument(
        '--overwrite',
        action='store_true',
        help='start anew in a work dir that holds checkpoints, which go to replaced-<time> in it',
    )
    parser.add_argument('--amp', action='store_true', help='automatic mixed precision')
    parser.add_argument(
        '--auto-scale-lr', action='store_true', help='multiply the lr by batch size / auto_scale_lr.base_batch_size'
    )
    parser.add_argument('--no-validate', action='store_true', help='train without validation')
    parser.add_argument('--seed', type=natural, help='random seed; the default work dir ends in seed<N> then')
    add_common_options(parser)
    return parser


def test_parser(processes: bool = False) -> argparse.ArgumentParser:
    """The options of test.py; with ``processes``, those of dist_test.sh."""
    parser = Parser(
        prog='mmrm dist test' if processes else 'mmrm test',
        description='Test a classification, detection or segmentation config.',
        allow_abbrev=False,
    )
    parser.add_argument('config', help='config file, from the current folder, the checkout or its configs/')
    parser.add_argument('checkpoint', help="checkpoint file, or a run's folder (its best, else its last)")
    if processes:
        parser.add_argument('gpus', type=positive, metavar='GPUS', help='processes on this node, one a GPU')
    parser.add_argument('--work-dir', help='for logs (default: work_dirs/<regulariser>/<config>)')
    parser.add_argument('--out', type=os.path.expanduser, help='file for the metrics (.json) or the predictions (.pkl)')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing --out file')
    parser.add_argument('--tta', action='store_true', help="augment: the config's tta_model and tta_pipeline")
    add_common_options(parser)
    return parser


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add what both tools take."""
    parser.add_argument(
        '--device',
        choices=preflight.DEVICES,
        help="default: the GPU (on a Mac, torch's mps), an error where there is none; MMRM_DEVICE=cpu is --device cpu",
    )
    parser.add_cfg_options('settings that replace those of the config, e.g. train_dataloader.batch_size=32')
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none', help='job launcher')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument('--traceback', action='store_true', help='the whole traceback also for mistakes in the input')


# ------------------------------------------------------------------------------------------------------ entry points
@cli
def train(argv: Optional[Sequence[str]] = None) -> None:
    """``tools/train.py``. ``argv`` defaults to the command line."""
    args = train_parser().parse_args(argv)
    start_process(args)
    with supervised(local_rank()):
        try:
            train_supervised(args)
            return
        except stopping.Stopped as error:
            stop = error.with_traceback(None)  # whose frames hold on to the data-loader's workers
        leave_stopped(stop)


def train_supervised(args: argparse.Namespace) -> None:
    """Train to the end, or until :class:`mmrm.engine.stopping.Stopped` is raised."""
    with messages(args), contextlib.ExitStack() as held, contextlib.ExitStack() as waiting:
        if args.launcher != 'none':  # one that left by itself would leave the others waiting
            waiting.enter_context(stopping.deferred())
        with same_on_every_process(args):
            cfg = prepare_train(args)
            held.enter_context(preflight.claimed(cfg, args))
            runner = build_runner(cfg)
            preflight.check_free_space(runner)
            check_placement(runner.model)
            if cfg.resume:
                check_weights(runner.model, cfg.load_from)
                forget_weights(runner.model)
            runner.train_loop, runner.val_loop  # noqa: B018, builds the data sets, which train() does first too
            check_runner_classes(runner)
        waiting.enter_context(stopping.deferred())
        supervision.beat('began', 1)
        if args.overwrite and not cfg.resume:
            preflight.set_aside(runner)
        preflight.note_start(cfg)
        if not saves_on_signals(runner):
            waiting.close()
            stopping.check()
        with same_on_every_process(args):
            try:
                runner.train()
            finally:
                end_workers(runner)
        held.close()
        leave_processes()


@cli
def test(argv: Optional[Sequence[str]] = None) -> None:
    """``tools/test.py``. ``argv`` defaults to the command line."""
    args = test_parser().parse_args(argv)
    start_process(args)
    supervision.join(local_rank())
    with messages(args):
        with same_on_every_process(args):
            cfg = prepare_test(args)
            runner = build_runner(cfg, TestRunner)
            check_weights(runner.model, cfg.load_from, unused=UNUSED_IN_TEST)
        if args.out and not args.out.endswith('.json'):
            runner.test_evaluator.metrics.append(dump_results(runner.model, args.out))
        metrics = runner.test()
        if runner.rank == 0:
            report_metrics(metrics, args.out)
        leave_processes()


@cli
def dist(argv: Optional[Sequence[str]] = None) -> None:
    """``tools/dist.py {train,test} CONFIG [CHECKPOINT] GPUS [options]``: check everything cheap, start the processes.

    One process a GPU on each of ``NNODES`` nodes; this one is number ``NODE_RANK``; node 0 listens at
    ``MASTER_ADDR:PORT``.
    """
    task, *argv = sys.argv[1:] if argv is None else argv
    names = {'train': 'CONFIG GPUS', 'test': 'CONFIG CHECKPOINT GPUS'}[task]
    positionals = len(names.split())
    parser = {'train': train_parser, 'test': test_parser}[task](processes=True)
    args = parser.parse_args(argv)
    if any(arg.startswith('-') for arg in argv[:positionals]):
        parser.error(f'{names} come first, options after them')
    os.environ.pop('LOCAL_RANK', None)
    follow_parent('none')
    with messages(args):
        nodes, node_rank, address, port = read_nodes(os.environ)
        read_limits(os.environ)
        device = preflight.choose_device(args.device)
        preflight.check_gpus(args.gpus, device)
        if node_rank == 0 and not meets_through_file(nodes, os.environ):
            check_port(port)
        {'train': prepare_train, 'test': prepare_test}[task](args)
        # One thread a process, as torchrun and mmengine choose (and warn about); processes on the CPU share its cores.
        for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
            os.environ.setdefault(name, str(max(1, os.cpu_count() // args.gpus) if device == 'cpu' else 1))
        os.environ['MMRM_PARENT'] = str(os.getpid())
        script = paths.shipped() / 'tools' / f'{task}.py'
        worker = [*argv[: positionals - 1], *argv[positionals:], '--launcher', 'pytorch']
        run_processes(args.gpus, nodes, node_rank, address, port, [str(script), *worker], saves=task == 'train')


# ------------------------------------------------------------------------------------------------------- before a run
def start_process(args: argparse.Namespace) -> None:
    """What every process does first."""
    variable = RANK_VARIABLES.get(args.launcher, {}).get('LOCAL_RANK', '')
    os.environ['LOCAL_RANK'] = os.environ.get(variable, str(args.local_rank))
    # A full disk must not print a traceback for every line of the log; the checkpoint's error is the one that counts.
    logging.raiseExceptions = False
    follow_parent(args.launcher)


def prepare_train(args: argparse.Namespace) -> Config:
    """The config of a training run: options merged in, data found, checkpoint and work dir checked."""
    config = paths.find_config(args.config)
    cfg = read_config(config, args.cfg_options)
    require(cfg, config, 'model', 'train_dataloader', 'train_cfg', 'optim_wrapper')
    preflight.check_runner(cfg)
    device = preflight.choose_device(args.device)
    preflight.set_launcher(cfg, args, device)
    preflight.check_optimizer(cfg)
    preflight.check_schedule(cfg)
    preflight.check_file_names(cfg)
    preflight.check_sync_bn(cfg, args, device)
    preflight.check_batch_augments(cfg)
    if args.seed is not None:
        cfg.randomness = dict(cfg.get('randomness') or {}, seed=args.seed)
    if args.no_validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    if args.amp:
        preflight.set_amp(cfg, device)
    preflight.check_precision(cfg, device)
    set_gpu_defaults(cfg, device, args.amp)
    if args.auto_scale_lr:
        preflight.set_auto_scale_lr(cfg, config)
    preflight.set_loader_defaults(cfg, device)
    find_data(cfg, ('train', 'val'))
    compare_classes(cfg, ('train', 'val'))
    default = paths.default_work_dir(config, args.seed)
    cfg.work_dir = args.work_dir = str(preflight.choose_work_dir(args.work_dir, cfg, default))
    preflight.check_unused(cfg, args)
    if preflight.is_restart(cfg):
        args.resume, args.overwrite = 'auto', False
    preflight.set_resume(cfg, args.resume, args.overwrite)
    if local_rank() == 0:
        preflight.check_work_dir(cfg.work_dir)
    return cfg


def prepare_test(args: argparse.Namespace) -> Config:
    """The config of a test run: options merged in, data found, checkpoint, work dir and output file checked."""
    config = paths.find_config(args.config)
    cfg = read_config(config, args.cfg_options)
    require(cfg, config, 'model', 'test_dataloader', 'test_cfg', 'test_evaluator')
    preflight.check_runner(cfg)
    device = preflight.choose_device(args.device)
    preflight.set_launcher(cfg, args, device)
    preflight.set_loader_defaults(cfg, device)
    find_data(cfg, ('test',))
    compare_classes(cfg, ('test',))
    if args.tta:
        preflight.set_tta(cfg, config)
    cfg.work_dir = args.work_dir = str(preflight.choose_work_dir(args.work_dir, cfg, paths.default_work_dir(config)))
    cfg.resume = False
    cfg.load_from = preflight.check_checkpoint(args.checkpoint)
    if local_rank() == 0:
        if args.out:
            preflight.check_out(args.out, args.overwrite)
        preflight.check_work_dir(cfg.work_dir)
    return cfg


def compare_classes(cfg: Config, parts: Sequence[str]) -> None:
    """Raise unless head, preprocessor and data agree on the classes, as far as that can be known without the data."""
    if local_rank() == 0:
        verdict = check_classes(cfg, parts)
        verdict.check()
        for warning in verdict.warnings:
            warn(warning)


def forget_weights(model: torch.nn.Module) -> None:
    """Take files of weights out of a model's initialisation, before a resume.

    The checkpoint holds all of it, and the file that the run started from may be gone.
    """
    for module in model.modules():
        given = init_cfgs(module)
        kept = [config for config in given if not config.get('checkpoint')]
        if len(kept) < len(given):
            module.init_cfg = kept or None


def saves_on_signals(runner: Runner) -> bool:
    """Whether a run that is asked to end saves first, and ends by itself."""
    return any(isinstance(hook, CrashSafeCheckpointHook) and hook.saves_on_signals(runner) for hook in runner.hooks)


def end_workers(runner: Runner) -> None:
    """End the workers of data loaders that keep them. Python's exit would wait five seconds for each."""
    for loop in (runner._train_loop, runner._val_loop):
        loader = getattr(loop, 'dataloader', None)
        iterator = getattr(loader, '_iterator', None)
        if hasattr(iterator, '_shutdown_workers'):
            iterator._shutdown_workers()
    if hasattr(runner._train_loop, 'dataloader_iterator'):
        runner._train_loop.dataloader_iterator = None


def build_runner(cfg: Config, kind: type = Runner) -> Runner:
    """The runner of a config: of the class ``kind``, unless the config names its own."""
    return RUNNERS.build(cfg) if 'runner_type' in cfg else kind.from_cfg(cfg)


# ---------------------------------------------------------------------------------------------------------- messages
def explain(error: BaseException, work_dir: Optional[str] = None) -> Optional[UserError]:
    """What a user can do about an error that is known to come from the input; None for everything else (a bug)."""
    if isinstance(error, UserError):
        return from_worker(error)
    text = one_line(error)
    frames = traceback.extract_tb(error.__traceback__)
    building = any('mmengine' in frame.filename and frame.name.startswith('build_') for frame in frames)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return UserFileError(
            f'{error.strerror}: work dir {work_dir} cannot be written to any more. Checkpoints in '
            'it are untouched; make room, then go on with --resume.'
        )
    if isinstance(error, KeyError) and ' registry' in text:
        return UserValueError(
            f'config: {text.partition(". ")[0].partition(": ")[2]}. Is the name right, and is the '
            'module that defines it in custom_imports?'
        )
    if isinstance(error, (ValueError, TypeError)) and frames and frames[-1].filename == core.__file__:
        return UserValueError(f'config: {error}' if building else str(error))
    if building and isinstance(error, TypeError) and 'argument' in text:
        return UserValueError(f'config: {text.partition(": ")[2]}')
    if isinstance(error, (FileNotFoundError, PermissionError)):
        lines = str(error).strip().splitlines()  # a data-loader worker puts its traceback before it
        return UserFileError(lines[-1] if lines else type(error).__name__)
    if 'stack expects each tensor to be equal size' in text:
        sizes = ' and '.join(f'{width} x {height}' for height, width in re.findall(r'\[\d+, (\d+), (\d+)\]', text)[-2:])
        return UserValueError(
            f'the images of a batch have different sizes ({sizes or text}): the pipeline has no step that gives all of '
            'them one size. Add one, e.g. RandomResizedCrop(scale=224) for training, ResizeEdge(scale=256, '
            'edge="short") and CenterCrop(crop_size=224) for validation.'
        )
    if 'failed to load image: ' in text or ('imdecode' in text and '!buf.empty()' in text):
        name = text.partition('failed to load image: ')[2]
        what = f'image {name} cannot be decoded' if name else 'an image file is empty'
        return UserFileError(f'{what}; mmrm check --data CONFIG lists every broken image.')
    if 'Class values must be' in text or (isinstance(error, IndexError) and text.endswith('is out of bounds.')):
        return UserValueError(
            f'a label is none of the classes 0 to num_classes - 1 of the head and the preprocessor ({text})'
        )
    if isinstance(error, ImportError) and building:
        return UserError(f'config: {text}')
    if isinstance(error, getattr(torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError)):
        return UserError(
            f'{text.partition(". ")[0]}. Try --amp, or a lower train_dataloader.batch_size together with '
            '--auto-scale-lr.'
        )
    if 'EADDRINUSE' in text or 'address already in use' in text.lower():
        return UserValueError(port_message(os.environ.get('MASTER_PORT', os.environ.get('PORT', '29500'))))
    return None


def from_worker(error: UserError) -> UserError:
    """A mistake that a data-loader worker met, without the traceback that torch puts before its line."""
    lines = str(error).strip().splitlines()
    if len(lines) < 2 or not lines[0].startswith('Caught '):
        return error
    return type(error)(re.sub(r'^[\w.]*Error: ', '', lines[-1]))


@contextlib.contextmanager
def messages(args: argparse.Namespace) -> Iterator[None]:
    """Turn known mistakes into a :class:`UserError`, which :func:`mmrm.utils.errors.cli` prints."""
    try:
        yield
    except Exception as error:
        told = explain(error, args.work_dir)
        if told is None:
            raise
        if args.traceback or os.environ.get('MMRM_TRACEBACK') == '1':
            traceback.print_exc()
        raise (told if told is error else type(told)(f'{told} (--traceback shows where)')) from None


@contextlib.contextmanager
def same_on_every_process(args: argparse.Namespace) -> Iterator[None]:
    """A mistake found here is found by every process of the node, as a rule: the first tells it at once, the others
    only if nothing has ended them by then."""
    try:
        yield
    except Exception as error:
        if local_rank() > 0 and explain(error, args.work_dir) is not None:
            time.sleep(10)  # until the launcher ends it: the first to leave ends all others, perhaps in mid-message
        raise


def report_metrics(metrics: dict, out: Optional[str] = None) -> None:
    """Print metrics and, for a ``.json`` file, write them."""
    for name, value in metrics.items():
        print(f'{name}: {value}')
    if not metrics:
        print('no metrics: the evaluator had nothing to measure (for COCO: no box above the score threshold)')
    if out and out.endswith('.json'):
        write_text(out, json.dumps(metrics, indent=2, default=float) + '\n', overwrite=True)


def dump_results(model: torch.nn.Module, out: str):
    """The metric that writes a model's predictions to a pickle file."""
    kinds = type(unwrapped(model)).__mro__
    if any(kind.__module__.startswith('mmdet.') for kind in kinds):  # masks as run lengths
        from mmdet.evaluation import DumpDetResults

        return DumpDetResults(out_file_path=out)
    from mmengine.evaluator import DumpResults

    return DumpResults(out_file_path=out)
