"""Steps per second of the shipped training loop against a bare PyTorch loop of the same network, on small images.

    python benchmarks/loop.py                      # the CIFAR-10 experiment's configs, one thread, some minutes
    python benchmarks/loop.py --float32

The shipped side is mmengine's Runner with the config's pipeline, preprocessor, hooks and log. The bare side has all
images in one tensor, crops and flips whole batches, and does forward, backward and step, nothing else; for RM it calls
mmrm.core. Both train in one process, a step of one and a step of the other in turn; what the shipped loop does at an
epoch's start and end counts for it. The images are noise: no data set is needed.

--float32 is for CPUs without kernels for bfloat16.
"""

import copy
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.hooks import Hook
from mmpretrain.datasets import BaseDataset
from mmpretrain.registry import DATASETS

from benchmarks.common import make_parser, milliseconds, show, times
from mmrm.core import Consistency, RecursiveMix, pool
from mmrm.datasets.seeding import Draw
from mmrm.engine.runner import Runner
from mmrm.models.data_preprocessor import recursive_mixes
from mmrm.utils.paths import find_config
from projects.cifar10.run import CONFIG, FLOAT32
from tools.analysis.timing import interleaved


@DATASETS.register_module()
class Noise(BaseDataset):
    """Images of CIFAR's size with ten classes."""

    METAINFO = dict(classes=tuple('abcdefghij'))

    def __init__(self, number: int, **kwargs):
        self.number = number
        super().__init__(ann_file='', **kwargs)

    def load_data_list(self) -> list:
        rng = np.random.RandomState(0)
        return [
            dict(img=rng.randint(0, 256, (32, 32, 3), dtype=np.uint8), gt_label=index % 10)
            for index in range(self.number)
        ]


class Bare:
    """A loop of plain PyTorch around a classifier's backbone."""

    def __init__(self, runner: Runner, precision: torch.dtype, channels_last: bool):
        model, dataset = copy.deepcopy(runner.model), runner.train_dataloader.dataset
        self.model = model.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        self.batch, self.precision = runner.train_dataloader.batch_size, precision
        images = [dataset.get_data_info(index)['img'] for index in range(len(dataset))]
        self.images = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
        self.labels = torch.from_numpy(dataset.get_gt_labels())
        self.mean, self.std = model.data_preprocessor.mean, model.data_preprocessor.std
        augments = recursive_mixes(model.data_preprocessor)
        self.rm, self.consistency = None, None
        if augments:
            classes, omega = model.head.num_classes, model.head.omega
            self.rm = RecursiveMix(augments[0].alpha, num_classes=classes)
            self.consistency = Consistency(model.head.in_channels, classes, omega)
        parameters = [*model.backbone.parameters(), *model.head.fc.parameters()]
        parameters += self.consistency.parameters() if augments else []
        settings = {key: value for key, value in runner.cfg.optim_wrapper.optimizer.items() if key != 'type'}
        self.optimizer = torch.optim.SGD(parameters, **settings)

    def steps(self) -> Iterator[None]:
        order = torch.randperm(len(self.images))
        if self.rm is not None:
            self.rm.reset()
        for begin in range(0, len(order) - self.batch + 1, self.batch):
            chosen = order[begin : begin + self.batch]
            inputs, labels = (self.crop(self.images[chosen]) - self.mean) / self.std, self.labels[chosen]
            mix = None
            if self.rm is not None:
                inputs, labels, mix = self.rm.mix(inputs, labels)
            with torch.autocast('cpu', self.precision, enabled=self.precision != torch.float32):
                feature_map = self.model.backbone(inputs)[-1]
                mean, region = (feature_map.mean((2, 3)), None) if mix is None else pool(feature_map, mix)
                scores = self.model.head.fc(mean)
                loss = 0 if mix is None else self.consistency(mix, region, scores)
            loss = loss + F.cross_entropy(scores.float(), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            yield

    @staticmethod
    def crop(images: torch.Tensor) -> torch.Tensor:
        """A random crop of the image padded by 4, and a random flip, of a whole batch."""
        number = len(images)
        padded = F.pad(images, (4, 4, 4, 4))
        rows = torch.randint(0, 9, (number, 1)) + torch.arange(32)
        columns = torch.randint(0, 9, (number, 1)) + torch.arange(32)
        columns = torch.where(torch.rand(number, 1) < 0.5, columns.flip(1), columns)
        return (
            padded[torch.arange(number)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
            .permute(0, 3, 1, 2)
            .float()
        )


class InTurn(Hook):
    """After every step of the shipped loop, one of the bare loop, on a clock of its own."""

    priority = 'LOWEST'

    def __init__(self, bare: Bare):
        self.bare, self.seconds = bare, 0.0

    def before_train_epoch(self, runner) -> None:
        self.steps, self.seconds = self.bare.steps(), 0.0

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        start = time.perf_counter()
        next(self.steps)
        self.seconds += time.perf_counter() - start


def make_runner(method: str, args, folder: str) -> Runner:
    """The runner of a shipped config on noise, without validation and checkpoints."""
    cfg = Config.fromfile(find_config(f'configs/{method}/{args.config}.py'))
    cfg.merge_from_dict(FLOAT32 if args.float32 else {})
    pipeline = cfg.train_dataloader.dataset.pipeline
    cfg.train_dataloader.dataset = dict(
        type='Noise', number=args.steps * cfg.train_dataloader.batch_size, pipeline=pipeline
    )
    cfg.train_dataloader.pin_memory = False
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.train_cfg.max_epochs = args.rounds + 1
    cfg.default_hooks.checkpoint = dict(type='CheckpointHook', interval=-1)
    cfg.update(work_dir=folder, log_level='ERROR', experiment_name=f'{method}_{Path(folder).name}')
    return Runner.from_cfg(cfg)


def measure(method: str, args) -> dict:
    """Seconds of an epoch of either loop, in each round; and of the parts of the shipped one, by a step."""
    with tempfile.TemporaryDirectory() as folder:
        runner = make_runner(method, args, folder)
        loop, found = runner.train_loop, {}
        hooks = [type(hook).__name__ for hook in runner.hooks]
        bare = Bare(runner, torch.float32 if args.float32 else torch.bfloat16, 'ChannelsLastHook' in hooks)

        turn = InTurn(bare)
        runner.register_hook(turn)

        def run():  # in the place of the loop's own, after all preparations of Runner.train
            runner.call_hook('before_train')
            found.update(bare=[], mmrm=[])
            for index in range(args.rounds + 1):
                start = time.perf_counter()
                loop.run_epoch()
                seconds = time.perf_counter() - start
                if index:  # the first does not count
                    found['bare'].append(turn.seconds)
                    found['mmrm'].append(seconds - turn.seconds)
            runner.call_hook('after_train')
            found.update(parts(runner))

        loop.run = run
        runner.train()
    return found


def parts(runner: Runner, rounds: int = 10) -> dict:
    """Milliseconds a step of loading a batch and of preprocessing it."""
    loader, dataset = runner.train_dataloader, runner.train_dataloader.dataset
    batch = next(iter(loader))
    draws = [Draw(index, (0, 0, index)) for index in range(loader.batch_size)]
    warnings.filterwarnings('ignore', message='RecursiveMix runs without a head')  # none is called here
    seconds = interleaved(
        {
            'loading': lambda: loader.collate_fn(dataset.__getitems__(draws)),
            'preprocessing': lambda: runner.model.data_preprocessor(copy.copy(batch), training=True),
        },
        rounds,
    )
    return {f'{name}, ms': 1000 * float(np.median(values)) for name, values in seconds.items()}


def main() -> None:
    parser = make_parser(__doc__, rounds=10)
    parser.add_argument('--config', default=CONFIG, help='name of a config without its folder (default: %(default)s)')
    parser.add_argument('--methods', nargs='+', default=['baseline', 'rm'])
    parser.add_argument('--steps', type=int, default=39, help='steps of an epoch (default: %(default)s)')
    parser.add_argument('--float32', action='store_true', help='float32 instead of bfloat16')
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for method in args.methods:
        found = measure(method, args)
        shares = [f'{found["loading, ms"]:.1f}', f'{found["preprocessing, ms"]:.1f}']
        steps = [_a_step(found[name], args) for name in ('bare', 'mmrm')]
        rows.append([method, *steps, times(found['bare'], found['mmrm']), *shares])
    title = f'{args.config}, {"float32" if args.float32 else "bfloat16"}; {args.rounds} rounds of {args.steps} steps'
    ratio = 'steps/s, mmrm / bare (95 % interval)'
    show(title, ('config', 'bare, ms per step', 'mmrm, ms per step', ratio, 'loading, ms', 'preprocessing, ms'), rows)


def _a_step(seconds: list, args) -> str:
    return milliseconds([each / args.steps for each in seconds], 1)


if __name__ == '__main__':
    main()
