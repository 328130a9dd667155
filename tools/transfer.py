#!/usr/bin/env python
"""Pretrain small backbones with baseline, CutMix, RM and Mixup, then fine-tune detectors and segmentors on them."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.transfer import main  # noqa: E402

if __name__ == '__main__':
    main()
