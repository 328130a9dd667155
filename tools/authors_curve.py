#!/usr/bin/env python
"""A run's validation curve over those of RecursiveMix's authors, also of a run that is still under way."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.authors_curve import main  # noqa: E402

if __name__ == '__main__':
    main()
