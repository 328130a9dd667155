"""Train a classification, detection or segmentation config; ``--help`` lists the options."""

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed
asked = dict(zip(sys.argv, sys.argv[1:])).get('--device', os.environ.get('MMRM_DEVICE'))
if asked == 'cpu' or '--device=cpu' in sys.argv:
    os.environ['CUDA_VISIBLE_DEVICES'] = ''  # counts only before torch looks for a GPU

from mmrm.cli.train import main  # noqa: E402

if __name__ == '__main__':
    main()
