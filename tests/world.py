"""A few drawn images in the layouts of ImageNet, COCO and ADE20K, for tests of configs that read those.

Coloured rectangles on noise, with the names and numbers of real classes, so that the stock dataset classes read them::

    <root>/classification/{train,val}/<class>/*.jpg                one rectangle per image
    <root>/coco/{train2017,val2017}/*.jpg                          two rectangles per image
    <root>/coco/annotations/instances_{train,val}2017.json         boxes and polygons
    <root>/coco/stuffthingmaps/{train2017,val2017}/*.png           category id - 1; 255 where nothing is labelled
    <root>/ade/images/{training,validation}/*.jpg                  the same images as COCO's
    <root>/ade/annotations/{training,validation}/*.png             1..150
"""

import json
from pathlib import Path

import cv2
import numpy as np

import mmrm.models  # noqa: F401  isort: skip  repairs first: mmdet is not to be imported on mmcv-lite alone
from mmdet.datasets import CocoDataset  # isort: skip

# Name -> (COCO category id, ADE20K pixel value), and the same of what is behind the objects.
THINGS = {
    'airplane': (5, 91),
    'bus': (6, 81),
    'boat': (9, 77),
    'traffic light': (10, 137),
    'bottle': (44, 99),
    'chair': (62, 20),
    'clock': (85, 149),
    'vase': (86, 136),
}
GRASS = (124, 10)
UNUSED_IDS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)  # of COCO's 1..90


def _write(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), image)


def _draw(rng: np.random.RandomState, width: int, height: int, names) -> tuple:
    """An image, shape ``(height, width, 3)``, and the box ``x, y, width, height`` of each object, side by side."""
    image, boxes = rng.randint(90, 160, (height, width, 3)).astype(np.uint8), []
    room = width // len(names)
    for number, name in enumerate(names):
        wide, high = rng.randint(room // 2, room), rng.randint(height // 2, height)
        x, y = number * room + rng.randint(room - wide + 1), rng.randint(height - high + 1)
        colour = np.random.RandomState(THINGS[name][0]).randint(0, 256, 3)  # of its class
        image[y : y + high, x : x + wide] = colour
        boxes.append([int(x), int(y), int(wide), int(high)])
    return image, boxes


def _label_map(shape, names, boxes, column: int, offset: int = 0) -> np.ndarray:
    labels = np.full(shape[:2], GRASS[column] + offset, np.uint8)
    for name, (x, y, wide, high) in zip(names, boxes):
        labels[y : y + high, x : x + wide] = THINGS[name][column] + offset
    return labels


def _write_scenes(root: Path, split: str, count: int, size: tuple, rng: np.random.RandomState) -> None:
    images, annotations, long = [], [], {'train': 'training', 'val': 'validation'}[split]
    for index in range(count):
        names = [str(name) for name in rng.choice(list(THINGS), 2, replace=False)]
        image, boxes = _draw(rng, *size, names)
        number = 1000 + 7 * index  # as in COCO: neither from 0 nor without gaps
        images.append(dict(id=number, file_name=f'{number:012d}.jpg', width=size[0], height=size[1]))
        for name, (x, y, wide, high) in zip(names, boxes):
            corners = [x, y, x + wide, y, x + wide, y + high, x, y + high]
            found = dict(id=len(annotations) + 1, image_id=number, category_id=THINGS[name][0], iscrowd=0)
            annotations.append(dict(found, bbox=[x, y, wide, high], area=wide * high, segmentation=[corners]))
        coco, ade = root / 'coco', root / 'ade'
        _write(coco / f'{split}2017' / f'{number:012d}.jpg', image)
        maps = coco / 'stuffthingmaps' / f'{split}2017'
        _write(maps / f'{number:012d}.png', _label_map(image.shape, names, boxes, 0, -1))
        _write(ade / 'images' / long / f'ADE_{split}_{index + 1:08d}.jpg', image)
        _write(
            ade / 'annotations' / long / f'ADE_{split}_{index + 1:08d}.png', _label_map(image.shape, names, boxes, 1)
        )
    ids = [number for number in range(1, 91) if number not in UNUSED_IDS]
    categories = [dict(id=number, name=name) for number, name in zip(ids, CocoDataset.METAINFO['classes'])]
    path = root / 'coco' / 'annotations' / f'instances_{split}2017.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(images=images, annotations=annotations, categories=categories)))


def make_world(root: Path, classification=(8, 8), scenes=(2, 2), image_size: int = 64, scene_size=(128, 96)) -> Path:
    """Write the images below ``root``: how many for training and validation, and their sides in pixels."""
    rng = np.random.RandomState(0)
    for split, count, number in zip(('train', 'val'), classification, scenes):
        for index in range(count):
            name = list(THINGS)[index % len(THINGS)]
            folder = root / 'classification' / split / name.replace(' ', '_')
            _write(folder / f'{index + 1:08d}.jpg', _draw(rng, image_size, image_size, [name])[0])
        _write_scenes(root, split, number, scene_size, rng)
    return root
