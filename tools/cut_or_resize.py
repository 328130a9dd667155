#!/usr/bin/env python
"""Why history needs resizing: cutting leaves classes in the label that the image no longer shows."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.cut_or_resize import main  # noqa: E402

if __name__ == '__main__':
    main()
