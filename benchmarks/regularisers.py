"""What a training step of every regulariser costs beside the baseline's, all in turn.

    python benchmarks/regularisers.py                                  # ResNet-50 at 224, batch 8
    python benchmarks/regularisers.py --depth 18 --size 64 --batch 16  # a smaller one

Each is the shipped ImageNet config, its network as deep and its images as large as asked for. What cannot be built here
(a package or a file that is missing) is left out and named.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import numpy as np
import torch

from mmrm.report import grids
from mmrm.report.published import FOLDERS
from mmrm.utils.errors import UserError, one_line
from mmrm.utils.paths import shipped
from tools.analysis import classifiers, efficiency
from tools.analysis.timing import interleaved, ratio

CONFIG = 'resnet50_8xb64_in1k.py'
HEADERS = ('Regulariser', 'Step (ms)', 'Beside the baseline (95 % interval)')


def steppers(args) -> dict:
    """Name of a regulariser -> a function that trains one step."""
    found = {}
    for name, folder in FOLDERS.items():
        path = shipped() / 'configs' / folder / CONFIG
        if not path.is_file():
            continue
        cfg = classifiers.load_config(path)
        cfg.model.backbone.depth = args.depth
        cfg.model.head.in_channels = 2048 if args.depth >= 50 else 512
        try:
            step = efficiency.stepper(cfg, args.batch, (args.size, args.size))
            step()
        except (UserError, ImportError, OSError) as error:
            print(f'{name}: left out, {one_line(error)}', file=sys.stderr)
            continue
        found[name] = step
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--depth', type=int, default=50, choices=(18, 34, 50, 101), help='of the ResNet (default: 50)')
    parser.add_argument('--size', type=int, default=224, help='side of the images in pixels (default: 224)')
    parser.add_argument('--batch', type=int, default=8, help='images of a step (default: 8)')
    parser.add_argument('--rounds', type=int, default=10, help='timed steps of each (default: 10)')
    args = parser.parse_args()
    with classifiers.seeded(0):
        steps = steppers(args)
        seconds = interleaved(steps, args.rounds)
    print(
        f'ResNet-{args.depth}, {args.size} x {args.size}, batch {args.batch}, {args.rounds} rounds; torch '
        f'{torch.__version__}, {torch.get_num_threads()} thread(s); load {os.getloadavg()[0]:.1f} on '
        f'{os.cpu_count()} cores'
    )
    lines = []
    for name, values in seconds.items():
        middle, low, high = ratio(values, seconds['Baseline'])
        lines.append([name, f'{1000 * np.median(values):.0f}', f'{middle:.3f} ({low:.3f} to {high:.3f})'])
    print('\n'.join(grids.render('markdown', HEADERS, lines, right=range(1, 3))))


if __name__ == '__main__':
    main()
