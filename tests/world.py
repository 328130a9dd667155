"""A small world of drawn objects on textured ground, generated in the layouts of ImageNet, COCO and ADE20K.

Nothing is downloaded: :func:`make_world` draws it in seconds, byte for byte the same for the same arguments. Objects
and grounds carry the names and numbers of real COCO, COCO-Stuff and ADE20K classes, so the stock dataset classes (and
any config of theirs) read it without a change::

    <root>/classification/{train,val}/<class>/*.jpg                one object an image
    <root>/coco/{train2017,val2017}/*.jpg                          scenes: one to four objects on two grounds
    <root>/coco/annotations/instances_{train,val}2017.json         boxes, polygons, crowds (RLE)
    <root>/coco/stuffthingmaps/{train2017,val2017}/*.png           category id - 1; 255 where nothing is labelled
    <root>/ade/images/{training,validation}/*.jpg                  the same scenes
    <root>/ade/annotations/{training,validation}/*.png             1..150; 0 where nothing is labelled

Objects never overlap, so a polygon tells an object's pixels exactly: boxes, areas and maps all come from one mask.
"""

import json
from pathlib import Path
from typing import NamedTuple, Optional, Sequence, Tuple, Union

import cv2
import numpy as np

# Name -> (COCO category id, ADE20K pixel value), in the order of the COCO ids, which is the order of mmdet's labels.
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
# Name in ADE20K -> (COCO-Stuff category id, ADE20K pixel value).
STUFF = {'floor': (117, 4), 'grass': (124, 10), 'sand': (154, 47), 'sea': (155, 27), 'sky': (157, 3), 'wall': (171, 1)}
CLASSES = tuple(THINGS)
# The order of mmseg's labels when a config asks for these classes only.
SEG_CLASSES = CLASSES + tuple(STUFF)

# The ids that COCO left out of 1..90, and its 80 names in the order of the rest.
_COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
_COCO_NAMES = (
    'person',
    'bicycle',
    'car',
    'motorcycle',
    'airplane',
    'bus',
    'train',
    'truck',
    'boat',
    'traffic light',
    'fire hydrant',
    'stop sign',
    'parking meter',
    'bench',
    'bird',
    'cat',
    'dog',
    'horse',
    'sheep',
    'cow',
    'elephant',
    'bear',
    'zebra',
    'giraffe',
    'backpack',
    'umbrella',
    'handbag',
    'tie',
    'suitcase',
    'frisbee',
    'skis',
    'snowboard',
    'sports ball',
    'kite',
    'baseball bat',
    'baseball glove',
    'skateboard',
    'surfboard',
    'tennis racket',
    'bottle',
    'wine glass',
    'cup',
    'fork',
    'knife',
    'spoon',
    'bowl',
    'banana',
    'apple',
    'sandwich',
    'orange',
    'broccoli',
    'carrot',
    'hot dog',
    'pizza',
    'donut',
    'cake',
    'chair',
    'couch',
    'potted plant',
    'bed',
    'dining table',
    'toilet',
    'tv',
    'laptop',
    'mouse',
    'remote',
    'keyboard',
    'cell phone',
    'microwave',
    'oven',
    'toaster',
    'sink',
    'refrigerator',
    'book',
    'clock',
    'vase',
    'scissors',
    'teddy bear',
    'hair drier',
    'toothbrush',
)


# ---------------------------------------------------------------------------------------------------------- drawing
def _disc(x: float, y: float, radius: float, points: int = 20) -> list:
    angles = np.arange(points) * 2 * np.pi / points
    return [(x + radius * np.cos(a), y + radius * np.sin(a)) for a in angles]


def _mirrored(right: Sequence[Tuple[float, float]]) -> list:
    """Close a profile, given from top to bottom on the right side, with its mirror image."""
    return list(right) + [(-x, y) for x, y in reversed(right)]


# Name -> (outline, details): polygons in [-1, 1] x [-1, 1], y down; a detail is a (polygon, shade) painted inside the
# outline, its shade a grey, a BGR colour, or a factor on the object's own colour.
_SHAPES = {
    'airplane': (
        _mirrored(
            [
                (0, -1),
                (0.14, -0.8),
                (0.16, -0.25),
                (0.95, 0.2),
                (0.95, 0.42),
                (0.15, 0.2),
                (0.12, 0.65),
                (0.42, 0.85),
                (0.42, 1),
                (0, 0.92),
            ]
        ),
        [(_disc(0, -0.62, 0.09, 8), 0.5)],
    ),
    'bus': (
        [
            (-1, -0.55),
            (0.85, -0.55),
            (1, -0.4),
            (1, 0.4),
            (0.75, 0.4),
            (0.72, 0.55),
            (0.6, 0.62),
            (0.48, 0.55),
            (0.45, 0.4),
            (-0.4, 0.4),
            (-0.43, 0.55),
            (-0.55, 0.62),
            (-0.67, 0.55),
            (-0.7, 0.4),
            (-1, 0.4),
        ],
        [
            ([(-0.88, -0.38), (-0.4, -0.38), (-0.4, -0.02), (-0.88, -0.02)], (235, 235, 225)),
            ([(-0.3, -0.38), (0.2, -0.38), (0.2, -0.02), (-0.3, -0.02)], (235, 235, 225)),
            ([(0.3, -0.38), (0.88, -0.38), (0.88, -0.02), (0.3, -0.02)], (235, 235, 225)),
            (_disc(-0.55, 0.42, 0.2, 12), (30, 30, 30)),
            (_disc(0.6, 0.42, 0.2, 12), (30, 30, 30)),
        ],
    ),
    'boat': (
        [
            (-0.05, -1),
            (0.05, -1),
            (0.7, 0.25),
            (0.08, 0.3),
            (0.08, 0.42),
            (1, 0.42),
            (0.65, 0.95),
            (-0.65, 0.95),
            (-1, 0.42),
            (-0.05, 0.42),
        ],
        [([(0.05, -1), (0.7, 0.25), (0.08, 0.3)], (240, 240, 240))],
    ),
    'traffic light': (
        [(-0.36, -0.92), (-0.28, -1), (0.28, -1), (0.36, -0.92), (0.36, 0.92), (0.28, 1), (-0.28, 1), (-0.36, 0.92)],
        [
            (_disc(0, -0.62, 0.22), (40, 40, 235)),
            (_disc(0, 0, 0.22), (40, 215, 245)),
            (_disc(0, 0.62, 0.22), (80, 200, 60)),
        ],
    ),
    'bottle': (
        _mirrored([(0.12, -1), (0.15, -0.92), (0.13, -0.5), (0.34, -0.2), (0.36, 0.92), (0.28, 1)]),
        [([(-0.37, 0.1), (0.37, 0.1), (0.37, 0.62), (-0.37, 0.62)], (225, 230, 235))],
    ),
    'chair': (
        [
            (-0.6, -1),
            (-0.4, -1),
            (-0.36, -0.05),
            (0.6, -0.05),
            (0.6, 1),
            (0.42, 1),
            (0.4, 0.22),
            (-0.4, 0.22),
            (-0.42, 1),
            (-0.6, 1),
        ],
        [([(-0.4, -0.05), (0.6, -0.05), (0.6, 0.1), (-0.4, 0.1)], 0.6)],
    ),
    'clock': (
        _disc(0, 0, 1, 28),
        [
            (_disc(0, 0, 0.78, 24), (240, 240, 240)),
            ([(-0.07, 0.1), (-0.07, -0.62), (0.07, -0.62), (0.07, 0.1)], (20, 20, 20)),
            ([(-0.05, -0.07), (0.5, 0.24), (0.44, 0.36), (-0.05, 0.07)], (20, 20, 20)),
        ],
    ),
    'vase': (
        _mirrored(
            [(0.42, -1), (0.2, -0.82), (0.2, -0.5), (0.55, -0.2), (0.68, 0.2), (0.5, 0.7), (0.3, 0.9), (0.34, 1)]
        ),
        [
            ([(-0.7, -0.05), (0.7, -0.05), (0.7, 0.1), (-0.7, 0.1)], 0.5),
            ([(-0.7, 0.3), (0.7, 0.3), (0.7, 0.42), (-0.7, 0.42)], 0.5),
        ],
    ),
}


def _noise(rng: np.random.RandomState, height: int, width: int, cell: int) -> np.ndarray:
    """Smooth noise in [-1, 1] of shape (height, width) whose spots are about ``cell`` pixels wide."""
    coarse = rng.uniform(-1, 1, (height // cell + 2, width // cell + 2)).astype(np.float32)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def _ground(rng: np.random.RandomState, name: str, height: int, width: int) -> np.ndarray:
    """Paint one kind of ground: float32 BGR, shape (height, width, 3), values about 0 to 255."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    phase, tint = rng.uniform(0, 50), rng.uniform(-18, 18, 3)
    if name == 'sky':
        base, texture = (215, 165, 110), 45 * (y / height - 0.5) + 22 * _noise(rng, height, width, 24)
    elif name == 'sea':
        wave = np.sin((y + 2 * np.sin((x + phase) / 7)) * 2 * np.pi / rng.uniform(6, 9) + phase)
        base, texture = (150, 105, 45), 24 * wave + 8 * _noise(rng, height, width, 6)
    elif name == 'grass':
        blades = cv2.blur(rng.uniform(-1, 1, (height, width)).astype(np.float32), (1, 5))
        base, texture = (55, 130, 75), 70 * blades + 10 * _noise(rng, height, width, 16)
    elif name == 'sand':
        base, texture = (130, 180, 205), 16 * rng.uniform(-1, 1, (height, width)) + 10 * _noise(rng, height, width, 12)
    elif name == 'wall':
        tall, wide = rng.randint(7, 10), rng.randint(15, 20)
        row = np.floor((y + phase) / tall)
        joint = ((y + phase) % tall < 1.5) | ((x + phase + row % 2 * wide / 2) % wide < 1.5)
        base, texture = (70, 85, 165), np.where(joint, 60, -8) + 8 * _noise(rng, height, width, 8)
    else:  # floor
        side = rng.randint(10, 15)
        even = (np.floor((y + phase) / side) + np.floor((x + phase) / side)) % 2
        base, texture = (150, 155, 160), np.where(even, 40, -40) + 6 * _noise(rng, height, width, 10)
    return np.asarray(base, np.float32) + tint.astype(np.float32) + texture[..., None].astype(np.float32)


class _Object(NamedTuple):
    name: str
    polygon: np.ndarray  # (points, 2) x, y in pixels
    mask: np.ndarray  # (height, width) bool


def _transform(points: Sequence, scale: float, angle: float, flip: bool, centre: Sequence[float]) -> np.ndarray:
    """Move shape coordinates into the image: (points, 2) x, y in pixels, rounded as they are written."""
    points = np.asarray(points, np.float64) * (-scale if flip else scale, scale)
    cos, sin = np.cos(angle), np.sin(angle)
    points = points @ np.array([[cos, sin], [-sin, cos]]) + np.asarray(centre)
    return np.round(points, 2)


def _rasterise(polygon: np.ndarray, height: int, width: int) -> np.ndarray:
    """The pixels of a polygon by COCO's own rule: (height, width) bool."""
    from pycocotools import mask as coco_mask

    return coco_mask.decode(coco_mask.frPyObjects([polygon.ravel().tolist()], height, width))[..., 0].astype(bool)


def _put_object(
    rng: np.random.RandomState,
    image: np.ndarray,
    free: np.ndarray,
    name: str,
    size: float,
    centre: Optional[Sequence[float]] = None,
) -> Optional[_Object]:
    """Draw one object into ``image`` if its place is free, and mark the place as taken.

    Args:
        rng: Source of every random choice.
        image: float32 BGR, (height, width, 3), changed in place.
        free: (height, width) bool, changed in place.
        name: One of :data:`CLASSES`.
        size: Longer side in pixels, before rotation.
        centre: x, y in pixels; drawn at random inside the image if None.

    Returns:
        The object, or None if it would overlap another or leave the image.
    """
    height, width = free.shape
    scale, angle, flip = size / 2, rng.uniform(-0.4, 0.4), bool(rng.randint(2))
    if centre is None:
        centre = rng.uniform(0.2, 0.8, 2) * (width, height)
    outline, details = _SHAPES[name]
    polygon = _transform(outline, scale, angle, flip, centre)
    if polygon.min() < 1 or polygon[:, 0].max() > width - 2 or polygon[:, 1].max() > height - 2:
        return None
    mask = _rasterise(polygon, height, width)
    near = cv2.dilate(mask.astype(np.uint8), np.ones((5, 5), np.uint8)).astype(bool)
    if not mask.any() or not free[near].all():
        return None

    hue = np.uint8([[[rng.randint(180), rng.randint(130, 256), rng.randint(90, 256)]]])
    colour = cv2.cvtColor(hue, cv2.COLOR_HSV2BGR)[0, 0].astype(np.float32)
    layer = np.broadcast_to(colour, image.shape).copy()
    for points, shade in details:
        paint = colour * shade if isinstance(shade, float) else np.float32(shade)
        layer[_rasterise(_transform(points, scale, angle, flip, centre), height, width)] = paint
    # A darker rim keeps the silhouette visible on a ground of the same colour.
    rim = mask & ~cv2.erode(mask.astype(np.uint8), np.ones((3, 3), np.uint8)).astype(bool)
    layer[rim] *= 0.45
    image[mask] = layer[mask]
    free[near] = False
    return _Object(name, polygon, mask)


def _finish(rng: np.random.RandomState, image: np.ndarray) -> np.ndarray:
    """Light and sensor noise, then uint8."""
    image = image * rng.uniform(0.75, 1.15) + rng.normal(0, 5, image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def draw_object(rng: np.random.RandomState, name: str, size: int) -> np.ndarray:
    """Draw one object on one ground: uint8 BGR, shape (size, size, 3)."""
    ground = list(STUFF)[rng.randint(len(STUFF))]
    image = _ground(rng, ground, size, size)
    free = np.ones((size, size), bool)
    done = None
    while done is None:
        done = _put_object(rng, image, free, name, rng.uniform(0.5, 0.85) * size)
    return _finish(rng, image)


class Scene(NamedTuple):
    """A drawn scene."""

    image: np.ndarray  # (height, width, 3) uint8 BGR
    stuff: np.ndarray  # (height, width) position in STUFF, -1 for none
    objects: list  # of _Object
    crowds: list  # of (name, mask)


def draw_scene(rng: np.random.RandomState, width: int, height: int, crowd: bool = False) -> Scene:
    """Draw one to four objects (and a crowd of small ones, if asked for) on two grounds.

    The grounds meet at a slanted horizon, two pixels of which belong to neither.
    """
    above, below = rng.choice(len(STUFF), 2, replace=False)
    names = list(STUFF)
    y, x = np.mgrid[:height, :width]
    horizon = rng.uniform(0.3, 0.7) * height + (x - width / 2) * rng.uniform(-0.3, 0.3)
    stuff = np.where(y < horizon, above, below)
    image = np.where(
        (y < horizon)[..., None], _ground(rng, names[above], height, width), _ground(rng, names[below], height, width)
    )
    stuff[np.abs(y - horizon) < 1] = -1

    free, objects, crowds = np.ones((height, width), bool), [], []
    side, wanted, tries = min(width, height), rng.randint(1, 5), 0
    while not objects or (len(objects) < wanted and tries < 16):
        name = CLASSES[rng.randint(len(CLASSES))]
        drawn = _put_object(rng, image, free, name, rng.uniform(0.35, 0.7) * side)
        objects += [drawn] if drawn else []
        tries += 1
    if crowd:
        name, size, parts = CLASSES[rng.randint(len(CLASSES))], 0.14 * side, []
        for spot in np.argwhere(free)[:: max(1, int(size) * width // 3)]:
            drawn = _put_object(rng, image, free, name, size, spot[::-1]) if len(parts) < 8 else None
            parts += [drawn.mask] if drawn else []
        if parts:
            crowds.append((name, np.any(parts, axis=0)))
    return Scene(_finish(rng, image), stuff, objects, crowds)


# ---------------------------------------------------------------------------------------------------------- writing
def _write(path: Path, image: np.ndarray) -> None:
    """Encode by suffix and write. PNG is exact, JPEG has quality 92."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _, data = cv2.imencode(path.suffix, image, [cv2.IMWRITE_JPEG_QUALITY, 92] if path.suffix == '.jpg' else [])
    path.write_bytes(data.tobytes())


def _label_map(scene: Scene, column: int, nothing: int, offset: int = 0) -> np.ndarray:
    """The uint8 map (height, width) of a scene in the numbers of ``column`` of the class tables, plus ``offset``."""
    label = np.full(scene.stuff.shape, nothing, np.uint8)
    for index, numbers in enumerate(STUFF.values()):
        label[scene.stuff == index] = numbers[column] + offset
    for name, mask in [(o.name, o.mask) for o in scene.objects] + scene.crowds:
        label[mask] = THINGS[name][column] + offset
    return label


def _counts(mask: np.ndarray) -> list:
    """Uncompressed run lengths of a mask, column by column, starting with the zeros."""
    flat = np.concatenate([[0], mask.ravel(order='F').astype(np.int8)])
    edges = np.flatnonzero(np.diff(flat))
    return np.diff(np.concatenate([[0], edges, [mask.size]])).tolist()


def _annotation(mask: np.ndarray, name: str, **more) -> dict:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
    return dict(category_id=THINGS[name][0], bbox=[float(v) for v in box], area=float(mask.sum()), **more)


def _annotations(scene: Scene, image_id: int, first_id: int) -> list:
    """The COCO annotations of a scene: polygons for objects, run lengths for crowds."""
    found = [_annotation(o.mask, o.name, iscrowd=0, segmentation=[o.polygon.ravel().tolist()]) for o in scene.objects]
    found += [
        _annotation(mask, name, iscrowd=1, segmentation=dict(counts=_counts(mask), size=list(mask.shape)))
        for name, mask in scene.crowds
    ]
    return [dict(id=first_id + i, image_id=image_id, **each) for i, each in enumerate(found)]


def _write_classification(root: Path, seed: int, split: str, count: int, size: int) -> None:
    for index in range(count):
        # Each image has its own source, so it depends on nothing but the seed, its split and its number.
        rng = np.random.RandomState([seed, 0 if split == 'train' else 1, index])
        name = CLASSES[index % len(CLASSES)]
        folder = root / 'classification' / split / name.replace(' ', '_')
        _write(folder / f'{index + 1:08d}.jpg', draw_object(rng, name, size))


def _write_scenes(root: Path, seed: int, split: str, count: int, width: int, height: int) -> None:
    train = split == 'train'
    coco, ade, long = root / 'coco', root / 'ade', 'training' if train else 'validation'
    images, annotations = [], []
    for index in range(count):
        rng = np.random.RandomState([seed, 2 if train else 3, index])
        scene = draw_scene(rng, width, height, crowd=index % 8 == 3)
        image_id = (1000 if train else 500000) + 7 * index  # as in COCO: neither from 0 nor without gaps
        name = f'{image_id:012d}'
        images.append(dict(id=image_id, file_name=f'{name}.jpg', width=width, height=height))
        annotations += _annotations(scene, image_id, first_id=100 * image_id)
        _write(coco / f'{split}2017' / f'{name}.jpg', scene.image)
        _write(coco / 'stuffthingmaps' / f'{split}2017' / f'{name}.png', _label_map(scene, 0, nothing=255, offset=-1))
        name = f'ADE_{split}_{index + 1:08d}'
        _write(ade / 'images' / long / f'{name}.jpg', scene.image)
        _write(ade / 'annotations' / long / f'{name}.png', _label_map(scene, 1, nothing=0))
    ids = [i for i in range(1, 91) if i not in _COCO_GAPS]
    categories = [dict(id=i, name=name) for i, name in zip(ids, _COCO_NAMES)]
    path = coco / 'annotations' / f'instances_{split}2017.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(images=images, annotations=annotations, categories=categories)))


def make_world(
    root: Union[str, Path],
    seed: int = 0,
    classification: Tuple[int, int] = (1600, 400),
    scenes: Tuple[int, int] = (240, 80),
    image_size: int = 64,
    scene_size: Tuple[int, int] = (128, 96),
) -> Path:
    """Generate the world; the same arguments give the same bytes.

    Args:
        root: The folder to make.
        seed: Of all random choices, 0 or more.
        classification: Images in train and val; class ``i % 8`` for image ``i``.
        scenes: Images in train and val of the COCO and the ADE20K layout.
        image_size: Side of the classification images in pixels, at least 16.
        scene_size: Width and height of the scenes in pixels, at least 32.

    Returns:
        ``root``.
    """
    for split, images, places in zip(('train', 'val'), classification, scenes):
        _write_classification(Path(root), seed, split, images, image_size)
        _write_scenes(Path(root), seed, split, places, *scene_size)
    return Path(root)
