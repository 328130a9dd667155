"""What dist_train.sh and dist_test.sh run: ``dist.py {train,test} CONFIG [CHECKPOINT] GPUS [options]``."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.cli.dist import main  # noqa: E402

if __name__ == '__main__':
    main()
