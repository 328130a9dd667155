"""Folders of made data are complete or not there, never over another, also when processes race for one."""

import pytest

from mmrm.utils.errors import UserFileError
from tools.runs.folders import make_once


def make(root, write, **stamp):
    return make_once(root, 'made.json', stamp, 'a made folder', write)


def test_a_folder_is_created_once(tmp_path):
    calls = []
    for _ in range(2):
        assert make(tmp_path / 'made', lambda folder: calls.append((folder / 'a').touch()), seed=1) == tmp_path / 'made'
    assert len(calls) == 1 and (tmp_path / 'made' / 'a').is_file()
    with pytest.raises(UserFileError, match=r'another one .seed 1 instead of 2'):
        make(tmp_path / 'made', calls.append, seed=2)


def test_another_folder_or_file_is_not_overwritten(tmp_path):
    (tmp_path / 'thesis').mkdir()
    (tmp_path / 'thesis' / 'chapter.tex').write_text('x')
    (tmp_path / 'file').write_text('x')
    for taken, message in (
        ('thesis', 'is not a made folder'),
        ('file', 'is not a made'),
        ('file/below', 'cannot write'),
    ):
        with pytest.raises(UserFileError, match=message):
            make(tmp_path / taken, lambda folder: None)
    assert sorted(path.name for path in tmp_path.rglob('*')) == ['chapter.tex', 'file', 'thesis']


def test_an_interruption_leaves_no_files(tmp_path):
    def interrupted(folder):
        (folder / 'a').touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / 'made', interrupted)
    assert list(tmp_path.iterdir()) == []


def test_the_faster_of_two_processes_wins(tmp_path):
    def slow(folder):
        (folder / 'a').write_text('slow')
        make(tmp_path / 'made', lambda other: (other / 'a').write_text('fast'))

    assert make(tmp_path / 'made', slow) == tmp_path / 'made'
    assert (tmp_path / 'made' / 'a').read_text() == 'fast' and len(list(tmp_path.iterdir())) == 1
