"""Every way in which a checkpoint file can be wrong has its own message, and no file is executed."""

import argparse
import io
import os
import pickle
import shlex
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from mmrm.utils.checkpoints import check_file, convert_command, read_checkpoint
from mmrm.utils.errors import UserFileError

pytestmark = pytest.mark.filterwarnings('ignore:Detected pickle protocol', 'ignore:.torch.jit')


def weights() -> dict:
    return {'fc.weight': torch.randn(2, 3), 'fc.bias': torch.zeros(2)}


def test_weights_come_back_in_all_formats(tmp_path):
    expected, meta = weights(), dict(epoch=3, rates=(0.1, 2))
    for zipped in (True, False):
        torch.save(dict(state_dict=expected, meta=meta), tmp_path / 'a.pth', _use_new_zipfile_serialization=zipped)
        back = read_checkpoint(tmp_path / 'a.pth')
        torch.testing.assert_close(back, dict(state_dict=expected, meta=meta), rtol=0, atol=0)
    (tmp_path / 'a.safetensors').write_bytes(save(expected))
    torch.testing.assert_close(read_checkpoint(tmp_path / 'a.safetensors'), expected, rtol=0, atol=0)


def saved(content, **options) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def other_zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, 'w') as archive:
        archive.writestr('folder/readme.txt', 'hello')
    return stream.getvalue()


def zip_bomb() -> bytes:
    stream = io.BytesIO(saved(weights()))
    with zipfile.ZipFile(stream, 'a', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('bomb/data/99', bytes(64 << 20))
    return stream.getvalue()


def script() -> bytes:
    stream = io.BytesIO()
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), stream)
    return stream.getvalue()


def without_content(offset: int, value: int) -> bytes:
    """A file whose first tensor torch would leave as the memory was: it is marked as a folder, or as empty."""
    torch.serialization.set_crc32_options(False)
    try:
        data = bytearray(saved(weights()))
    finally:
        torch.serialization.set_crc32_options(True)
    struct.pack_into('<I', data, data.rindex(b'PK\1\2', 0, data.rindex(b'data/0')) + offset, value)
    return bytes(data)


LARGE, SHARED = {str(i): torch.randn(40, 40) for i in range(9)}, torch.zeros(500_000)
BOMB = dict(state_dict={'a.weight': torch.ones(3), 'b.weight': torch.zeros(1).expand(10**6, 10**6)})
WRONG = {
    'empty.pth': (lambda: b'', 'is empty'),
    'page.pth': (lambda: b'<!DOCTYPE html>\n<html>404</html>', "is text, not a checkpoint: it begins with '<!DOCTYPE"),
    'page.safetensors': (lambda: b'<html>not found</html>', 'is text, not a checkpoint'),
    'image.pth': (
        lambda: b'\x89PNG\r\n\x1a\n' + bytes(range(256)),
        'is not a checkpoint: it begins with the bytes .*PNG',
    ),
    'cut.safetensors': (lambda: save(weights())[:-1], 'is truncated or damaged'),
    'type.safetensors': (lambda: save(weights()).replace(b'"F32"', b'"F99"'), 'is truncated or damaged'),
    'begin.pth': (lambda: saved(LARGE)[:500], 'is truncated'),
    'half.pth': (lambda: saved(LARGE)[:30_000], 'is truncated'),
    'old.pth': (lambda: saved(LARGE, _use_new_zipfile_serialization=False)[:30_000], 'is truncated'),
    'archive.pth': (other_zip, r'is a zip file, but not one of torch\.save'),
    'folder.pth': (lambda: without_content(38, 0x10), 'is damaged: its part data/0 has no content'),
    'hollow.pth': (lambda: without_content(20, 0), 'is damaged: its part data/0 has no content'),
    'script.pth': (script, 'is a TorchScript program'),
    'bomb.pth': (lambda: saved(BOMB), r'is refused: .* state_dict\.b\.weight alone 4,000,000\.0 MB'),
    'shared.pth': (lambda: saved([SHARED[:] for _ in range(1000)]), r'is refused: its tensors would take 2,000\.0 MB'),
    'unpacked.pth': (zip_bomb, r'is refused: its 0\.\d MB would unpack to 67\.1 MB'),
    'meta.pth': (lambda: saved({'fc.weight': torch.empty(2, device='meta')}), '.*fc.weight has a shape but no values'),
}


@pytest.mark.parametrize('name', WRONG)
def test_damaged_file_is_explained(name, tmp_path):
    make, message = WRONG[name]
    (tmp_path / name).write_bytes(make())
    with pytest.raises(UserFileError, match=f'{name}:? {message}'):
        read_checkpoint(tmp_path / name)


def test_path_that_is_not_a_file_is_named(tmp_path):
    (tmp_path / 'empty').mkdir()
    torch.save(weights(), tmp_path / 'epoch_3.pth')
    for path, message in (
        (tmp_path / 'none.pth', r'none.pth does not exist'),
        ('https://example.org/weights.pth', r'is an address'),
        (tmp_path / 'empty', r'is a folder.*no .pth file'),
        (tmp_path, r'is a folder.*epoch_3.pth'),
    ):
        with pytest.raises(UserFileError, match=message):
            read_checkpoint(path)


class Harm:
    def __reduce__(self):
        return os.system, ('true',)


def test_tar_file_is_refused_before_torch_sees_it(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / 'legacy.pth', 'w') as archive:
        for name in ('sys_info', 'pickle', 'storages', 'tensors'):
            data = pickle.dumps(Harm(), protocol=2)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    monkeypatch.setattr(torch, 'load', lambda *args, **kwargs: pytest.fail('torch.load was called'))
    with pytest.raises(UserFileError, match=r'(?s)is a tar file.*weights_only=False'):
        read_checkpoint(tmp_path / 'legacy.pth')


@pytest.mark.parametrize('whole_model', [False, True])
def test_the_command_in_the_message_converts_a_trusted_file(whole_model, tmp_path):
    path = tmp_path / "it's a model.pth"  # quoting counts
    content = torch.nn.Linear(3, 2) if whole_model else dict(state_dict=weights(), args=argparse.Namespace(lr=0.1))
    torch.save(content, path)
    before = path.read_bytes()
    with pytest.raises(UserFileError) as error:
        read_checkpoint(path)
    message, command = str(error.value).split('\n')
    assert ('torch.nn.modules.linear.Linear' if whole_model else 'argparse.Namespace') in message
    assert command == convert_command(path)
    python, option, code = shlex.split(command)
    assert (python, option) == ('python', '-c')
    exec(code, {})
    assert path.read_bytes() == before
    converted = read_checkpoint(tmp_path / "it's a model_weights.pth")['state_dict']
    expected = dict(content.state_dict()) if whole_model else content['state_dict']
    torch.testing.assert_close(converted, expected, rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------------------ checksums
def damage(path: Path) -> Path:
    """Flip 64 bytes in the middle of a file."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
    path.write_bytes(data)
    return path


def save_run(folder: Path, *names: str) -> None:
    for name in names:
        torch.save(dict(state_dict={str(i): torch.randn(30, 30) for i in range(4)}), folder / name)


def test_the_newest_good_checkpoint_of_the_folder_is_offered(tmp_path):
    save_run(tmp_path, *(f'epoch_{number}.pth' for number in (2, 9, 10, 11)), 'best_accuracy_top1_epoch_9.pth')
    os.utime(tmp_path / 'epoch_2.pth', (2e9, 2e9))  # copied last
    for name in ('epoch_10.pth', 'epoch_11.pth'):
        damage(tmp_path / name)
    torch.load(tmp_path / 'epoch_11.pth', weights_only=True)  # says nothing
    for read in (read_checkpoint, check_file):
        message = rf'epoch_11.pth is damaged in its part data/\d.* good one beside it is {tmp_path}/epoch_9.pth'
        with pytest.raises(UserFileError, match=message):
            read(tmp_path / 'epoch_11.pth')
    for name in ('epoch_9.pth', 'epoch_2.pth'):
        (tmp_path / name).write_bytes(b'')
    with pytest.raises(UserFileError, match=r'epoch_9.pth is empty.*/best_accuracy_top1_epoch_9.pth'):
        read_checkpoint(tmp_path / 'epoch_9.pth')
    save_run(tmp_path, 'weights.pth')  # not a checkpoint of a run by its name: no neighbours
    with pytest.raises(UserFileError, match=r'Copy it again.$'):
        read_checkpoint(damage(tmp_path / 'weights.pth'))


@pytest.mark.skipif(not hasattr(torch.serialization, 'set_crc32_options'), reason='this torch always writes CRCs')
def test_a_file_saved_without_checksums_is_no_damaged_file(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        save_run(tmp_path, 'weights.pth')
    finally:
        torch.serialization.set_crc32_options(True)
    with zipfile.ZipFile(tmp_path / 'weights.pth') as archive:
        assert archive.testzip()  # zipfile alone would cry wolf
    assert len(read_checkpoint(tmp_path / 'weights.pth')['state_dict']) == 4


def test_checksums_are_computed_once_until_the_file_changes(tmp_path, monkeypatch):
    save_run(tmp_path, 'weights.pth')
    calls, check = [], zipfile.ZipFile.testzip
    monkeypatch.setattr(zipfile.ZipFile, 'testzip', lambda archive: calls.append(1) or check(archive))
    for _ in range(3):
        read_checkpoint(tmp_path / 'weights.pth')
    assert len(calls) == 1
    damage(tmp_path / 'weights.pth')
    os.utime(tmp_path / 'weights.pth', (1e9, 1e9))
    with pytest.raises(UserFileError, match='is damaged'):
        read_checkpoint(tmp_path / 'weights.pth')


# ------------------------------------------------------------------------------------------- files that are no files
@pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='needs POSIX')
@pytest.mark.parametrize('kind', ['pipe', 'device'])
def test_pipes_and_devices_are_refused_unopened(kind, tmp_path, monkeypatch):
    path = tmp_path / 'epoch_1.pth'
    os.mkfifo(path) if kind == 'pipe' else path.symlink_to('/dev/zero')
    monkeypatch.setattr('builtins.open', lambda *args, **kwargs: pytest.fail('it was opened'))
    for read in (read_checkpoint, check_file):
        with pytest.raises(UserFileError, match=r'epoch_1.pth is not a regular file'):
            read(path)
