"""What the imports cost: ``import mmrm``, and ``import mmrm.models`` beyond ``import mmpretrain.models``.

    python benchmarks/import_time.py                 # 5 fresh processes, about a minute

Each process imports mmrm, then mmpretrain.models, then mmrm.models, and takes the time of each: so all meet the same
machine. The first process, which fills the disk's cache, does not count. Exits with 1 if a median is above its limit.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

STEPS = ('mmrm', 'mmpretrain.models', 'mmrm.models')
LIMITS = {'mmrm': 0.1, 'mmrm.models': 0.5}  # seconds
PROGRAM = """
import importlib, time
for name in {steps!r}:
    start = time.perf_counter()
    if name == 'mmpretrain.models':
        importlib.import_module('mmrm.compat').apply()  # with transformers 5 it cannot be imported without
    importlib.import_module(name)
    print(time.perf_counter() - start)
"""


def measure(rounds: int) -> List[Tuple[float, ...]]:
    """Seconds of each of :data:`STEPS`, in each of several processes."""
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get('PYTHONPATH', '')])
    command = [sys.executable, '-W', 'ignore', '-c', PROGRAM.format(steps=STEPS)]
    environment = {**os.environ, 'PYTHONPATH': paths}
    found = []
    for _ in range(rounds + 1):
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        found.append(tuple(map(float, done.stdout.split())))
    return found[1:]


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5, help='processes (default: 5)')
    args = parser.parse_args(argv)
    failed = False
    for name, seconds in zip(STEPS, zip(*measure(args.rounds))):
        median, limit = statistics.median(seconds), LIMITS.get(name)
        failed |= limit is not None and median > limit
        bound = f'; the limit is {limit} s' if limit else ''
        print(f'import {name}: median {median:.3f} s, from {min(seconds):.3f} to {max(seconds):.3f} s{bound}')
    return int(failed)


if __name__ == '__main__':
    sys.exit(main())
