#!/usr/bin/env python
"""RM in minutes, on the CPU: it trains on photographs; shipped backbones are compared downstream."""

import os
import signal
import sys
from pathlib import Path
from typing import Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed
os.environ['CUDA_VISIBLE_DEVICES'] = ''
os.environ.setdefault('OMP_NUM_THREADS', '1')

from mmrm.cli.options import Parser, positive
from mmrm.utils.errors import cli


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    from projects.demo.stages import run_demo

    parser = Parser(prog='demo.sh', description=__doc__, allow_abbrev=False)
    parser.add_argument(
        '--work-dir', help='folder for what the demo writes (default: work_dirs/demo, or work_dirs/demo-quick)'
    )
    parser.add_argument(
        '--jobs',
        dest='jobs_at_once',
        metavar='N',
        type=positive,
        help='processes at once, one core each (default: all cores, at most 4)',
    )
    parser.add_argument('--quick', action='store_true', help='a few photographs and one epoch each; learns nothing')
    parser.add_argument(
        '--no-download',
        dest='download',
        action='store_false',
        help='do not fetch CIFAR-10 (139 MB) for the small images; without it they are left out',
    )
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends the runs as Ctrl-C does
    run_demo(**vars(args))


if __name__ == '__main__':
    main()
