#!/usr/bin/env python
"""The tables of the transfer experiment and, if asked for, its figure."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.transfer_result import main  # noqa: E402

if __name__ == '__main__':
    main()
