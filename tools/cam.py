#!/usr/bin/env python
"""Class activation maps of several checkpoints side by side: of image files, or of RM-mixed test images."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.cam import main  # noqa: E402

if __name__ == '__main__':
    main()
