"""What ``import mmrm`` costs beyond torch and numpy, without OpenMMLab.

    python benchmarks/import_time.py                 # 15 fresh processes, about a minute

Each process imports torch and numpy, then mmrm, and takes the time of both: so the two meet the same machine, and the
seconds of torch do not drown the milliseconds of mmrm. OpenMMLab is hidden from them where it is installed. The first
process, which fills the disk's cache, does not count. Exits with 1 if the median is above a tenth of a second.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

LIMIT = 0.1  # seconds
PROGRAM = """
import sys, time
for name in ('mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg'):
    sys.modules[name] = None
start = time.perf_counter()
import torch, numpy
between = time.perf_counter()
import mmrm
print(between - start, time.perf_counter() - between)
"""


def measure(rounds: int) -> List[Tuple[float, float]]:
    """Seconds of torch and numpy, and of mmrm after them, in each of several processes."""
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get('PYTHONPATH', '')])
    found = []
    for _ in range(rounds + 1):
        done = subprocess.run(
            [sys.executable, '-c', PROGRAM],
            env={**os.environ, 'PYTHONPATH': paths},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        base, own = map(float, done.stdout.split())
        found.append((base, own))
    return found[1:]


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=15, help='processes (default: 15)')
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error(f'--rounds {args.rounds}: must be at least 1')
    found = measure(args.rounds)
    for name, values in zip(('torch and numpy', 'mmrm after them'), zip(*found)):
        print(
            f'{name}: median {statistics.median(values) * 1000:.1f} ms, from {min(values) * 1000:.1f} to '
            f'{max(values) * 1000:.1f} ms'
        )
    share = statistics.median(own / base for base, own in found)
    print(f'mmrm adds {share:.2%} to the import; the limit is {LIMIT * 1000:.0f} ms')
    return int(statistics.median(own for _, own in found) > LIMIT)


if __name__ == '__main__':
    sys.exit(main())
