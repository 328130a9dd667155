"""Every way in which a checkpoint file can be wrong has its own message, and no file is executed."""
import argparse
import io
import os
import pickle
import shlex
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest
import torch

from mmrm.utils.checkpoints import convert_command, read_checkpoint
from mmrm.utils.errors import UserFileError, UserTypeError

pytestmark = pytest.mark.filterwarnings('ignore:Detected pickle protocol', 'ignore:.torch.jit')


def weights() -> dict:
    return {'fc.weight': torch.randn(2, 3), 'fc.bias': torch.zeros(2)}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize('old_format', [False, True])
@pytest.mark.parametrize('as_str', [False, True])
def test_weights_come_back_in_both_formats_of_torch(old_format, as_str, tmp_path):
    saved, path = weights(), tmp_path / 'weights.pth'
    torch.save(dict(state_dict=saved, meta=dict(epoch=3, names=('a', 'b'), none=None)), path,
               _use_new_zipfile_serialization=not old_format)
    back = read_checkpoint(str(path) if as_str else path)
    assert same(back['state_dict'], saved)
    assert back['meta'] == dict(epoch=3, names=('a', 'b'), none=None)


def test_safetensors_come_back_as_a_dict_of_tensors(tmp_path):
    safetensors = pytest.importorskip('safetensors.torch')
    saved = weights()
    safetensors.save_file(saved, tmp_path / 'weights.safetensors')
    assert same(read_checkpoint(tmp_path / 'weights.safetensors'), saved)
    data = (tmp_path / 'weights.safetensors').read_bytes()
    (tmp_path / 'half.safetensors').write_bytes(data[:len(data) // 2])
    with pytest.raises(UserFileError, match=r'half.safetensors is truncated or damaged'):
        read_checkpoint(tmp_path / 'half.safetensors')


def test_a_path_of_a_wrong_type_is_refused():
    with pytest.raises(UserTypeError, match=r'path=3 must be'):
        read_checkpoint(3)


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    torch.save(weights(), tmp_path / 'weights.pth')
    assert len(read_checkpoint('~/weights.pth')) == 2


def test_missing_file(tmp_path):
    with pytest.raises(UserFileError, match=r'none.pth does not exist'):
        read_checkpoint(tmp_path / 'none.pth')


def test_address():
    with pytest.raises(UserFileError, match=r'is an address'):
        read_checkpoint('https://example.org/weights.pth')


def test_folder_lists_its_checkpoints(tmp_path):
    with pytest.raises(UserFileError, match=r'is a folder.*no .pth file'):
        read_checkpoint(tmp_path)
    torch.save(weights(), tmp_path / 'epoch_3.pth')
    with pytest.raises(UserFileError, match=r'is a folder.*epoch_3.pth'):
        read_checkpoint(tmp_path)


def test_empty_file(tmp_path):
    (tmp_path / 'empty.pth').touch()
    with pytest.raises(UserFileError, match=r'empty.pth is empty'):
        read_checkpoint(tmp_path / 'empty.pth')


def test_file_without_permission(tmp_path, monkeypatch):
    path = tmp_path / 'secret.pth'
    torch.save(weights(), path)
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything
        monkeypatch.setattr('builtins.open', _forbidden)
    with pytest.raises(UserFileError, match=r'secret.pth may not be read: no permission'):
        read_checkpoint(path)


def _forbidden(path, *args, **kwargs):
    raise PermissionError(13, 'Permission denied', str(path))


@pytest.mark.parametrize('text', ['<!DOCTYPE html>\n<html>404</html>', 'version https://git-lfs.github.com/spec/v1\n',
                                  'Zugriff verweigert: zurück'])
def test_text_in_place_of_the_file_is_quoted(text, tmp_path):
    (tmp_path / 'page.pth').write_text(text, encoding='utf-8')
    with pytest.raises(UserFileError, match=r'page.pth is text, not a checkpoint: it begins with') as error:
        read_checkpoint(tmp_path / 'page.pth')
    assert text[:12] in str(error.value)


def test_other_bytes_are_shown(tmp_path):
    (tmp_path / 'image.pth').write_bytes(b'\x89PNG\r\n\x1a\n' + bytes(range(256)))
    with pytest.raises(UserFileError, match=r'is not a checkpoint: it begins with the bytes .*PNG'):
        read_checkpoint(tmp_path / 'image.pth')


@pytest.mark.parametrize('old_format', [False, True])
@pytest.mark.parametrize('part', [.02, .3, .6, .98])
def test_truncated_file_wherever_it_ends(part, old_format, tmp_path):
    torch.save(dict(state_dict={str(i): torch.randn(40, 40) for i in range(9)}), tmp_path / 'whole.pth',
               _use_new_zipfile_serialization=not old_format)
    data = (tmp_path / 'whole.pth').read_bytes()
    (tmp_path / 'half.pth').write_bytes(data[:int(part * len(data))])
    with pytest.raises(UserFileError, match=r'half.pth is truncated'):
        read_checkpoint(tmp_path / 'half.pth')


def test_zip_file_of_another_kind(tmp_path):
    with zipfile.ZipFile(tmp_path / 'archive.pth', 'w') as archive:
        archive.writestr('folder/readme.txt', 'hello')
    with pytest.raises(UserFileError, match=r'is a zip file, but not one of torch.save'):
        read_checkpoint(tmp_path / 'archive.pth')


def test_torchscript_program(tmp_path):
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(str(tmp_path / 'script.pth'))
    with pytest.raises(UserFileError, match=r'is a TorchScript program'):
        read_checkpoint(tmp_path / 'script.pth')


class Harm:

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f'touch "{self.marker}"', )


def test_tar_file_is_refused_before_torch_sees_it(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / 'legacy.pth', 'w') as archive:
        for name in ('sys_info', 'pickle', 'storages', 'tensors'):
            data = pickle.dumps(Harm(tmp_path / 'marker'), protocol=2)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    monkeypatch.setattr(torch, 'load', lambda *args, **kwargs: pytest.fail('torch.load was called'))
    with pytest.raises(UserFileError, match=r'(?s)is a tar file.*weights_only=False'):
        read_checkpoint(tmp_path / 'legacy.pth')
    assert not (tmp_path / 'marker').exists()


@pytest.mark.parametrize('protocol', [2, 4])
@pytest.mark.parametrize('old_format', [False, True])
def test_harmful_checkpoint_is_named_and_not_executed(protocol, old_format, tmp_path):
    torch.save(dict(state_dict=weights(), args=Harm(tmp_path / 'marker')), tmp_path / 'harmful.pth',
               pickle_protocol=protocol, _use_new_zipfile_serialization=not old_format)
    with pytest.raises(UserFileError, match=r'posix.system|nt.system') as error:
        read_checkpoint(tmp_path / 'harmful.pth')
    assert 'would execute code' in str(error.value)
    assert not (tmp_path / 'marker').exists()


def test_plain_pickle_is_not_executed(tmp_path):
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / 'plain.pkl').write_bytes(pickle.dumps(Harm(tmp_path / 'marker'), protocol))
        with pytest.raises(UserFileError):
            read_checkpoint(tmp_path / 'plain.pkl')
    assert not (tmp_path / 'marker').exists()


@pytest.mark.parametrize('whole_model', [False, True])
def test_the_command_in_the_message_converts_a_trusted_file(whole_model, tmp_path):
    path = tmp_path / "it's a model.pth"  # quoting counts
    content = torch.nn.Linear(3, 2) if whole_model else dict(state_dict=weights(), args=argparse.Namespace(lr=.1))
    torch.save(content, path)
    before = path.read_bytes()
    with pytest.raises(UserFileError) as error:
        read_checkpoint(path)
    message, command = str(error.value).split('\n')
    assert ('torch.nn.modules.linear.Linear' if whole_model else 'argparse.Namespace') in message
    assert command == convert_command(path)
    python, *arguments = shlex.split(command)
    assert python == 'python'
    subprocess.run([sys.executable, *arguments], check=True)
    assert path.read_bytes() == before
    converted = read_checkpoint(tmp_path / "it's a model_weights.pth")['state_dict']
    assert same(converted, dict(content.state_dict()) if whole_model else content['state_dict'])


def test_numpy_numbers_are_weights_too_where_torch_has_an_allow_list(tmp_path):
    if not hasattr(torch.serialization, 'add_safe_globals'):
        pytest.skip('this torch has none')
    torch.save(dict(best=np.float64(.5)), tmp_path / 'numbers.pth')
    assert read_checkpoint(tmp_path / 'numbers.pth') == dict(best=.5)
