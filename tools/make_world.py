#!/usr/bin/env python
"""Generate the embedded data set: drawn objects in the layouts of ImageNet, COCO and ADE20K."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.make_world import main  # noqa: E402

if __name__ == '__main__':
    main()
