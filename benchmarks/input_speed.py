"""The ImageNet training pipeline of the shipped config beside others: images per second per core.

    python benchmarks/input_speed.py                   # generated JPEGs of ImageNet's usual size, 500 x 375, 110 KB
    python benchmarks/input_speed.py --files FOLDER    # real ones

Every pipeline decodes, crops and resizes, flips, jitters and shifts the colours, and ends in a normalised float batch;
all run in this process on one thread, in turn, round by round. mmrm's data-loader workers end in uint8 and a drawn
colour change, which the data preprocessor applies in batches on the training device, with the normalisation: "in all"
counts that on the same core, "a worker" does not. timm's workers end in uint8, too. The others leave nothing to the
device. Without libjpeg-turbo OpenCV decodes.
"""

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
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from benchmarks.common import make_parser, show, times
from mmrm.datasets import transforms
from mmrm.datasets.jpeg import crop_decoder
from mmrm.datasets.transforms import lighting_shift
from mmrm.utils.errors import UserFileError, cli
from mmrm.utils.paths import find_config
from tools.analysis.timing import interleaved

NORMAL = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


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


def lighting(image: torch.Tensor) -> torch.Tensor:
    shift = lighting_shift(np.random.normal(0, 0.1, 3)) / 255
    return image + torch.from_numpy(shift).to(image).view(3, 1, 1)


def float_jitter(image: torch.Tensor) -> torch.Tensor:
    """The authors': on floats, in random order, nothing clipped."""

    def grey() -> torch.Tensor:
        return (0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]).expand_as(image)

    for kind in np.random.permutation(3):
        factor = np.random.uniform(0.6, 1.4)
        if kind == 0:
            image = image * factor
        else:
            image = factor * image + (1 - factor) * (grey().mean() if kind == 1 else grey())
    return image


def pillow_pipeline(*steps):
    """One image at a time, opened with Pillow, as torchvision's data sets do."""
    transform = T.Compose(list(steps))

    def load(path: Path) -> torch.Tensor:
        with open(path, 'rb') as file:
            return transform(Image.open(file).convert('RGB'))

    return lambda files: torch.stack([load(path) for path in files])


def torchvision_pipeline():
    """The paper's input pipeline, written with torchvision's own transforms."""
    crop = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4)]
    return pillow_pipeline(*crop, T.ToTensor(), lighting, T.Normalize(*NORMAL))


def authors_pipeline():
    """The paper's input pipeline, as the authors wrote it: the jitter on floats."""
    crop = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor()]
    return pillow_pipeline(*crop, float_jitter, lighting, T.Normalize(*NORMAL))


def tensor_pipeline():
    """torchvision's transforms v2 on uint8 tensors, decoded by torchvision, too."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.4, 0.4, 0.4),
            v2.ToDtype(torch.float32, scale=True),
            lighting,
            v2.Normalize(*NORMAL),
        ]
    )
    return lambda files: torch.stack([transform(decode_image(str(path), ImageReadMode.RGB)) for path in files])


def timm_pipeline():
    """timm's training transform with the same crop, flip and jitter; it has no lighting. Its loader normalises."""
    from timm.data import create_transform

    transform = create_transform(
        224, is_training=True, use_prefetcher=True, color_jitter=(0.4, 0.4, 0.4), interpolation='bilinear', re_prob=0.0
    )
    mean, std = (torch.tensor(values).view(3, 1, 1) * 255 for values in NORMAL)

    worker = pillow_pipeline(transform, torch.as_tensor)
    return worker, lambda files: worker(files).float().sub_(mean).div_(std)


def mmrm_pipeline(cfg: Config):
    """The shipped config's pipeline and its data preprocessor without the batch augment."""
    pipeline = Compose([TRANSFORMS.build(transform) for transform in cfg.train_dataloader.dataset.pipeline])
    preprocessor = MODELS.build({**cfg.model.data_preprocessor, 'batch_augments': None})

    def run(files):
        samples = [pipeline(dict(img_path=str(path), gt_label=0)) for path in files]
        inputs = torch.stack([sample['inputs'] for sample in samples])
        return dict(inputs=inputs, data_samples=[sample['data_samples'] for sample in samples])

    return run, lambda files: preprocessor(run(files), training=True)['inputs']


def without_crop_decoding(run):
    """``run`` as it is where there is no libjpeg-turbo: OpenCV decodes whole images."""

    def slower(files):
        found, transforms.crop_decoder = transforms.crop_decoder, lambda: None
        try:
            return run(files)
        finally:
            transforms.crop_decoder = found

    return slower


def all_pipelines(cfg: Config) -> dict:
    """What is compared, by name, each a function of a list of files."""
    worker, in_all = mmrm_pipeline(cfg)
    timm_worker, timm_in_all = timm_pipeline()
    found = {
        'torchvision': torchvision_pipeline(),
        "the authors' (float jitter)": authors_pipeline(),
        'torchvision v2, tensors': tensor_pipeline(),
        'timm, in all': timm_in_all,
        'timm, a worker': timm_worker,
        'mmrm, in all': in_all,
        'mmrm, a worker': worker,
    }
    if crop_decoder() is not None:
        found['mmrm, OpenCV decodes, in all'] = without_crop_decoding(in_all)
        found['mmrm, OpenCV decodes, a worker'] = without_crop_decoding(worker)
    return found


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


def files_of(folder: str) -> list:
    """The JPEGs in a folder and in the folders in it."""
    found = sorted(path for path in Path(folder).rglob('*') if path.suffix.lower() in ('.jpg', '.jpeg'))
    if not found:
        raise UserFileError(f'--files {folder}: there is no JPEG in it.')
    return found


@cli
def main() -> None:
    parser = make_parser(__doc__, rounds=20)
    parser.add_argument('--config', default='configs/rm/resnet50_8xb64_in1k.py')
    parser.add_argument('--files', help='a folder of JPEGs to read instead of generated ones')
    parser.add_argument('--images', type=int, default=32, help='number of images, at most')
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    init_default_scope('mmpretrain')
    cfg = Config.fromfile(find_config(args.config))
    with tempfile.TemporaryDirectory() as folder:
        files = files_of(args.files)[: args.images] if args.files else make_jpegs(Path(folder), args.images)
        size = np.mean([path.stat().st_size for path in files]) / 1024
        sides = np.median([Image.open(path).size for path in files], axis=0).astype(int)
        candidates = all_pipelines(cfg)
        for name, run in candidates.items():
            batch = None if name.endswith('a worker') else run(files)
            if batch is not None and (tuple(batch.shape), batch.dtype) != ((len(files), 3, 224, 224), torch.float32):
                raise SystemExit(f'{name} gives {tuple(batch.shape)}, {batch.dtype}')
        seconds = interleaved({name: lambda run=run: run(files) for name, run in candidates.items()}, args.rounds)
        parts = stages(cfg, files, max(args.rounds // 4, 3))
    decoder = crop_decoder()
    title = (
        f'{len(files)} JPEGs, {sides[0]} x {sides[1]} (median), {size:.0f} KB (mean); {args.rounds} rounds; crops are '
        f'decoded by {Path(decoder.path).name if decoder else "OpenCV, whole images"}; '
        f'OpenCV {cv2.__version__}, Pillow {Image.__version__}'
    )
    bases = list(candidates)[:2]
    rows = []
    for name, values in seconds.items():
        # Speed, so the base's seconds over its own.
        faster = [times(seconds[base], values, digits=2) for base in bases]
        rows.append([name, f'{len(files) / np.median(values):.0f}', *faster])
    show(title, ('pipeline', 'images / s / core', *(f'times {base} (95 % interval)' for base in bases)), rows)
    rows = [[name, f'{milliseconds:.3f}'] for name, milliseconds in parts.items()]
    show('its parts', ('transform of the shipped config', 'ms per image'), rows)


if __name__ == '__main__':
    main()
