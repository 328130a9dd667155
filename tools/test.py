"""Test a classification, detection or segmentation config; ``--help`` lists the options."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli import main  # noqa: E402

if __name__ == '__main__':
    main(['test', *sys.argv[1:]])
