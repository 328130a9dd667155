import cv2
import numpy as np
import pytest
from mmpretrain.registry import DATASETS

import mmrm.models  # noqa: F401
from mmrm.utils.errors import UserFileError

CLASSES = dict(classes=['cat', 'dog', 'eel'])


@pytest.fixture
def root(tmp_path):
    """Three classes with two images each in train and val."""
    for split in ('train', 'val'):
        for name in ('n01', 'n02', 'n03'):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(2):
                cv2.imwrite(str(tmp_path / split / name / f'{number}.JPEG'), np.zeros((8, 8, 3), np.uint8))
    return tmp_path


def build(root, split='train', **kwargs):
    return DATASETS.build(
        dict(type='mmpretrain.RMImageNet', data_root=str(root), split=split, **{'metainfo': CLASSES, **kwargs})
    )


def test_folders_are_classes_unless_an_annotation_file_names_the_images(root):
    assert build(root).get_gt_labels().tolist() == [0, 0, 1, 1, 2, 2]
    (root / 'meta').mkdir()
    (root / 'meta' / 'train.txt').write_text('n03/0.JPEG 2\nn01/1.JPEG 0\n')
    assert build(root).get_gt_labels().tolist() == [2, 0]


def test_a_remote_root_is_left_to_mmengine(monkeypatch):
    given = []
    monkeypatch.setattr('mmpretrain.datasets.ImageNet.__init__', lambda self, root, **kwargs: given.append(root))
    build('s3://bucket/imagenet')
    assert given == ['s3://bucket/imagenet']


def test_missing_folders_and_classes_are_named(root):
    with pytest.raises(UserFileError, match='has 3 class folders, not 1000'):
        build(root, metainfo=None)
    for path in (root / 'train' / 'n02').iterdir():
        path.unlink()
    with pytest.raises(UserFileError, match='1 empty class folders: n02'):
        build(root)
    (root / 'val').rename(root / 'elsewhere')
    with pytest.raises(UserFileError, match='val does not exist'):
        build(root, 'val')


def test_a_list_without_images_or_with_a_missing_one_is_named(root):
    (root / 'meta').mkdir()
    for text, message in (('', 'val.txt lists no images'), ('n01/0.JPEG 0\nn09/0.JPEG 1\n', 'n09/0.JPEG, which does')):
        (root / 'meta' / 'val.txt').write_text(text)
        with pytest.raises(UserFileError, match=message):
            build(root, 'val')
