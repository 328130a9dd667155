"""The demo's photographs: blood cells under a microscope, in the layouts of COCO, ADE20K and ImageNet.

``blood_cells.zip`` holds 110 photographs of BCCD, 240 x 180, with their boxes and its licence.
:func:`make_photographs` writes them as the toolboxes read them::

    <root>/photographs.json                        what they were made of
    <root>/LICENSE                                 of BCCD
    <root>/coco/annotations/{train,val}.json       boxes
    <root>/ade/images/{train,val}/*.jpg            the photographs, of both layouts
    <root>/ade/annotations/{train,val}/*.png       maps: 0 background, then the classes
    <root>/cells/{train,val}/<class>/*.png         single cells, 32 x 32

BCCD has boxes only. Its cells are round, so a map takes the ellipse in a box for the cell.
"""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import cv2
import numpy as np

from mmrm.utils.errors import UserValueError
from tools.runs.folders import make_once

FILE = Path(__file__).with_name('blood_cells.zip')
VERSION = 1  # of the layouts that are written
CLASSES = ('RBC', 'WBC', 'Platelets')  # red and white blood cells, platelets
SEG_CLASSES = ('background', *CLASSES)
COUNTS = {'train': 80, 'val': 30}
CELL = 32  # side of a single cell
MARGIN = 1.2  # of the square that is cut out, in longer sides of its box
LEAST = 24  # side of that square, so that a platelet is not a blur
RED = 3  # red cells taken of a photograph: there are ten times as many as of the others


class Cell(NamedTuple):
    """A box around a cell, in pixels of the photograph."""

    name: str
    x1: float
    y1: float
    x2: float
    y2: float


def make_photographs(root: Union[str, Path], train: Optional[int] = None, val: Optional[int] = None) -> Path:
    """Write the photographs in all layouts, or find those that are there.

    Args:
        root: The folder to make, whole or not at all; see :func:`~tools.runs.folders.make_once`.
        train: How many to train on. Defaults to all 80.
        val: How many are held out. Defaults to all 30.

    Raises:
        UserValueError: If there are not so many.
        UserFileError: If ``root`` holds something else, or cannot be written.
    """
    counts = dict(train=COUNTS['train'] if train is None else train, val=COUNTS['val'] if val is None else val)
    for split, count in counts.items():
        if not 1 <= count <= COUNTS[split]:
            raise UserValueError(f'{split}={count} photographs: from 1 to {COUNTS[split]} are there.')
    stamp = dict(version=VERSION, file=hashlib.sha256(FILE.read_bytes()).hexdigest()[:16], **counts)

    def write(folder: Path) -> None:
        with zipfile.ZipFile(FILE) as archive:
            (folder / 'LICENSE').write_bytes(archive.read('LICENSE'))
            boxes = json.loads(archive.read('boxes.json'))
            for split, count in counts.items():
                names = list(boxes[split])
                kept = [names[index * len(names) // count] for index in range(count)]
                pictures = {name: archive.read(f'{split}/{name}.jpg') for name in kept}
                _write_split(
                    folder, split, pictures, {name: [Cell(*each) for each in boxes[split][name]] for name in kept}
                )

    return make_once(root, 'photographs.json', stamp, "a folder of the demo's photographs", write)


def _write_split(root: Path, split: str, pictures: Dict[str, bytes], boxes: Dict[str, List[Cell]]) -> None:
    images, maps = root / 'ade' / 'images' / split, root / 'ade' / 'annotations' / split
    cells = {name: root / 'cells' / split / name for name in CLASSES}
    for folder in (images, maps, root / 'coco' / 'annotations', *cells.values()):
        folder.mkdir(parents=True, exist_ok=True)
    records: List[dict] = []
    annotations: List[dict] = []
    for number, (name, content) in enumerate(pictures.items(), 1):
        (images / f'{name}.jpg').write_bytes(content)
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
        cv2.imwrite(str(maps / f'{name}.png'), label_map(boxes[name], image.shape[:2]))
        for index, cell in enumerate(_some(boxes[name])):
            cv2.imwrite(str(cells[cell.name] / f'{name}_{index:02d}.png'), cut_out(image, cell))
        records.append(dict(id=number, file_name=f'{name}.jpg', width=image.shape[1], height=image.shape[0]))
        for cell in boxes[name]:
            width, height = round(cell.x2 - cell.x1, 1), round(cell.y2 - cell.y1, 1)
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=number,
                    category_id=CLASSES.index(cell.name) + 1,
                    bbox=[cell.x1, cell.y1, width, height],
                    area=width * height,
                    iscrowd=0,
                )
            )
    categories = [dict(id=number, name=name) for number, name in enumerate(CLASSES, 1)]
    content = dict(images=records, annotations=annotations, categories=categories)
    (root / 'coco' / 'annotations' / f'{split}.json').write_text(json.dumps(content))


def _some(cells: List[Cell]) -> List[Cell]:
    """All cells but for red ones, of which the first :data:`RED`."""
    red = [cell for cell in cells if cell.name == 'RBC'][:RED]
    return [cell for cell in cells if cell.name != 'RBC'] + red


def label_map(cells: List[Cell], shape: Tuple[int, int]) -> np.ndarray:
    """The class of each pixel, uint8 of ``shape``: the ellipse in each box; where two meet, the rarer class."""
    labels = np.zeros(shape, np.uint8)
    y, x = np.mgrid[: shape[0], : shape[1]] + 0.5
    for cell in sorted(cells, key=lambda cell: CLASSES.index(cell.name)):
        across = (2 * x - cell.x1 - cell.x2) / (cell.x2 - cell.x1)
        down = (2 * y - cell.y1 - cell.y2) / (cell.y2 - cell.y1)
        labels[across**2 + down**2 <= 1] = SEG_CLASSES.index(cell.name)
    return labels


def cell_sources(size: int = 64) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """The single cells to train on, ``size`` pixels square: the image (uint8 BGR) and the ellipse in the box (bool)."""
    with zipfile.ZipFile(FILE) as archive:
        for name, boxes in json.loads(archive.read('boxes.json'))['train'].items():
            image = cv2.imdecode(np.frombuffer(archive.read(f'train/{name}.jpg'), np.uint8), cv2.IMREAD_COLOR)
            for cell in _some([Cell(*each) for each in boxes]):
                mask = 255 * (label_map([cell], image.shape[:2]) > 0).astype(np.uint8)
                yield cut_out(image, cell, size), cut_out(mask, cell, size) > 127


def cut_out(image: np.ndarray, cell: Cell, size: int = CELL) -> np.ndarray:
    """A square around a cell, resized to ``size`` x ``size``; what lies outside of the photograph repeats its edge."""
    side = max(MARGIN * max(cell.x2 - cell.x1, cell.y2 - cell.y1), LEAST)
    scale = side / size
    # Where the pixels of the small picture come from. One way for cells smaller and larger than it.
    x, y = (
        (np.arange(size, dtype=np.float32) + 0.5) * scale - 0.5 + (low + high - side) / 2
        for low, high in ((cell.x1, cell.x2), (cell.y1, cell.y2))
    )
    x, y = (values.astype(np.float32) for values in np.meshgrid(x, y))
    if scale > 1:  # as INTER_AREA: no pixel is skipped
        image = cv2.GaussianBlur(image, (0, 0), 0.4 * scale)
    return cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
