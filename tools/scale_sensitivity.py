#!/usr/bin/env python
"""Accuracy of classifiers when the test image is shrunk and pasted on grey or on an image of another class."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.scale_sensitivity import main  # noqa: E402

if __name__ == '__main__':
    main()
