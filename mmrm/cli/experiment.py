"""Train RM, baseline, Mixup and CutMix on a part of CIFAR-10, several seeds each; what is finished is not repeated."""

import argparse
import shlex
import signal
import sys
from pathlib import Path
from typing import Optional, Sequence

from rich.console import Console

from ..experiments import cifar10 as experiment
from ..experiments import jobs, options, processes
from ..report.page import beside
from ..utils.errors import cli
from ..utils.files import check_out
from .options import Parser, natural


def parser() -> argparse.ArgumentParser:
    parser = Parser(prog='mmrm experiment', description=__doc__, allow_abbrev=False)
    parser.add_argument(
        '--methods', nargs='+', metavar='METHOD', help=f'some of {", ".join(experiment.METHODS)} (default: all)'
    )
    parser.add_argument(
        '--seeds',
        nargs='+',
        type=natural,
        metavar='N',
        help='for all methods (default: '
        + ', '.join(f'{name} {method.seeds}' for name, method in experiment.METHODS.items())
        + ')',
    )
    options.add(parser, 'work_dirs/experiment', 'all runs')
    parser.add_argument(
        '--float32',
        action='store_true',
        help='train not in bfloat16: for CPUs without kernels for it; takes about twice as long',
    )
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends the runs as Ctrl-C does
    console = Console(soft_wrap=True)
    root = Path(args.work_dir or experiment.default_root()).expanduser().absolute()
    results = Path(args.results).expanduser() if args.results else root / 'results.jsonl'
    check_out(results, overwrite=True)
    settings = {**(experiment.FLOAT32 if args.float32 else {}), **args.cfg_options}
    runs = experiment.plan(args.methods, args.seeds, root, settings, args.device)
    known = experiment.known_results(runs, results)
    waiting = [run for run in runs if run.name not in known]
    if args.dry_run:
        for run in runs:
            state = run.state() if run in waiting else 'finished'
            console.print(f'{state}: {shlex.join(run.command())}', markup=False, highlight=False)
        return

    def finished(run: experiment.Trial) -> str:
        result = experiment.result_of(run)
        experiment.add_result(results, result)
        return f'at {result["test"][str(run.epochs)]:.2f} after {processes.clock(3600 * result["hours"])} of training'

    console.print(f'{len(runs)} runs, {len(known)} of them finished already; results go to {results}', highlight=False)
    number = options.side_by_side(args, bfloat16=not args.float32) if waiting else 1
    done = not waiting or jobs.run_with_progress(waiting, number, args.device == 'cpu', console, finished)
    beside(root, lambda line: console.print(line, markup=False, highlight=False))
    if not done:
        sys.exit(1)
    console.print(f'all done; the table: python tools/experiment_result.py {results}', highlight=False)
