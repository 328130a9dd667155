"""A folder of drawn photographs: JPEGs of several sizes, a shape on a soft background, a folder per class."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SHAPES = ('circle', 'square', 'stripes')


def draw(kind: str, rng: np.random.Generator, low: int = 150, high: int = 300) -> Image.Image:
    """One picture; its sides are between ``low`` and ``high`` pixels."""
    width, height = (int(side) for side in rng.integers(low, high, 2))
    image = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height), Image.BICUBIC)
    pen, side = ImageDraw.Draw(image), int(0.5 * min(width, height))
    left, top = (int(rng.uniform(0, 1) * (each - side)) for each in (width, height))
    colour = tuple(int(value) for value in rng.integers(0, 256, 3))
    box = (left, top, left + side, top + side)
    if kind == 'circle':
        pen.ellipse(box, fill=colour)
    elif kind == 'square':
        pen.rectangle(box, fill=colour)
    else:
        for offset in range(0, side, 8):
            pen.line((left, top + offset, left + side, top + offset), fill=colour, width=4)
    return image


def write_photographs(root: Path, number: int, kinds=SHAPES, seed: int = 0, **sides) -> Path:
    """``number`` pictures of each kind in ``root/<kind>``; names have a blank, as cameras' and people's do."""
    rng = np.random.default_rng(seed)
    for kind in kinds:
        (root / kind).mkdir(parents=True, exist_ok=True)
        for index in range(number):
            draw(kind, rng, **sides).save(root / kind / f'{kind} {index}.jpg', quality=90)
    return root
