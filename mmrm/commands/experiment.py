"""Train RM, baseline, Mixup and CutMix on a part of CIFAR-10, several seeds each; what is finished is not repeated."""

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Optional, Sequence

from rich.console import Console

from ..apis.launch import KeyValues, Parser, natural, positive
from ..engine import optim_wrapper
from ..experiments import cifar10 as experiment
from ..experiments import jobs, processes
from ..report.page import beside
from ..utils.errors import UserValueError, cli
from ..utils.files import check_out


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
    parser.add_argument('--jobs', type=positive, metavar='N', help='runs at a time (default: one a core, or one GPU)')
    parser.add_argument('--work-dir', help='holds <method>/seed<N> (default: work_dirs/experiment)')
    parser.add_argument(
        '--results',
        help='file of results, one a line; a run that is in it is not repeated '
        '(default: results.jsonl in the work dir)',
    )
    parser.add_argument(
        '--float32',
        action='store_true',
        help='not in bfloat16: for CPUs without kernels for it; takes about twice as long',
    )
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu', help='default: cpu')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=KeyValues,
        default={},
        metavar='KEY=VALUE',
        help='settings for all runs, as in train.py; the result is another experiment then',
    )
    parser.add_argument('--dry-run', action='store_true', help='print the commands, start nothing')
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends the runs as Ctrl-C does
    console = Console(soft_wrap=True)
    root = Path(args.work_dir or experiment.default_root()).expanduser().absolute()
    results = Path(args.results).expanduser() if args.results else root / 'results.jsonl'
    check_out(results, overwrite=True)
    options = {**(experiment.FLOAT32 if args.float32 else {}), **args.cfg_options}
    runs = experiment.plan(args.methods, args.seeds, root, options, args.device)
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
    cpu = args.device == 'cpu'
    if cpu and waiting and not args.float32 and not optim_wrapper.bfloat16_is_fast():
        raise UserValueError(
            'this CPU has no kernels for bfloat16, which would be far slower than float32; give '
            '--float32, which is another experiment with its own results.'
        )
    if cpu:
        os.environ.setdefault('OMP_NUM_THREADS', '1')
    side_by_side = args.jobs or (processes.cores() if cpu else 1)
    done = not waiting or jobs.run_with_progress(waiting, side_by_side, cpu, console, finished)
    beside(root, lambda line: console.print(line, markup=False, highlight=False))
    if not done:
        sys.exit(1)
    console.print(f'all done; the table: python tools/experiment_result.py {results}', highlight=False)
