"""Run an ablation of the paper over its values and several seeds; what is finished is not repeated."""

import argparse
import os
import shlex
import signal
import sys
from typing import Optional, Sequence

from rich.console import Console
from rich.table import Table

from ..experiments import jobs, sweep
from ..report.page import beside
from ..utils.errors import cli
from .options import KeyValues, Parser, natural, positive


def parser() -> argparse.ArgumentParser:
    known = '; '.join(f'{name}: {", ".join(each.values)}' for name, each in sweep.SWEEPS.items())
    parser = Parser(prog='mmrm sweep', description=__doc__, epilog=f'Sweeps: {known}.', allow_abbrev=False)
    parser.add_argument('sweep', help=f'one of {", ".join(sweep.SWEEPS)}')
    parser.add_argument(
        '--setting',
        nargs='+',
        metavar='SETTING',
        help='where to run it: some of '
        f'{", ".join(sweep.SETTINGS)}, or RecursiveMix configs (default: those of the paper)',
    )
    parser.add_argument('--values', nargs='+', metavar='VALUE', help='some of its values (default: all)')
    parser.add_argument('--seeds', nargs='+', type=natural, default=[0, 1, 2], metavar='N', help='default: 0 1 2')
    parser.add_argument('--work-dir', help='holds <sweep>/<setting>/<value>/seed<N> (default: work_dirs/sweep)')
    parser.add_argument('--jobs', type=positive, metavar='N', help='runs at a time (default: 1; with --slurm no limit)')
    parser.add_argument('--gpus', type=positive, metavar='N', help='GPUs of a run (default: as its config is named)')
    parser.add_argument('--device', choices=('cuda', 'cpu'), help='as in train.py')
    parser.add_argument('--amp', action='store_true', help='as in train.py')
    parser.add_argument('--auto-scale-lr', action='store_true', help='as in train.py')
    parser.add_cfg_options('settings for all runs, as in train.py')
    parser.add_argument(
        '--slurm',
        nargs='*',
        action=KeyValues,
        metavar='KEY=VALUE',
        help='submit to Slurm (needs submitit), with options such as partition=gpu timeout_min=1440 cpus_per_task=8',
    )
    parser.add_argument('--dry-run', action='store_true', help='print the commands, start nothing')
    return parser


def show(console: Console, runs: list) -> None:
    """A table of where the runs stand."""
    table = Table('setting', 'value', 'seed', 'state', 'best top-1', 'last top-1')
    for row in sweep.summary(runs):
        numbers = ['' if row[key] is None else f'{row[key]:.2f}' for key in ('best', 'last')]
        table.add_row(row['setting'], row['value'], str(row['seed']), row['state'], *numbers)
    console.print(table)


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends the runs as Ctrl-C does
    console = Console(soft_wrap=True)
    given = [option for option, on in (('--amp', args.amp), ('--auto-scale-lr', args.auto_scale_lr)) if on]
    given += ['--device', args.device] if args.device else []
    cpu = (args.device or os.environ.get('MMRM_DEVICE')) == 'cpu'
    runs = sweep.plan(
        args.sweep, args.setting, args.seeds, args.values, args.work_dir, args.cfg_options, given, args.gpus, cpu
    )
    if args.dry_run:
        for run in runs:
            console.print(f'{run.state()}: {shlex.join(run.command())}', markup=False, highlight=False)
        return
    if args.slurm is not None:
        for run, job in sweep.run_on_slurm(runs, args.jobs, cpu, args.slurm):
            console.print(f'job {job}: {run.name}', markup=False, highlight=False)
        show(console, runs)
        return
    waiting = [run for run in runs if not run.finished()]
    console.print(f'{len(runs)} runs, {len(runs) - len(waiting)} of them finished already', highlight=False)
    done = jobs.run_with_progress(waiting, args.jobs or 1, cpu, console)
    show(console, runs)
    beside(runs[0].work_dir.parents[2], lambda line: console.print(line, markup=False, highlight=False))
    if not done:
        sys.exit(1)
