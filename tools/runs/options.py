"""Options that the commands of the experiments share."""

import argparse
import os
from pathlib import Path
from typing import Sequence, Tuple

from mmrm.cli.options import Parser, natural, positive
from mmrm.engine import optim_wrapper
from mmrm.utils.errors import UserValueError
from mmrm.utils.files import check_out
from mmrm.utils.paths import home
from mmrm.utils.processes import cores


def add(parser: Parser, methods: Sequence[str], seeds: str, work_dir: str, settings_for: str) -> None:
    """Which runs, where they go, how many at a time, on what, and with which settings."""
    parser.add_argument('--methods', nargs='+', choices=methods, default=methods, help='default: all')
    parser.add_argument('--seeds', nargs='+', type=natural, metavar='N', help=f'for all methods (default: {seeds})')
    parser.add_argument('--jobs', type=positive, metavar='N', help='runs at a time (default: one per core or GPU)')
    parser.add_argument('--work-dir', help=f'folder of the runs (default: {work_dir})')
    parser.add_argument(
        '--results',
        help='file of results, one per line; what is in it is not repeated (default: results.jsonl in the work dir)',
    )
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu', help='default: cpu')
    parser.add_cfg_options(f'settings for {settings_for}, as in train.py; the result is another experiment then')
    parser.add_argument('--dry-run', action='store_true', help='print the commands only')


def places(args: argparse.Namespace, work_dir: str) -> Tuple[Path, Path]:
    """The folder of the runs and the file of results, which can be written."""
    root = Path(args.work_dir or home() / work_dir).expanduser().absolute()
    results = Path(args.results).expanduser() if args.results else root / 'results.jsonl'
    check_out(results, overwrite=True)
    return root, results


def side_by_side(args: argparse.Namespace, bfloat16: bool = False) -> int:
    """How many runs at a time. On the CPU each gets one thread.

    Raises:
        UserValueError: If they train in bfloat16, and this CPU has no kernels for it.
    """
    if args.device != 'cpu':
        return args.jobs or 1
    if bfloat16 and not optim_wrapper.bfloat16_is_fast():
        raise UserValueError(
            'this CPU has no kernels for bfloat16, which would be far slower than float32; give '
            '--float32, which is another experiment with its own results.'
        )
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    return args.jobs or cores()


def one_of(what: str, value: str, allowed: Sequence[str]) -> str:
    """``value``, or an error that lists what is allowed."""
    if value not in allowed:
        raise UserValueError(f'unknown {what} {value!r}; allowed: {", ".join(allowed)}')
    return value
