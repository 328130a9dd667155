#!/usr/bin/env python
"""One page of runs: curves, results beside the paper's, differences, configs. A file, or live."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.report import main  # noqa: E402

if __name__ == '__main__':
    main()
