#!/usr/bin/env python
"""A gallery of what RecursiveMix feeds the network over successive iterations, next to other regularisers."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.mixed_batches import main  # noqa: E402

if __name__ == '__main__':
    main()
