#!/usr/bin/env python
"""Train RM, baseline, Mixup and CutMix on a part of CIFAR-10, several seeds each; what is finished is not repeated."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.experiment import main  # noqa: E402

if __name__ == '__main__':
    main()
