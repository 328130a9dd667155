"""Image files that are broken or odd: found by name, told in one line, or trained past in the same way every time."""

import io
import os
import struct
import subprocess
import sys
import zlib

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import init_default_scope
from mmpretrain.registry import DATASETS
from PIL import Image
from torch.utils.data import DataLoader

from mmrm.datasets import images
from mmrm.datasets.images import BrokenImageError, find_problem, inspect_image
from mmrm.datasets.transforms import RMLoadResizedCrop
from mmrm.utils.errors import UserTypeError

RNG = np.random.default_rng(0)
FUZZ = int(os.environ.get('MMRM_FUZZ', 20))  # changed files of each kind
PIXELS = RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8)


def encode(pixels=PIXELS, kind='JPEG', **options):
    file = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(file, kind, **options)
    return file.getvalue()


# ------------------------------------------------------------------------------------------------------ a file alone
@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP'])
def test_a_file_that_is_cut_short_anywhere_in_its_pixels_is_found_as_pillow_finds_it(kind):
    data = encode(kind=kind)
    assert find_problem(data) == find_problem(data + bytes(5000)) == ''
    for length in range(len(data) // 2, len(data) - (2 if kind == 'JPEG' else 16), 97):
        with pytest.raises(OSError):
            Image.open(io.BytesIO(data[:length])).load()
        assert 'is cut short' in find_problem(data[:length])


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_image():
    data = encode(exif=b'Exif\x00\x00' + encode(PIXELS[:8, :8]))
    assert data.count(b'\xff\xd9') == 2 and find_problem(data) == ''
    assert 'is cut short' in find_problem(data[: len(data) * 3 // 4])


@pytest.mark.parametrize(
    'name,data,told',
    [
        ('zero.jpg', b'', 'is empty (0 bytes)'),
        ('page.jpg', b'<!DOCTYPE html><html></html>', 'is not an image but a web page'),
        ('phone.heic', b'\0\0\0\x18ftypheic' + bytes(50), 'HEIC or AVIF; convert it'),
        ('bad.png', encode(kind='PNG')[:60] + bytes(40) + encode(kind='PNG')[100:], 'cannot be decoded'),
    ],
)
def test_broken_file_is_explained(tmp_path, name, data, told):
    (tmp_path / name).write_bytes(data)
    finding = inspect_image(tmp_path / name)
    assert told in finding.problem and finding.path == str(tmp_path / name)


@pytest.mark.parametrize(
    'name,image,note',
    [
        ('a.jpg', Image.fromarray(PIXELS), ''),
        ('grey.jpg', Image.fromarray(PIXELS[..., 0]), 'grey'),
        ('cmyk.jpg', Image.fromarray(PIXELS).convert('CMYK'), 'CMYK'),
        ('palette.png', Image.fromarray(PIXELS).convert('P'), 'a palette'),
        ('alpha.png', Image.fromarray(PIXELS).convert('RGBA'), 'transparency: it is dropped'),
        ('deep.png', Image.fromarray(PIXELS[..., 0].astype(np.uint16) << 8), '16 bits a channel'),
    ],
)
def test_other_modes_than_rgb_are_reported_as_training_reads_them(tmp_path, name, image, note):
    image.save(tmp_path / name)
    finding = inspect_image(tmp_path / name)
    assert finding.problem == '' and finding.size == (60, 40)
    assert finding.note.startswith(note) if note else finding.note == ''
    loaded = images.LoadCheckedImage().transform(dict(img_path=str(tmp_path / name)))
    assert loaded['img'].shape == (40, 60, 3) and loaded['img'].dtype == np.uint8


def test_without_decoding_size_depth_and_ends_are_known(tmp_path):
    cv2.imwrite(str(tmp_path / 'deep.png'), PIXELS.astype(np.uint16) * 257)
    assert inspect_image(tmp_path / 'deep.png', decode=False).note == images.DEEP, 'though Pillow shows 8 bits'
    (tmp_path / 'a.jpg').write_bytes(encode())
    (tmp_path / 'b.jpg').write_bytes(encode()[:-500])
    assert inspect_image(tmp_path / 'a.jpg', decode=False).size == (60, 40)
    assert 'cut short' in inspect_image(tmp_path / 'b.jpg', decode=False).problem
    assert inspect_image(tmp_path / 'none.jpg').problem == 'does not exist'


def bomb(kind):
    """A file of a few kilobytes whose header says 30000 x 30000 pixels."""
    data = bytearray(encode(kind=kind))
    if kind == 'PNG':
        data[16:24] = struct.pack('>II', 30000, 30000)
        data[29:33] = struct.pack('>I', zlib.crc32(data[12:29]))
    else:
        frame = data.index(b'\xff\xc0')
        data[frame + 5 : frame + 9] = struct.pack('>HH', 30000, 30000)
    return bytes(data)


@pytest.mark.parametrize('kind', ['PNG', 'JPEG'])
@pytest.mark.parametrize('load', [images.LoadCheckedImage(), RMLoadResizedCrop(32)])
def test_a_decompression_bomb_is_refused_by_its_header_wherever_it_is_read(load, kind, tmp_path):
    (tmp_path / 'bomb').write_bytes(bomb(kind))
    assert 'exceeds limit' in inspect_image(tmp_path / 'bomb', decode=False).problem
    with pytest.raises(BrokenImageError, match=r'bomb cannot be decoded: .*900000000 pixels\) exceeds limit'):
        load.transform(dict(img_path=str(tmp_path / 'bomb')))


def test_commands_set_the_limit_for_data_sets_of_others_too(tmp_path):
    (tmp_path / 'bomb.png').write_bytes(bomb('PNG'))
    code = f"""
import contextlib, mmrm.cli
with contextlib.suppress(SystemExit):
    mmrm.cli.main(['train', '--help'])
import cv2
try:
    cv2.imread({str(tmp_path / 'bomb.png')!r})
except cv2.error as error:
    print(error)
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert 'CV_IO_MAX_IMAGE_PIXELS' in done.stdout + done.stderr


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP', 'BMP', 'TIFF', 'PPM', 'GIF'])
def test_a_file_with_other_bytes_or_a_piece_of_one_is_read_or_named(kind, tmp_path):
    rng, data, path = np.random.default_rng(0), encode(kind=kind), tmp_path / 'image'
    for load in (images.LoadCheckedImage(), RMLoadResizedCrop(32)):
        for _ in range(FUZZ):
            changed = bytearray(data)
            for place in rng.integers(0, 150 if rng.random() < 0.8 else len(data), rng.integers(1, 5)):
                changed[place] = rng.integers(256)
            path.write_bytes(changed[: rng.integers(len(data)) if rng.random() < 0.2 else None])
            try:
                image = load.transform(dict(img_path=str(path), gt_label=0))['img']
            except BrokenImageError as error:
                assert str(path) in str(error)
            else:
                assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3


# -------------------------------------------------------------------------------------------------------- in training
@pytest.fixture
def folder(tmp_path):
    """Two classes of four images; one is cut short, one is empty."""
    for index in range(8):
        path = tmp_path / f'class{index // 4}' / f'{index}.jpg'
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(np.full((40, 60, 3), 30 * index, np.uint8)))
    (tmp_path / 'class0' / '1.jpg').write_bytes(encode()[:-500])
    (tmp_path / 'class1' / '7.jpg').write_bytes(b'')
    return tmp_path


def build(folder, kind='RMImageFolder', **options):
    init_default_scope('mmpretrain')
    pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    return DATASETS.build(dict(type=kind, data_root=str(folder), pipeline=pipeline, **options))


def test_the_broken_file_is_named(folder):
    dataset = build(folder)
    assert len(dataset) == 8 and int(dataset[0]['data_samples'].gt_label) == 0
    with pytest.raises(BrokenImageError, match=r'class0/1\.jpg is cut short: a JPEG without its end\.$'):
        dataset[1]
    with pytest.raises(BrokenImageError, match=r'class1/7\.jpg is empty \(0 bytes\)\.$'):
        dataset[7]
    dataset.pipeline = lambda info: 1 / 0
    with pytest.raises(ZeroDivisionError):  # an error of a transform stays what it is
        dataset[0]


def test_the_next_image_takes_the_place_of_a_broken_one(folder):
    with pytest.raises(UserTypeError, match='skip_broken=1 must be True or False'):
        build(folder, skip_broken=1)
    dataset = build(folder, skip_broken=True)
    paths = [dataset[index]['data_samples'].img_path.rpartition('/')[2] for index in range(8)]
    assert paths == ['0.jpg', '2.jpg', '2.jpg', '3.jpg', '4.jpg', '5.jpg', '6.jpg', '0.jpg']
    assert dataset.skipped == 2
    for path in folder.rglob('*.jpg'):
        path.write_bytes(b'')
    with pytest.raises(BrokenImageError, match='8 images in a row are broken'):
        build(folder, skip_broken=True)[0]


def test_each_broken_image_is_logged_once_and_counted_over_all_workers(folder, capfd):
    dataset = build(folder, skip_broken=True)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=list, persistent_workers=True)
    for _ in range(3):
        assert sum(map(len, loader)) == 8
    told = ''.join(capfd.readouterr())
    assert dataset.skipped == 2
    assert told.count('1.jpg is cut short') == told.count('7.jpg is empty') == 1 and '2 skipped so far' in told


def test_imagenet_skips_broken_images(folder):
    (folder / 'train').mkdir()
    for name in ('class0', 'class1'):
        (folder / name).rename(folder / 'train' / name)
    dataset = build(
        folder, kind='RMImageNet', split='train', skip_broken=True, metainfo=dict(classes=('class0', 'class1'))
    )
    assert dataset[1]['data_samples'].img_path.endswith('2.jpg')


def test_draws_do_not_depend_on_broken_images_before(folder):
    """A sample is seeded by its place: the crop of the image that stands in is the same in every run."""
    from mmrm.datasets.seeding import Draw, SeededDataset

    init_default_scope('mmpretrain')
    pipeline = [dict(type='LoadImageFromFile'), dict(type='RandomResizedCrop', scale=16), dict(type='PackInputs')]
    (folder / 'class0' / '2.jpg').write_bytes(encode())  # structure, so that crops differ
    dataset = SeededDataset(
        DATASETS.build(dict(type='RMImageFolder', data_root=str(folder), pipeline=pipeline, skip_broken=True))
    )
    once = dataset.__getitems__([Draw(0, (1, 0)), Draw(1, (1, 1)), Draw(2, (1, 2))])
    again = dataset.__getitems__([Draw(1, (1, 1))])
    other = dataset.__getitems__([Draw(1, (2, 1))])
    assert torch.equal(once[1]['inputs'], again[0]['inputs'])
    assert not torch.equal(once[1]['inputs'], other[0]['inputs'])
