"""What a seed per sample costs: time of a sample of the shipped pipelines with and without it, in one process.

    python benchmarks/seeding.py                 # some seconds

The images are noise: 32 x 32 for CIFAR, a JPEG of 500 x 375 for ImageNet. A worker leaves the generators as the sample
left them; without workers, the process that trains gets its own back after every batch, of 64 here.
"""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401, isort: skip
import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope

from benchmarks.common import make_parser, show
from benchmarks.input_speed import make_jpegs
from mmrm.utils.paths import find_config
from mmrm.utils.random_state import kept_generators, seed_generators

BATCH = 64
CONFIGS = {
    'CIFAR': '_base_/datasets/cifar10_bs64.py',
    'ImageNet': '_base_/datasets/imagenet_bs64.py',
    'ImageNet, PVTv2': '_base_/datasets/imagenet_bs64_pvt.py',
}


def microseconds(function, number: int) -> float:
    """Median time of a call."""
    times = []
    for index in range(number):
        begin = time.perf_counter()
        function(index)
        times.append(time.perf_counter() - begin)
    return 1e6 * median(times)


def load(pipeline: Compose, image: dict, index: int) -> None:
    pipeline(dict(image, gt_label=0, sample_idx=index))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--number', type=int, default=2000, help='seeds to time; samples are a tenth of it')
    args = parser.parse_args()

    worker = microseconds(lambda index: seed_generators(0, 1, index), args.number)

    def batch(index: int) -> None:
        with kept_generators():
            for nth in range(BATCH):
                seed_generators(0, 1, index, nth)

    main_process = microseconds(batch, args.number // 10) / BATCH
    init_default_scope('mmpretrain')
    rng = np.random.RandomState(0)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        [path] = make_jpegs(Path(folder), 1)
        for name, config in CONFIGS.items():
            pipeline = Compose(Config.fromfile(find_config(config)).train_pipeline)
            image = dict(img_path=str(path))
            if name == 'CIFAR':
                image = dict(img=rng.randint(0, 256, (32, 32, 3), np.uint8))
            alone = microseconds(partial(load, pipeline, image), args.number // 10)
            shares = [f'{cost:.0f} us, {100 * cost / alone:.1f} %' for cost in (worker, main_process)]
            rows.append([name, f'{alone:.0f} us', *shares])
    headers = ('a sample of', 'by itself', 'its seed, in a worker', 'its seed, without workers')
    show(f'{args.number} seeds', headers, rows)


if __name__ == '__main__':
    main()
