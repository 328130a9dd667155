"""Train or test in several processes, one a GPU: mmrm dist train CONFIG GPUS, mmrm dist test CONFIG CHECKPOINT GPUS."""

import sys
from typing import Optional, Sequence

from ..utils.errors import cli
from . import launch
from .options import Parser

TASKS = ('train', 'test')


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(
        prog='mmrm dist',
        description=__doc__,
        epilog='NNODES, NODE_RANK, MASTER_ADDR and PORT are for several nodes. The options of a task: '
        'mmrm dist train --help.',
        allow_abbrev=False,
    )
    parser.add_argument('task', choices=TASKS)
    parser.parse_args(argv[:1])
    launch.dist(argv)
