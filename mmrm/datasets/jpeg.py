"""Decoding no more of a JPEG than a crop of it, to the same pixels as OpenCV, where libjpeg-turbo 3 is installed.

No Python package offers this, but the library does (``tj3SetCroppingRegion``): it is called through ctypes. It comes
from the system, from conda, or from the package ``turbojpeg``, whose wheels bring it (``pip install mmrm[fast]``). A
library that does not decode exactly as OpenCV does is not used, and a file that is not plain is left to OpenCV.
"""

import ctypes
import functools
import glob
import importlib.util
import os
import sys
import threading
import warnings
from ctypes.util import find_library
from typing import Iterator, NamedTuple, Optional, Tuple

import cv2
import numpy as np

Box = Tuple[int, int, int, int]  # top, left, height, width, as RandomResizedCrop draws it

# Of turbojpeg.h.
DECOMPRESS, BGR = 1, 1
SUBSAMPLING, WIDTH, HEIGHT, PRECISION, COLORSPACE, ARITHMETIC, LOSSLESS = 4, 5, 6, 7, 8, 14, 15
YCBCR, GREY = 1, 2
MAX_PIXELS = 2**26  # of a larger image LoadCheckedImage decides whether it is read
BROKEN = 0  # in place of the kind of a segment
MCU_WIDTHS = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8, 5: 32}  # of 4:4:4, 4:2:2, 4:2:0, grey, 4:4:0 and 4:1:1


class Header(NamedTuple):
    """What is needed to decode a part of a JPEG: its size, and the width of the blocks that it is made of."""

    height: int
    width: int
    block: int

    @property
    def shape(self) -> Tuple[int, int]:
        """As an array's: height and width."""
        return self.height, self.width


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ('x', 'y', 'w', 'h')]


class CropDecoder:
    """libjpeg-turbo's decoder for one box of a JPEG.

    Args:
        path: The library, ``libturbojpeg`` of libjpeg-turbo 3.
    """

    def __init__(self, path: str):
        self.path = path
        library = ctypes.CDLL(path)
        handle, data, size, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
        self._init = _function(library, 'tj3Init', handle, number)
        self._destroy = _function(library, 'tj3Destroy', None, handle)
        self._get = _function(library, 'tj3Get', number, handle, number)
        self._read_header = _function(library, 'tj3DecompressHeader', number, handle, data, size)
        self._crop = _function(library, 'tj3SetCroppingRegion', number, handle, _Region)
        self._decompress = _function(
            library, 'tj3Decompress8', number, handle, data, size, ctypes.c_void_p, number, number
        )
        self._own = threading.local()

    def header(self, content: bytes) -> Optional[Header]:
        """Of a plain JPEG; None if OpenCV must decode it: it is cut off, turned by EXIF, CMYK, huge, no JPEG."""
        if content[:2] != b'\xff\xd8' or not content.rstrip(b'\0').endswith(b'\xff\xd9') or is_turned(content):
            return None
        handle = self._handle()
        if self._read_header(handle, content, len(content)):
            return self._fail()
        wanted = (SUBSAMPLING, WIDTH, HEIGHT, PRECISION, COLORSPACE, ARITHMETIC, LOSSLESS)
        sampling, width, height, precision, colors, arithmetic, lossless = (self._get(handle, each) for each in wanted)
        plain = precision == 8 and colors in (YCBCR, GREY) and not arithmetic and not lossless
        plain = plain and width * height <= MAX_PIXELS
        return Header(height, width, MCU_WIDTHS[sampling]) if plain and sampling in MCU_WIDTHS else None

    def decode(self, content: bytes, header: Header, box: Box) -> Optional[np.ndarray]:
        """The pixels of ``box``, BGR, shape ``(height, width, 3)``; None if the file is damaged there.

        They are in a buffer that the next call of the same thread overwrites.
        """
        top, left, height, width = box
        # Chroma of less resolution is interpolated: a pixel more on each side makes those at the edge what they are in
        # the whole image. A region begins with a block.
        x, y = max(left - 1, 0) // header.block * header.block, max(top - 1, 0)
        wide, high = min(left + width + 1, header.width) - x, min(top + height + 1, header.height) - y
        handle, buffer = self._handle(), self._buffer(3 * wide * high)
        if (
            self._read_header(handle, content, len(content))
            or self._crop(handle, _Region(x, y, wide, high))
            or self._decompress(handle, content, len(content), buffer.ctypes.data, 3 * wide, BGR)
        ):
            return self._fail()
        pixels = buffer[: 3 * wide * high].reshape(high, wide, 3)
        return pixels[top - y : top - y + height, left - x : left - x + width]

    def agrees_with_opencv(self) -> bool:
        """Whether it gives OpenCV's pixels, tried on small pictures of every kind that it is used for."""
        for content in _samples():
            wanted, header = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR), self.header(content)
            if header is None or wanted.shape[:2] != header.shape:
                return False
            for box in ((0, 0, *header.shape), (17, 33, 31, 25), (30, 48, 40, 48), (1, 3, 2, 2)):
                pixels, (top, left, height, width) = self.decode(content, header, box), box
                if pixels is None or not np.array_equal(pixels, wanted[top : top + height, left : left + width]):
                    return False
        return True

    def _handle(self) -> int:
        if not hasattr(self._own, 'handle'):
            self._own.handle = self._init(DECOMPRESS)
        return self._own.handle

    def _fail(self) -> None:
        """Give up the handle: after some errors it refuses every file that follows."""
        self._destroy(self._own.__dict__.pop('handle'))

    def _buffer(self, size: int) -> np.ndarray:
        if getattr(self._own, 'buffer', None) is None or len(self._own.buffer) < size:
            self._own.buffer = np.empty(size, np.uint8)
        return self._own.buffer

    def __reduce__(self):
        return CropDecoder, (self.path,)  # a worker that is spawned opens it again


def _function(library: ctypes.CDLL, name: str, result, *arguments):
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


def jpeg_segments(content: bytes) -> Iterator[Tuple[int, int]]:
    """Kind and place of each segment of a JPEG, up to its pixels (0xDA) or to where it is ``BROKEN``."""
    place = 2
    while place + 4 <= len(content) and content[place] == 0xFF:
        kind = content[place + 1]
        if kind == 0xFF:  # a fill byte
            place += 1
            continue
        yield kind, place
        if kind == 0xDA:
            return
        place += 2 + int.from_bytes(content[place + 2 : place + 4], 'big')
    yield BROKEN, min(place, len(content))


def is_turned(content: bytes) -> bool:
    """Whether EXIF data of a JPEG ask for another orientation, which OpenCV obeys; also if they cannot be read."""
    kind = BROKEN
    for kind, place in jpeg_segments(content):
        if kind == 0xE1 and content[place + 4 : place + 8] == b'Exif' and _orientation(content[place + 10 :]) != 1:
            return True
    return kind == BROKEN


def _orientation(exif: bytes) -> int:
    """The orientation in EXIF data, which begin with the byte order; 1 if there is none, 0 if they are broken."""
    order = {b'II*\0': 'little', b'MM\0*': 'big'}.get(exif[:4])
    if order is None:
        return 0
    start = int.from_bytes(exif[4:8], order)
    number = int.from_bytes(exif[start : start + 2], order)
    for place in range(start + 2, start + 2 + 12 * number, 12):
        if place + 12 > len(exif):
            return 0
        if int.from_bytes(exif[place : place + 2], order) == 0x0112:
            return int.from_bytes(exif[place + 8 : place + 10], order)
    return 1


def _samples() -> Iterator[bytes]:
    """Small JPEGs, smooth with noise: each subsampling, progressive, grey."""
    rng = np.random.RandomState(0)
    image = cv2.resize(rng.randint(0, 256, (8, 10, 3)).astype(np.uint8), (97, 75), interpolation=cv2.INTER_CUBIC)
    image = np.clip(image + rng.randint(-25, 25, image.shape), 0, 255).astype(np.uint8)
    factor = cv2.IMWRITE_JPEG_SAMPLING_FACTOR
    for sampling in (0x111111, 0x211111, 0x221111, 0x121111, 0x411111):
        yield cv2.imencode('.jpg', image, [factor, sampling])[1].tobytes()
    yield cv2.imencode('.jpg', image, [factor, 0x221111, cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    yield cv2.imencode('.jpg', image[..., 0])[1].tobytes()


def _libraries() -> Iterator[str]:
    """Where libturbojpeg may be: the system's, conda's, that in the wheels of ``turbojpeg``."""
    found = find_library('turbojpeg')
    if found:
        yield found
    yield from sorted(glob.glob(os.path.join(sys.prefix, 'lib', 'libturbojpeg*.so*')))
    package = importlib.util.find_spec('turbojpeg')
    if package is not None and package.origin:
        folder = os.path.dirname(package.origin)
        for pattern in ('turbojpeg.libs/libturbojpeg*', 'turbojpeg.dylibs/libturbojpeg*', '.dylibs/libturbojpeg*'):
            yield from sorted(glob.glob(os.path.join(folder, pattern)))


@functools.cache
def crop_decoder() -> Optional[CropDecoder]:
    """The decoder of this machine, None if there is none or ``MMRM_CROP_DECODE=0`` is set: then OpenCV decodes."""
    if os.environ.get('MMRM_CROP_DECODE', '1') == '0':
        return None
    for path in _libraries():
        try:
            decoder = CropDecoder(path)
        except (OSError, AttributeError):  # not loadable, or a libjpeg-turbo before 3
            continue
        if decoder.agrees_with_opencv():
            return decoder
        warnings.warn(f'{path} does not decode JPEGs exactly as OpenCV and is not used.', stacklevel=2)
    return None
