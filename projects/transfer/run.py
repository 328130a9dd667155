#!/usr/bin/env python
"""Pretrain small backbones with baseline, CutMix, RM and Mixup, then fine-tune detectors and segmentors on them."""

import argparse
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import torch
from rich.console import Console

from mmrm.cli import jobs
from mmrm.cli.options import Parser
from mmrm.report.page import try_report
from mmrm.utils.errors import UserValueError, cli
from mmrm.utils.files import write_text
from mmrm.utils.processes import clock
from projects.cifar10 import run as cifar10
from projects.transfer import protocol as transfer
from tools.analysis import classifiers, scale_sensitivity
from tools.runs import options


def parser() -> argparse.ArgumentParser:
    parser = Parser(description=__doc__, allow_abbrev=False)
    options.add(parser, transfer.METHODS, '5, and 3 for mixup', transfer.WORK_DIR, 'all fine-tunings')
    for name, known in (('--tasks', list(transfer.TASKS)), ('--modes', list(transfer.MODES))):
        parser.add_argument(name, nargs='+', choices=known, default=known, help='default: all')
    parser.add_argument(
        '--shipped',
        action='store_true',
        help="seed 0: fine-tune the package's own backbones (float16; none of mixup) instead of pretraining them",
    )
    parser.add_cfg_options(
        'settings for all pretrainings, such as train_cfg.max_epochs=200; that is another experiment, too',
        '--pretraining',
    )
    return parser


def measure_alone(trial: cifar10.Trial) -> None:
    """Accuracy of a pretraining on whole test images of several sizes: a control in which nothing is pasted."""
    file = transfer.alone_file(trial)
    if not file.is_file() and trial.epochs in trial.checkpoints():
        torch.set_num_threads(1)  # of this thread: the other cores are at work
        trained = classifiers.load_classifier(trial.method, trial.config, trial.checkpoints()[trial.epochs])
        found = scale_sensitivity.accuracy_by_side([trained], transfer.SIDES, max(transfer.SIDES), images=2000)
        write_text(file, json.dumps(found[trial.method]) + '\n')


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends the runs as Ctrl-C does
    if args.shipped and args.pretraining:
        raise UserValueError('--shipped takes backbones that are pretrained already; --pretraining cannot change them.')
    console = Console(soft_wrap=True)
    root, results = options.places(args, transfer.WORK_DIR)
    trials = transfer.pretrainings(args.methods, args.seeds, root, args.device, args.pretraining)
    data = os.environ.get('MMRM_DATA', 'data')
    transfer.check_data(args.tasks, data)
    transfer.check_apart(trials, args.tasks)
    cpu = args.device == 'cpu'
    if args.dry_run:
        for trial in trials:
            taken = args.shipped and transfer.is_shipped(trial)
            what = transfer.shipped_weights(trial.method) if taken else shlex.join(trial.command())
            state = 'from the package' if taken else trial.state()
            console.print(f'{state}: {what}', markup=False, highlight=False)
        console.print(f'and on each of them: {", ".join(args.tasks)}; {" and ".join(args.modes)}', highlight=False)
        return
    number = options.side_by_side(args)
    transfer.prepare_data(args.tasks, data)

    def finished(run: jobs.Job) -> str:
        if isinstance(run, cifar10.Trial):
            measure_alone(run)
            transfer.backbone_of(run)  # last: its fine-tunings wait for it
            return f'at {run.validations()[run.epochs]:.2f}'
        result = transfer.result_of(run)
        transfer.add_result(results, result)
        return f'at {result["value"]:.2f} after {clock(3600 * result["hours"])} of training'

    console.print(f'results go to {results}', highlight=False)
    # Seed by seed, so that a comparison is there as early as can be. All are looked at before the first one starts.
    queue: List[jobs.Job] = []
    for seed in dict.fromkeys(trial.seed for trial in trials):
        mine = [trial for trial in trials if trial.seed == seed]
        runs = transfer.plan(mine, args.tasks, args.modes, root, args.cfg_options, args.device, args.shipped)
        left = transfer.unknown(runs, results)
        console.print(
            f'seed {seed}: {len(runs)} fine-tunings, {len(runs) - len(left)} finished already', highlight=False
        )
        for trial in [trial for trial in mine if any(run.pretraining is trial for run in left)]:
            if args.shipped and transfer.is_shipped(trial):
                transfer.backbone_of(trial, shipped=True)
            elif transfer.backbone_file(trial).is_file():
                measure_alone(trial)
            else:
                queue.append(trial)
        queue += left
    states = jobs.run_all(queue, number, cpu, print, finished, transfer.may_begin)
    if set(states.values()) - {'finished'}:
        console.print('not all runs are finished; run the same command to resume.', highlight=False)
        sys.exit(1)
    try_report(root)
    console.print(f'all done; the tables: python projects/transfer/table.py {results}', highlight=False)


if __name__ == '__main__':
    main()
