"""Convert a checkpoint of the RecursiveMix authors' code to mmpretrain's layout."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.convert import main  # noqa: E402

if __name__ == '__main__':
    main()
