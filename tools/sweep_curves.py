#!/usr/bin/env python
"""Error against alpha and omega from the results of tools/sweep.py, mean and deviation over seeds."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.sweep_curves import main  # noqa: E402

if __name__ == '__main__':
    main()
