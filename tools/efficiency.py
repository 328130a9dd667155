#!/usr/bin/env python
"""What training costs: memory, FLOPs, parameters, and time relative to the first config, measured in turn."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.efficiency import main  # noqa: E402

if __name__ == '__main__':
    main()
