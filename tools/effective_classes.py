#!/usr/bin/env python
"""How many classes the labels of Mixup, CutMix and RecursiveMix hold above a threshold; nothing is trained."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.effective_classes import main  # noqa: E402

if __name__ == '__main__':
    main()
