#!/usr/bin/env python
"""RM in minutes, on the CPU: it trains on photographs; shipped backbones are compared downstream."""

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed
os.environ['CUDA_VISIBLE_DEVICES'] = ''
os.environ.setdefault('OMP_NUM_THREADS', '1')

if __name__ == '__main__':
    print('mmrm demo', flush=True)  # the packages take seconds to import
    from mmrm.cli.demo import main

    main()
