"""Decoding only a crop gives OpenCV's pixels, and everything unusual is left to OpenCV."""

import ctypes.util
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from PIL import Image

import mmrm.models  # noqa: F401
from mmrm.datasets import jpeg
from mmrm.datasets.transforms import RMLoadResizedCrop, RMRandomResizedCrop

needs_library = pytest.mark.skipif(jpeg.crop_decoder() is None, reason='no libjpeg-turbo 3: pip install turbojpeg')
SAMPLING = {'4:4:4': 0x111111, '4:2:2': 0x211111, '4:2:0': 0x221111, '4:4:0': 0x121111, '4:1:1': 0x411111}
OPTIONS = {
    'plain': [],
    'progressive': [cv2.IMWRITE_JPEG_PROGRESSIVE, 1],
    'restarts': [cv2.IMWRITE_JPEG_RST_INTERVAL, 3],
    'optimised': [cv2.IMWRITE_JPEG_OPTIMIZE, 1, cv2.IMWRITE_JPEG_QUALITY, 60],
}


def picture(height=131, width=173, seed=0):
    """Edges, smooth parts and noise, so that wrong neighbours show."""
    rng = np.random.RandomState(seed)
    image = cv2.resize(rng.randint(0, 256, (9, 11, 3)).astype(np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
    image[height // 3 : height // 2, width // 4 :] = rng.randint(0, 256, 3)
    return np.clip(image.astype(int) + rng.randint(-30, 30, image.shape), 0, 255).astype(np.uint8)


def encode(image, *options):
    return cv2.imencode('.jpg', image, list(options))[1].tobytes()


def save(image, kind='JPEG', **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def turned(orientation):
    image = Image.fromarray(picture())
    exif = Image.Exif()
    exif[0x010F] = 'a camera'
    exif[0x0112] = orientation
    return save(image, exif=exif.tobytes())


def unusual():
    """Files that OpenCV must decode itself, or refuses."""
    image = picture()
    plain = encode(image)
    cmyk = save(Image.fromarray(image).convert('CMYK'))
    broken = bytearray(plain)
    broken[len(plain) // 2 : len(plain) // 2 + 40] = bytes(40)
    return {
        **{f'turned {number}': turned(number) for number in (3, 6)},
        'cmyk': cmyk,
        'png': save(Image.fromarray(image), 'PNG'),
        'truncated': plain[: len(plain) // 2],
        'truncated, with an end': plain[: len(plain) // 2] + b'\xff\xd9',
        'damaged': bytes(broken),
        'more behind the end': plain + b'something else',
    }


def decode(content):
    return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)


@needs_library
@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize('sampling', SAMPLING.values(), ids=SAMPLING)
def test_any_crop_is_that_of_the_whole_image(sampling, options):
    decoder, rng = jpeg.crop_decoder(), np.random.RandomState(1)
    for height, width in ((131, 173), (64, 64), (17, 200), (5, 3)):
        content = encode(picture(height, width), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling, *options)
        whole = decode(content)
        header = decoder.header(content)
        assert header.shape == (height, width)
        for _ in range(15):
            top, left = rng.randint(height), rng.randint(width)
            box = top, left, rng.randint(1, height - top + 1), rng.randint(1, width - left + 1)
            got = decoder.decode(content, header, box)
            assert np.array_equal(got, whole[top : top + box[2], left : left + box[3]]), box


@pytest.mark.parametrize('orientation', range(1, 9))
def test_only_orientation_1_is_upright(orientation):
    assert jpeg.is_turned(turned(orientation)) == (orientation != 1)
    assert not jpeg.is_turned(encode(picture()))


@pytest.mark.parametrize('cut', [22, 38])
def test_exif_data_that_cannot_be_read_are_left_to_opencv(cut):
    content = turned(6)
    start = content.index(b'Exif') - 4
    assert jpeg.is_turned(content[: start + 2] + (cut - 2).to_bytes(2, 'big') + content[start + 4 : start + cut])


@needs_library
@pytest.mark.parametrize('name', [*sorted(set(unusual()) - {'truncated'}), 'plain', 'upright', 'grey', 'progressive'])
def test_load_resized_crop_equals_load_then_crop(name, tmp_path):
    content = {
        **unusual(),
        'plain': encode(picture()),
        'upright': turned(1),
        'grey': encode(picture()[..., 1]),
        'progressive': encode(picture(), cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
    }[name]
    left_to_opencv = name in ('turned 6', 'cmyk', 'png', 'more behind the end')
    assert not left_to_opencv or jpeg.crop_decoder().header(content) is None
    assert_loads_as_two_steps(content, tmp_path)


def assert_loads_as_two_steps(content, tmp_path):
    path = tmp_path / 'image.JPEG'
    path.write_bytes(content)
    fused, load, crop = pickle.loads(pickle.dumps(RMLoadResizedCrop(48))), LoadImageFromFile(), RMRandomResizedCrop(48)
    for seed in range(6):
        np.random.seed(seed)
        wanted, after = crop(load(dict(img_path=str(path), gt_label=1))), np.random.rand()
        np.random.seed(seed)
        got, after_got = fused(dict(img_path=str(path), gt_label=1)), np.random.rand()
        assert np.array_equal(got.pop('img'), wanted.pop('img')) and got == wanted
        assert after == after_got  # what follows draws the same


@needs_library
def test_after_a_broken_file_the_next_one_is_decoded():
    decoder, content = jpeg.crop_decoder(), encode(picture())
    place = content.index(b'\xff\xc4') + 5
    broken = content[:place] + b'\xff' * 16 + content[place + 16 :]  # a Huffman table of too many codes
    for _ in range(3):
        assert decoder.header(broken) is None
        header = decoder.header(content)
        assert decoder.decode(content[: len(content) // 2], header, (0, 0, *header.shape)) is None
        assert decoder.decode(content, header, (0, 0, *header.shape)) is not None


@needs_library
def test_damage_below_the_crop_does_not_matter_and_damage_in_it_falls_back():
    decoder, content = jpeg.crop_decoder(), encode(picture())
    header, half = decoder.header(content), content[: len(content) // 2]
    whole = decode(content)
    assert np.array_equal(decoder.decode(half, header, (0, 0, 16, 100)), whole[:16, :100])
    assert decoder.decode(half, header, (100, 0, 16, 100)) is None


@needs_library
def test_threads_do_not_share_their_buffers():
    decoder = jpeg.crop_decoder()

    def is_right(content):
        header, whole = decoder.header(content), decode(content)
        crops = [decoder.decode(content, header, (3, 5, 99, 77)) for _ in range(50)]
        return all(np.array_equal(crop, whole[3:102, 5:82]) for crop in crops)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(is_right, [encode(picture(seed=seed)) for seed in range(3)]))


@pytest.fixture
def search(monkeypatch):
    """Search the library again, before and after."""
    jpeg.crop_decoder.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    jpeg.crop_decoder.cache_clear()


@pytest.mark.parametrize('how', ['other libraries', 'turned off'])
def test_without_a_library_opencv_decodes(how, search, tmp_path):
    if how == 'turned off':
        search.setenv('MMRM_CROP_DECODE', '0')
    else:  # one that is not there and one without the functions
        search.setattr(jpeg, '_libraries', lambda: ['/nowhere/libturbojpeg.so.0', ctypes.util.find_library('c')])
    assert jpeg.crop_decoder() is None
    assert_loads_as_two_steps(encode(picture()), tmp_path)


@needs_library
def test_a_library_that_decodes_otherwise_is_not_used(search):
    decode = jpeg.CropDecoder.decode
    search.setattr(jpeg.CropDecoder, 'decode', lambda *arguments: decode(*arguments) ^ 1)
    with pytest.warns(UserWarning, match='exactly as OpenCV'):
        assert jpeg.crop_decoder() is None
