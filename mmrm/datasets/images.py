"""Image files: which are broken, which are not 8-bit RGB, and training that skips the broken ones.

OpenCV, which decodes for training, answers a JPEG that was cut short with a picture whose lower part is grey, and an
empty file with an error that does not name it. Here both are a :class:`BrokenImageError` with the file's name.
"""

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import NamedTuple, Optional, Tuple, Union

import cv2
import mmcv
import numpy as np
import torch
from mmcv.transforms import LoadImageFromFile
from mmengine import fileio
from mmengine.logging import print_log
from mmpretrain.datasets import CustomDataset
from mmpretrain.registry import DATASETS
from PIL import Image

from ..utils.errors import UserFileError, UserTypeError
from ..utils.paths import find
from .jpeg import jpeg_segments

EXTENSIONS = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif', '.tiff', '.webp')
# What Pillow and OpenCV decode alike; of another format OpenCV is asked, too.
COMMON = ('JPEG', 'MPO', 'PNG', 'BMP', 'WEBP', 'PPM')
# What becomes of an image that is not 8-bit RGB when OpenCV reads it in colour.
MODES = {
    'L': 'grey: its one channel is used three times',
    'LA': 'grey with transparency: the transparency is dropped',
    'RGBA': 'transparency: it is dropped, what is below it shows',
    'P': 'a palette: its colours are looked up',
    'PA': 'a palette with transparency: the transparency is dropped',
    'CMYK': 'CMYK: converted to RGB without its colour profile, colours may be off',
    'YCCK': 'CMYK: converted to RGB without its colour profile, colours may be off',
    '1': 'black and white: its one channel is used three times',
}
DEEP = '16 bits a channel: cut to 8'
TRIES = 100  # broken images in a row that end a run, whatever is asked for


class BrokenImageError(UserFileError):
    """An image file that cannot be decoded, or only in part."""


class Finding(NamedTuple):
    """What is known of an image file.

    Args:
        path (str): The file.
        problem (str): Why it cannot be used, '' if it can: 'is empty', 'is cut short', ...
        note (str): What becomes of it if it is not 8-bit RGB, '' if it is.
        size (tuple[int, int], optional): Width and height in pixels.
    """

    path: str
    problem: str = ''
    note: str = ''
    size: Optional[Tuple[int, int]] = None


# ------------------------------------------------------------------------------------------------------ a file alone
def find_problem(data: bytes) -> str:
    """Why the bytes of a file cannot be decoded, by its ends and its header; '' if they may be an image.

    The limit of pixels is Pillow's (``2 * PIL.Image.MAX_IMAGE_PIXELS``, 179 megapixels): a small file may ask for
    gigabytes of memory.
    """
    if not data:
        return 'is empty (0 bytes)'
    if data[:2] == b'\xff\xd8':
        *_, (_, scan) = jpeg_segments(data)  # a thumbnail in a segment before the pixels has an end of its own
        if data.rfind(b'\xff\xd9', scan) < 0:
            return 'is cut short: a JPEG without its end'
    if data[:8] == b'\x89PNG\r\n\x1a\n' and data.rfind(b'IEND') < 0:
        return 'is cut short: a PNG without its end'
    if data[:4] == b'RIFF' and data[8:12] == b'WEBP' and int.from_bytes(data[4:8], 'little') + 8 > len(data):
        return 'is cut short: a WebP without its end'
    return _inspect(data, decode=False).problem


def inspect_image(path: Union[str, Path], decode: bool = True) -> Finding:
    """Look at an image file.

    Args:
        path (str | Path): The file, or an address of mmengine's.
        decode (bool): Whether to decode all of it; False reads the header and looks at the end. Defaults to True.
    """
    path = str(path)
    try:
        data = fileio.get(path)
    except FileNotFoundError:
        return Finding(path, 'does not exist')
    except OSError as error:
        return Finding(path, f'cannot be read: {error.strerror or error}')
    problem = find_problem(data)
    return Finding(path, problem) if problem else _inspect(data, decode, look=True)._replace(path=path)


def _inspect(data: bytes, decode: bool, look: bool = False) -> Finding:
    """What Pillow says of a file; ``look``: also its size and what becomes of it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # of palettes with transparency, of sizes above 90 megapixels
            with Image.open(io.BytesIO(data)) as image:
                finding = Finding('', '', _note_of(image), image.size) if look else Finding('')
                if decode:
                    image.load()
        ask_opencv = decode and image.format not in COMMON
        if ask_opencv and cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) is None:
            return Finding('', f'is a {image.format} that OpenCV cannot decode; convert it to JPEG or PNG')
    except Image.UnidentifiedImageError:
        return Finding('', f'is not an image{_what_it_is(data)}')
    except Exception as error:  # decoders raise many kinds
        return Finding('', f'cannot be decoded: {" ".join(str(error).split()) or type(error).__name__}')
    return finding


def _note_of(image: Image.Image) -> str:
    # Pillow shows colour PNGs of 16 bits a channel as 8-bit RGB; what it decodes is RGB;16B.
    if image.mode.startswith('I') or image.mode == 'F' or ';16' in str(image.tile):
        return DEEP
    if getattr(image, 'n_frames', 1) > 1 and image.format != 'MPO':
        return f'{image.n_frames} frames: the first is used'
    return MODES.get(image.mode, '' if image.mode == 'RGB' else f'mode {image.mode}: converted to RGB')


def _what_it_is(data: bytes) -> str:
    begin = data[:256].lstrip().lower()
    if begin.startswith((b'<!doctype', b'<html')):
        return ' but a web page'
    if begin.startswith((b'<svg', b'<?xml')):
        return ' of pixels but a text (SVG or XML)'
    if b'ftyphei' in data[:32] or b'ftypmif' in data[:32] or b'ftypavif' in data[:32]:
        return ' that OpenCV reads but HEIC or AVIF; convert it to JPEG or PNG'
    return ''


# -------------------------------------------------------------------------------------------------------- in training
class LoadCheckedImage(LoadImageFromFile):
    """mmcv's ``LoadImageFromFile``, where a file that is empty, cut short or no image is an error that names it.

    :class:`RMImageFolder` puts it in mmcv's place, so that a config names the transform that every tool knows.
    """

    def transform(self, results: dict) -> dict:
        """Load ``results['img_path']``."""
        path = results['img_path']
        data = fileio.get(path, backend_args=self.backend_args)
        problem, image = find_problem(data), None
        if not problem:
            with contextlib.suppress(cv2.error):
                image = mmcv.imfrombytes(data, flag=self.color_type, backend=self.imdecode_backend)
        if image is None:
            raise BrokenImageError(f'image {path} {problem or inspect_image(path).problem or "cannot be decoded"}.')
        results['img'] = image.astype(np.float32) if self.to_float32 else image
        results['img_shape'] = results['ori_shape'] = image.shape[:2]
        return results


def name_broken(dataset, index: int, error: Exception) -> Optional[BrokenImageError]:
    """The error that names the file of a sample that failed to load, None if its file is not what is wrong."""
    if isinstance(error, BrokenImageError):
        return error
    try:
        path = dataset.get_data_info(index)['img_path']
    except Exception:  # a data set of another kind
        return None
    problem = inspect_image(path).problem
    return BrokenImageError(f'image {path} {problem}.') if problem else None


class CheckedImages:
    """A data set of image files that names the one that is broken or, if asked, trains past it.

    What takes the place of a broken image is the next one of the list: the same in every run and every epoch, and what
    its transforms draw is seeded by the place in the epoch as always, so that a resumed run sees the same.

    Args:
        data_root (str): The folder of the images; a relative one is looked up from the current folder, then from the
            project's. Defaults to ''.
        *args: Of the data set.
        skip_broken (bool): Take the next image for one that is broken. Each is logged once, with a count. Meant for
            training: in a validation the next image counts twice. Defaults to False, an error with the file's name.
        **kwargs: Of the data set.
    """

    hint = ''  # what to do if the folder does not exist

    def __init__(self, data_root: str = '', *args, skip_broken: bool = False, **kwargs):
        if not isinstance(skip_broken, bool):
            raise UserTypeError(f'skip_broken={skip_broken!r} must be True or False.')
        self.skip_broken = skip_broken
        self._skipped: Optional[torch.Tensor] = None
        local = data_root and '://' not in data_root
        super().__init__(str(find(data_root)) if local else data_root, *args, **kwargs)

    def load_data_list(self) -> list:
        """The images' paths and labels, after a look at the folder."""
        if '://' not in self.img_prefix and not Path(self.img_prefix).is_dir():
            raise UserFileError(f'the data folder {self.img_prefix} does not exist.{self.hint}')
        return super().load_data_list()

    def full_init(self) -> None:
        """Load the list; a mark for each image is shared with the loader's workers."""
        super().full_init()
        if self.skip_broken and self._skipped is None:
            self._skipped = torch.zeros(len(self), dtype=torch.uint8).share_memory_()

    @property
    def skipped(self) -> int:
        """How many broken images have been met, by any worker."""
        return 0 if self._skipped is None else int(self._skipped.sum())

    def prepare_data(self, idx: int):
        """The sample ``idx`` or, where its file is broken and may be skipped, the next one whose is not."""
        for step in range(min(len(self), TRIES)):
            place = (idx + step) % len(self)
            try:
                return super().prepare_data(place)
            except Exception as error:
                broken = name_broken(self, place, error)
                if broken is None:
                    raise
                if not self.skip_broken:
                    raise broken from None
                self._log_skipped(place, broken)
        raise BrokenImageError(f'{step + 1} images in a row are broken, the last: {broken}')

    def _log_skipped(self, place: int, broken: BrokenImageError) -> None:
        if self._skipped is None or self._skipped[place]:
            return
        self._skipped[place] = 1
        print_log(f'{broken} Using the next image instead; {self.skipped} skipped so far.', 'current', logging.WARNING)


@DATASETS.register_module()
class RMImageFolder(CheckedImages, CustomDataset):
    """mmpretrain's ``CustomDataset``, a folder per class or a list of files, that names broken images or skips them.

    Also those that are cut short, which OpenCV would fill up with grey.

    Args:
        *args: ``data_root`` and other arguments of :class:`mmpretrain.datasets.CustomDataset`.
        extensions (Sequence[str]): Of the files that are taken. Defaults to those of mmpretrain, TIFF and WebP.
        **kwargs: Likewise; ``skip_broken`` as in :class:`CheckedImages`.
    """

    def __init__(self, *args, extensions=EXTENSIONS, **kwargs):
        super().__init__(*args, extensions=extensions, **kwargs)
        for place, step in enumerate(self.pipeline.transforms):
            if type(step) is LoadImageFromFile and step.file_client_args is None and not step.ignore_empty:
                self.pipeline.transforms[place] = LoadCheckedImage(
                    step.to_float32, step.color_type, step.imdecode_backend, backend_args=step.backend_args
                )
