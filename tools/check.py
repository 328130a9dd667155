"""Check a config before a long run: the model builds, its weights arrive, its data is there, its images are whole."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.check import main  # noqa: E402

if __name__ == '__main__':
    main()
