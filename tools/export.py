"""Export trained weights: the backbone for mmdet and mmseg, or the classifier without RecursiveMix's RoI layer."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.export import main  # noqa: E402

if __name__ == '__main__':
    main()
