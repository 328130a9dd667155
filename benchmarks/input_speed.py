"""The ImageNet training pipeline of the shipped config against the paper's, torchvision's: images per second per core.

    python benchmarks/input_speed.py

JPEGs of ImageNet's usual size (500 x 375, about 110 KB) are generated in a temporary folder. Both pipelines decode at
full size, crop and resize, flip, jitter and shift the colours, and end in normalised float tensors; both run in this
process on one thread, in turn, round by round. mmrm's data-loader workers end in uint8, which the data preprocessor
normalises in batches on the training device; "mmrm, in all" counts that on the same core, "mmrm, a worker" does not.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cv2
import numpy as np
import torch
import torchvision.transforms as T
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope
from mmpretrain.registry import MODELS, TRANSFORMS
from PIL import Image
from rich.console import Console
from rich.table import Table

import mmrm
from mmrm.analysis.timing import interleaved, ratio
from mmrm.datasets.transforms import lighting_shift
from mmrm.utils.paths import find_config


def make_jpegs(folder: Path, number: int, size=(500, 375), kilobytes: int = 110) -> list:
    """Pictures with structure at every scale, compressed to about ``kilobytes``."""
    rng, files = np.random.RandomState(0), []
    for index in range(number):
        image = np.zeros((size[1], size[0], 3), np.float32)
        for octave in range(8):
            noise = rng.randn(2 + size[1] >> octave, 2 + size[0] >> octave, 3).astype(np.float32)
            image += cv2.resize(noise, size, interpolation=cv2.INTER_CUBIC) * 2 ** (0.55 * octave)
        image = cv2.normalize(image, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)
        quality = min(range(60, 100), key=lambda q: abs(len(encode(image, q)) - 1024 * kilobytes))
        files.append(folder / f'{index}.jpg')
        files[-1].write_bytes(encode(image, quality))
    return files


def encode(image: np.ndarray, quality: int) -> bytes:
    return cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def torchvision_pipeline():
    """The paper's input pipeline, one image at a time, as its data loader runs it."""

    def lighting(image: torch.Tensor) -> torch.Tensor:
        shift = lighting_shift(np.random.normal(0, 0.1, 3)) / 255
        return image + torch.from_numpy(shift).to(image).view(3, 1, 1)

    transform = T.Compose(
        [
            T.RandomResizedCrop(224),
            T.RandomHorizontalFlip(),
            T.ColorJitter(0.4, 0.4, 0.4),
            T.ToTensor(),
            lighting,
            T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )

    def load(path: Path) -> torch.Tensor:
        with open(path, 'rb') as file:
            return transform(Image.open(file).convert('RGB'))

    return lambda files: torch.stack([load(path) for path in files])


def mmrm_pipeline(cfg: Config):
    """The shipped config's pipeline and its data preprocessor without the batch augment."""
    pipeline = Compose([TRANSFORMS.build(transform) for transform in cfg.train_dataloader.dataset.pipeline])
    preprocessor = MODELS.build({**cfg.model.data_preprocessor, 'type': 'ClsDataPreprocessor', 'batch_augments': None})

    def run(files):
        samples = [pipeline(dict(img_path=str(path), gt_label=0)) for path in files]
        inputs = torch.stack([sample['inputs'] for sample in samples])
        return dict(inputs=inputs, data_samples=[sample['data_samples'] for sample in samples])

    return run, lambda files: preprocessor(run(files), training=True)['inputs']


def stages(cfg: Config, files: list, rounds: int) -> dict:
    """Milliseconds an image of each transform, on what the one before it gave."""
    transforms = [TRANSFORMS.build(transform) for transform in cfg.train_dataloader.dataset.pipeline]
    inputs = [dict(img_path=str(path), gt_label=0) for path in files]
    found = {}
    for transform in transforms:
        seconds = interleaved({'it': lambda t=transform, given=inputs: [t(dict(entry)) for entry in given]}, rounds)[
            'it'
        ]
        found[type(transform).__name__] = 1000 * np.median(seconds) / len(files)
        inputs = [transform(dict(entry)) for entry in inputs]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--config', default='configs/rm/resnet50_8xb64_in1k.py')
    parser.add_argument('--images', type=int, default=32)
    parser.add_argument('--rounds', type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    init_default_scope('mmpretrain')
    cfg = Config.fromfile(find_config(args.config))
    with tempfile.TemporaryDirectory() as folder:
        files = make_jpegs(Path(folder), args.images)
        size = np.mean([path.stat().st_size for path in files]) / 1024
        worker, in_all = mmrm_pipeline(cfg)
        candidates = {'torchvision': torchvision_pipeline(), 'mmrm, in all': in_all, 'mmrm, a worker': worker}
        given = [(batch.shape, batch.dtype) for batch in (candidates['torchvision'](files), in_all(files))]
        if given[0] != given[1]:
            raise SystemExit(f'the pipelines do not give the same: {given}')
        seconds = interleaved({name: lambda run=run: run(files) for name, run in candidates.items()}, args.rounds)
        parts = stages(cfg, files, max(args.rounds // 4, 3))
    console = Console(width=110)
    console.print(
        f'mmrm {mmrm.__version__}, torch {torch.__version__}, OpenCV {cv2.__version__}, Pillow '
        f'{Image.__version__}; one thread; {args.images} JPEGs of 500 x 375, {size:.0f} KB on average'
    )
    table = Table('pipeline', 'images / s / core', 'ratio to torchvision (95 % interval)')
    for name, values in seconds.items():
        # Speed, so the base's seconds over its own.
        middle, low, high = ratio(seconds['torchvision'], values)
        table.add_row(name, f'{args.images / np.median(values):.0f}', f'{middle:.2f} ({low:.2f} to {high:.2f})')
    console.print(table)
    table = Table('transform of the shipped config', 'ms an image')
    for name, milliseconds in parts.items():
        table.add_row(name, f'{milliseconds:.2f}')
    console.print(table)


if __name__ == '__main__':
    main()
