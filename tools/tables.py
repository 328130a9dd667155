#!/usr/bin/env python
"""The paper's tables, your runs beside the published numbers; what is missing comes with its command."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.tables import main  # noqa: E402

if __name__ == '__main__':
    main()
