#!/usr/bin/env python
"""What a fine-tuned checkpoint can do beyond its accuracy: small animals, shrunk images, where it looks, calibration.

    python projects/finetune/measure.py work_dirs/finetune/50x45/rm-1a2b3c4d/rm/seed0

prints the measures of one run; run.py test calls the same function after each run and adds them to its result. The
trimaps of Oxford-IIIT Pet say where the animal is; pixels on the border count neither as animal nor as background.
"""

import json
import sys
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import cv2
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dataset import Compose

from mmrm.cli.options import Parser
from mmrm.utils.errors import UserFileError, cli
from mmrm.weights.build import open_run
from tools.analysis.classifiers import build_dataset
from tools.analysis.scale_sensitivity import shrink

SCALES = (0.75, 0.5, 0.375)
ANIMAL, BACKGROUND = 1, 2  # of a trimap; 3 is the border
BINS = 15


class Images(NamedTuple):
    """The test images of a run: pixels uint8 ``(N, 3, H, W)``, labels and trimaps ``(N, H, W)`` of the same crop."""

    pixels: torch.Tensor
    labels: torch.Tensor
    trimaps: torch.Tensor


def read_images(cfg: Config) -> Images:
    """Read the test images of a config, and their trimaps through the same resize and crop."""
    dataset = build_dataset(cfg, 'test')
    steps = [
        step for step in cfg.test_dataloader.dataset.pipeline if step.type not in ('LoadImageFromFile', 'PackInputs')
    ]
    crop = Compose([{**step, 'interpolation': 'nearest'} if 'interpolation' in step else step for step in steps])
    pixels, labels, trimaps = [], [], []
    for index in range(len(dataset)):
        item = dataset[index]
        sample = item['data_samples']
        path = Path(cfg.data_root) / 'annotations' / 'trimaps' / f'{Path(sample.img_path).stem}.png'
        trimap = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        if trimap is None or trimap.shape != tuple(sample.ori_shape):
            raise UserFileError(
                f'{path} must be the trimap of {sample.img_path}. annotations.tar.gz of the data set has it.'
            )
        pixels.append(item['inputs'])
        labels.append(int(sample.gt_label))
        trimaps.append(torch.from_numpy(crop(dict(img=trimap))['img'].copy()))
    return Images(torch.stack(pixels), torch.tensor(labels), torch.stack(trimaps))


def predict(model: torch.nn.Module, pixels: torch.Tensor, batch: int = 64) -> Tuple[torch.Tensor, torch.Tensor]:
    """The last feature maps, float ``(N, C, h, w)`` in half precision, and the logits of images."""
    maps, logits = [], []
    with torch.inference_mode():
        for part in pixels.split(batch):
            inputs = model.data_preprocessor(dict(inputs=list(part)), training=False)['inputs']
            features = model.backbone(inputs)
            logits.append(model.head(features))
            maps.append(features[-1].half())
    return torch.cat(maps), torch.cat(logits)


def activation_maps(features: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, side: int) -> torch.Tensor:
    """Class activation maps ``(N, side, side)``: what of the true class's logit each place gives, where above 0."""
    found = torch.einsum('nchw,nc->nhw', features.float(), weight[labels])
    return F.interpolate(found.clamp(min=0)[:, None], (side, side), mode='bilinear')[:, 0]


def localisation(maps: torch.Tensor, trimaps: torch.Tensor) -> Tuple[float, float]:
    """The share of the maps' energy on the animal, and how often their maximum is on it, in percent.

    Images without animal or background in the crop, and maps of zeros, do not count.
    """
    animal, known = trimaps == ANIMAL, trimaps != 3
    maps = maps * known
    energy = maps.flatten(1).sum(1)
    counted = animal.flatten(1).any(1) & (trimaps == BACKGROUND).flatten(1).any(1) & (energy > 0)
    share = (maps * animal).flatten(1).sum(1)[counted] / energy[counted]
    peak = maps.flatten(1).argmax(1, keepdim=True)
    hit = animal.flatten(1).gather(1, peak)[counted, 0]
    return 100 * share.mean().item(), 100 * hit.float().mean().item()


def calibration_error(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    """The expected calibration error in percent: confidence against accuracy in bins of equal width."""
    confidence, classes = probabilities.max(1)
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    gap = torch.zeros(BINS).index_add_(0, bins, confidence - (classes == labels).float())
    return 100 * gap.abs().sum().item() / len(labels)


def smallest_third(trimaps: torch.Tensor) -> torch.Tensor:
    """Which images have the smallest animals: their share of the crop's pixels, equals in the order of the images."""
    shares = (trimaps == ANIMAL).flatten(1).float().mean(1)
    chosen = torch.zeros(len(trimaps), dtype=torch.bool)
    chosen[shares.argsort(stable=True)[: len(trimaps) // 3]] = True
    return chosen


def accuracy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return 100 * (logits.argmax(1) == labels).float().mean().item()


def measure(run: Path) -> Dict[str, float]:
    """All measures of a run's last checkpoint, in percent, on the test images of its config."""
    found = open_run(run)
    images = read_images(found.cfg)
    features, logits = predict(found.model, images.pixels)
    probabilities = logits.softmax(1)
    maps = activation_maps(features, found.model.head.fc.weight.detach(), images.labels, images.pixels.shape[-1])
    energy, pointing = localisation(maps, images.trimaps)
    even, _ = localisation(torch.ones_like(maps), images.trimaps)
    small = smallest_third(images.trimaps)
    values = dict(
        top1=accuracy(logits, images.labels),
        small=accuracy(logits[small], images.labels[small]),
        energy=energy,
        even=even,
        pointing=pointing,
        ece=calibration_error(probabilities, images.labels),
        confidence=100 * probabilities.max(1).values.mean().item(),
        nll=F.cross_entropy(logits, images.labels).item(),
    )
    for scale in SCALES:
        pixels = shrink(images.pixels.float(), scale).round().clamp(0, 255).to(torch.uint8)
        values[f'shrunk_{scale:g}'] = accuracy(predict(found.model, pixels)[1], images.labels)
    return {name: round(value, 4) for name, value in values.items()}


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument('run', type=Path, help='folder of a run')
    args = parser.parse_args(argv)
    print(json.dumps(measure(args.run), indent=2))


if __name__ == '__main__':
    main()
