"""Scenes of many scales, composed of real CIFAR-10 images, in COCO's and ADE20K's layout.

A scene is a blurred photograph with a few others pasted on it as rectangles of 8 to 44 pixels. RecursiveMix trains on
pasted rectangles too, so a result on these scenes says less than one on photographs: see README.md.
"""

import json
from pathlib import Path
from typing import List, NamedTuple, Tuple, Union

import cv2
import numpy as np

from mmrm.datasets.cifar import RMCIFAR10
from mmrm.utils.paths import find
from tools.get_cifar10 import CLASSES
from tools.runs.folders import make_once

VERSION = 1
SIDE = 80  # of a scene, in pixels
OBJECTS = (3, 6)  # in a scene, at least and at most
SIZES = (8, 44)  # side of an object, drawn evenly on a logarithmic scale
BLUR = 6.0  # standard deviation in pixels: no background shows an object
VISIBLE = 0.6  # of an object, at least, where a later one covers it
# Which images of each class a part takes. No pretraining has any of them: those take the first 1250.
PARTS = {'train': ('train', (2500, 5000)), 'pilot': ('train', (1250, 2500)), 'val': ('test', (0, 1000))}
COUNTS = {'train': 600, 'pilot': 400, 'val': 400}
BACKGROUND = len(CLASSES)


class Item(NamedTuple):
    """An object in a scene: its class and its square, ``x, y, side``."""

    label: int
    x: int
    y: int
    side: int


def compose(images: np.ndarray, labels: np.ndarray, rng: np.random.RandomState) -> Tuple[np.ndarray, List[Item]]:
    """Draw a scene.

    Args:
        images (ndarray): uint8 of shape ``(N, 32, 32, 3)``.
        labels (ndarray): Their classes, shape ``(N, )``.
        rng (RandomState): All draws come from it.

    Returns:
        The picture, uint8 ``(80, 80, 3)``, and its objects from back to front, of each at least 60 % to be seen.
    """
    ground = cv2.resize(images[rng.randint(len(images))], (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    picture = cv2.GaussianBlur(ground, (0, 0), BLUR)
    owner = np.full((SIDE, SIDE), -1)
    items: List[Item] = []
    for _ in range(rng.randint(OBJECTS[0], OBJECTS[1] + 1)):
        for _ in range(20):  # a crowded scene has one object less
            side = round(float(np.exp(rng.uniform(*np.log(SIZES)))))
            x, y = rng.randint(SIDE - side + 1), rng.randint(SIDE - side + 1)
            after = owner.copy()
            after[y : y + side, x : x + side] = len(items)
            if all((after == number).sum() >= VISIBLE * item.side**2 for number, item in enumerate(items)):
                chosen = rng.randint(len(images))
                kind = cv2.INTER_AREA if side < 32 else cv2.INTER_CUBIC
                picture[y : y + side, x : x + side] = cv2.resize(images[chosen], (side, side), interpolation=kind)
                items.append(Item(int(labels[chosen]), x, y, side))
                owner = after
                break
    return picture, items


def label_map(items: List[Item]) -> np.ndarray:
    """The class of each pixel, ``(80, 80)``; :data:`BACKGROUND` where there is no object."""
    labels = np.full((SIDE, SIDE), BACKGROUND, np.uint8)
    for item in items:
        labels[item.y : item.y + item.side, item.x : item.x + item.side] = item.label
    return labels


def make_scenes(root: Union[str, Path], cifar10: Union[str, Path]) -> Path:
    """Write the scenes, or find those that are there. The same bytes on every machine.

    Args:
        root (str | Path): Gets ``coco/`` (``<part>2017``, ``annotations``) and ``ade/`` (``images``, ``annotations``).
        cifar10 (str | Path): The folder that holds ``cifar-10-batches-py``.

    Raises:
        UserFileError: If CIFAR-10 is not there, or ``root`` holds something else.
    """
    stamp = dict(version=VERSION, side=SIDE, counts=COUNTS)

    def write(folder: Path) -> None:
        for number, (part, (split, per_class)) in enumerate(PARTS.items()):
            images, labels = _read(find(cifar10), split, per_class)
            _write_part(folder, part, images, labels, number)

    return make_once(root, 'scenes.json', stamp, 'a folder of composed scenes', write)


def _read(cifar10: Path, split: str, per_class: Tuple[int, int]) -> Tuple[np.ndarray, np.ndarray]:
    data = RMCIFAR10(data_root=str(cifar10), split=split, per_class=per_class, pipeline=[])
    data.full_init()
    samples = [data.get_data_info(index) for index in range(len(data))]
    return np.stack([sample['img'] for sample in samples]), np.array([sample['gt_label'] for sample in samples])


def _write_part(root: Path, part: str, images: np.ndarray, labels: np.ndarray, number: int) -> None:
    pictures, masks = root / 'ade' / 'images' / part, root / 'ade' / 'annotations' / part
    for folder in (pictures, masks, root / 'coco' / 'annotations'):
        folder.mkdir(parents=True, exist_ok=True)
    records: List[dict] = []
    boxes: List[dict] = []
    for index in range(COUNTS[part]):
        picture, items = compose(images, labels, np.random.RandomState([number, index]))
        name = f'{part}_{index:05d}'
        cv2.imwrite(str(pictures / f'{name}.png'), picture[..., ::-1])
        cv2.imwrite(str(masks / f'{name}.png'), label_map(items))
        records.append(dict(id=index, file_name=f'{name}.png', width=SIDE, height=SIDE))
        for item in items:
            box = [item.x, item.y, item.side, item.side]
            boxes.append(
                dict(id=len(boxes) + 1, image_id=index, category_id=item.label, bbox=box, area=item.side**2, iscrowd=0)
            )
    categories = [dict(id=label, name=name) for label, name in enumerate(CLASSES)]
    content = dict(images=records, annotations=boxes, categories=categories)
    (root / 'coco' / 'annotations' / f'{part}.json').write_text(json.dumps(content))
