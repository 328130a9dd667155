#!/usr/bin/env python
"""The main job in small, on the CPU: pretrain with and without RM, fine-tune a detector and a segmentor, compare."""

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed
os.environ['CUDA_VISIBLE_DEVICES'] = ''
os.environ.setdefault('OMP_NUM_THREADS', '1')

import argparse  # noqa: E402


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--work-dir', help='folder for everything the demo writes (default: work_dirs/demo, or work_dirs/demo-quick)'
    )
    parser.add_argument('--jobs', type=int, help='processes at once, one core each (default: all cores, at most 4)')
    parser.add_argument('--quick', action='store_true', help='a tiny world and one epoch each; learns nothing')
    return parser.parse_args()


if __name__ == '__main__':
    arguments = parse()
    print('mmrm demo', flush=True)  # the packages take seconds to import
    from mmrm.demo.stages import run_demo
    from mmrm.utils.errors import cli

    cli(run_demo)(**vars(arguments))
