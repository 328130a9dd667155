"""Train a classification, detection or segmentation config."""

import argparse
import contextlib
import sys
from typing import Optional, Sequence

from ..utils.errors import cli
from ..utils.processes import launched, leave
from .options import Parser, natural, start_process


def parser() -> Parser:
    """The options of ``mmrm train`` and ``tools/train.py``."""
    parser = Parser(prog='mmrm train', description=__doc__, allow_abbrev=False)
    parser.add_argument('config', help='config file, from the current folder, the checkout or its configs/')
    parser.add_argument('--work-dir', help='for checkpoints and logs (default: work_dirs/<regulariser>/<config>)')
    resume = 'resume from a checkpoint (default: the newest of the work dir)'
    parser.add_argument('--resume', nargs='?', const='auto', metavar='PATH', help=resume)
    overwrite = 'start again in a work dir that holds checkpoints; these go to replaced-<time>'
    parser.add_argument('--overwrite', action='store_true', help=overwrite)
    amp = 'mixed precision (default: bfloat16 where the device has it, else float16; with --resume as before)'
    parser.add_argument('--amp', nargs='?', const='auto', choices=('auto', 'float16', 'bfloat16'), help=amp)
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the lr by batch size / base_batch_size')
    parser.add_argument('--no-validate', action='store_true', help='train without validation')
    parser.add_argument('--seed', type=natural, help='random seed; the default work dir ends in seed<N> then')
    parser.add_run_options()
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train; ``argv`` defaults to the command line."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(argv)
    start_process(args)
    from ..engine import launch, signals  # takes seconds

    if args.gpus and args.launcher == 'none':
        from . import preflight

        preflight.launch('train', args, argv)
        return
    with signals.caught(count_interrupts=not launched()), launch.joined():
        try:
            train(args)
            return
        except signals.Stopped as error:
            stop = error.with_traceback(None)  # whose frames hold on to the data loader's workers
        launch.leave_stopped(stop)


def train(args: argparse.Namespace) -> None:
    """Train to the end, or until :class:`mmrm.engine.signals.Stopped` is raised."""
    from ..engine import signals

    with contextlib.ExitStack() as locks, contextlib.ExitStack() as waiting:
        if args.launcher != 'none':  # one that left by itself would leave the others waiting
            waiting.enter_context(signals.deferred())
        # Before the signals count again: one that follows a failure must not pass it off as a stop.
        waiting.push(lambda kind, *_: signals.ignore() if kind else None)
        from . import preflight

        cfg = preflight.prepare_train(args)
        locks.enter_context(preflight.claimed(cfg, args))
        runner = preflight.build_runner(cfg)
        preflight.check_runner(runner)
        waiting.enter_context(signals.deferred())
        if args.overwrite and not cfg.resume:
            preflight.set_aside(runner)
        preflight.note_start(cfg)
        if not preflight.saves_on_signals(runner):
            waiting.close()
            signals.begin_unsaved(lambda: preflight.describe_stop(runner))
        if runner.rank == 0:
            preflight.describe_start(runner)
        try:
            runner.train()
        finally:
            end_workers(runner)
        if runner.rank == 0:
            preflight.describe_result(runner, args.config)
    leave()


def end_workers(runner) -> None:
    """End the workers of data loaders that keep them. Python's exit would wait five seconds for each."""
    for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
        loader = getattr(loop, 'dataloader', None)
        iterator = getattr(loader, '_iterator', None)
        if hasattr(iterator, '_shutdown_workers'):
            iterator._shutdown_workers()
    if hasattr(runner._train_loop, 'dataloader_iterator'):
        runner._train_loop.dataloader_iterator = None
