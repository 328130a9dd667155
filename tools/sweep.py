#!/usr/bin/env python
"""Run an ablation of the paper over its values and several seeds; what is finished is not repeated."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.sweep import main  # noqa: E402

if __name__ == '__main__':
    main()
