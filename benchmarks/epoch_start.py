"""What the start of an epoch costs with workers that are started anew and with workers that stay (the configs' way).

    python benchmarks/epoch_start.py                   # a minute
    python benchmarks/epoch_start.py --workers 2       # instead of the configs' 4 and 8

The data loaders are those of the shipped configs, with a seed per sample as in training, on a few batches of generated
images: in memory for CIFAR, a JPEG of 500 x 375 for ImageNet. Timed is what the training loop waits for around an
epoch: from asking for an iterator to the first batch, and at its end until the workers are gone. Both loaders take
turns, epoch by epoch. With a large model in memory a start takes longer than here: forking copies the tables of a
process's memory.
"""

import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import numpy as np
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmpretrain.datasets import BaseDataset
from mmpretrain.registry import DATASETS

from benchmarks.common import make_parser, milliseconds, show, times
from benchmarks.input_speed import make_jpegs
from mmrm.engine.samplers import make_resumable
from mmrm.utils.paths import find_config

CONFIGS = {'CIFAR': 'baseline/resnet18_2xb64_cifar10.py', 'ImageNet': 'baseline/resnet50_8xb64_in1k.py'}


@DATASETS.register_module()
class InMemory(BaseDataset):
    """Images of 32 x 32, held as CIFAR's data sets hold theirs."""

    def __init__(self, number: int, **kwargs):
        self.number = number
        super().__init__(ann_file='', **kwargs)

    def load_data_list(self) -> list:
        images = np.random.RandomState(0).randint(0, 256, (self.number, 32, 32, 3), np.uint8)
        return [dict(img=image, gt_label=0) for image in images]


@DATASETS.register_module()
class OneFile(BaseDataset):
    """As many samples as asked for, all of one file."""

    def __init__(self, number: int, path: str, **kwargs):
        self.number, self.path = number, path
        super().__init__(ann_file='', **kwargs)

    def load_data_list(self) -> list:
        return [dict(img_path=self.path, gt_label=0) for _ in range(self.number)]


def build_loader(name: str, data: dict, workers: int, persistent: bool):
    """The training loader of a shipped config on other data, seeded as the training loops do it."""
    cfg = Config.fromfile(find_config(CONFIGS[name]))
    loader = cfg.train_dataloader
    loader.update(persistent_workers=persistent, num_workers=workers or loader.num_workers)
    loader.dataset = dict(pipeline=loader.dataset.pipeline, **data)
    built = Runner.build_dataloader(loader, seed=0)
    make_resumable(built, 0)
    return built


def one_epoch(loader) -> float:
    """Seconds until the first batch, and from the last one until the iterator is gone."""
    start = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    begun = time.perf_counter() - start
    for _ in iterator:
        pass
    start = time.perf_counter()
    del iterator
    return begun + time.perf_counter() - start


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--workers', type=int, default=0, help="of each loader; default: the config's")
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--batches', type=int, default=8, help='of an epoch')
    args = parser.parse_args()
    warnings.filterwarnings('ignore', message='.*worker processes')
    init_default_scope('mmpretrain')
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        [path] = make_jpegs(Path(folder), 1)
        data = {
            'CIFAR': dict(type='InMemory', number=64 * args.batches),
            'ImageNet': dict(type='OneFile', number=64 * args.batches, path=str(path)),
        }
        for name in CONFIGS:
            loaders = {stay: build_loader(name, data[name], args.workers, stay) for stay in (False, True)}
            seconds = {stay: [] for stay in loaders}
            for epoch in range(args.epochs + 1):
                for stay in sorted(loaders, reverse=bool(epoch % 2)):
                    spent = one_epoch(loaders[stay])
                    if epoch:  # in the first one both start their workers
                        seconds[stay].append(spent)
            waited = [milliseconds(seconds[stay]) for stay in (False, True)]
            faster = times(seconds[False], seconds[True], digits=1)
            rows.append([name, str(loaders[True].num_workers), *waited, faster])
            del loaders
    headers = ('data', 'workers', 'started anew: ms waited an epoch', 'staying', 'times faster (95 % interval)')
    show(f'{args.epochs} epochs', headers, rows)


if __name__ == '__main__':
    main()
