"""Files are written whole or not at all, never over one of the user's, and by one process at a time."""

import errno
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from mmrm.utils import files
from mmrm.utils.errors import UserFileError, UserValueError
from mmrm.utils.files import atomic_write, check_out, lock_holder, locked, put_in_place, write_text


def test_out_is_checked_before_work(tmp_path):
    with pytest.raises(UserFileError, match='is a folder'):
        check_out(tmp_path)
    (tmp_path / 'file').touch()
    with pytest.raises(UserFileError, match='cannot be written'):
        check_out(tmp_path / 'file' / 'below.md')
    with pytest.raises(UserValueError, match=r'must end in \.pth, \.pt'):
        check_out(tmp_path / 'file.bin', suffixes=('.pth', '.pt'))
    with pytest.raises(UserFileError, match='already exists'):
        check_out(tmp_path / 'file')


def test_failed_write_keeps_the_old_file(tmp_path):
    (tmp_path / 'a.md').write_text('old')
    with (
        pytest.raises(UserFileError, match='could not be written: No space left'),
        atomic_write(tmp_path / 'a.md', overwrite=True) as part,
    ):
        part.write_text('half')
        raise OSError(28, 'No space left on device')
    with pytest.raises(UserFileError, match='already exists'), atomic_write(tmp_path / 'b.md') as part:
        part.write_text('mine')
        (tmp_path / 'b.md').write_text('theirs')
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {'a.md': 'old', 'b.md': 'theirs'}


# ---------------------------------------------------------------------------------------------------------- on the disk
@pytest.fixture
def flushed(monkeypatch):
    """What was flushed to the disk and renamed, in this order."""
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, 'fsync', lambda number: (done.append(Path(os.readlink(f'/proc/self/fd/{number}')).name), fsync(number))
    )
    monkeypatch.setattr(
        os, 'replace', lambda source, target: (done.append(f'-> {Path(target).name}'), replace(source, target))
    )
    return done


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='looks into /proc')
def test_files_and_folders_are_on_the_disk_before_they_have_their_name_and_the_name_after_that(flushed, tmp_path):
    path = write_text(tmp_path / 'part' / 'a.md', 'ü')
    assert flushed[1:] == ['-> a.md', 'part'] and flushed[0].startswith('.a.md.')
    assert path.read_text(encoding='utf-8') == 'ü' and len(list(path.parent.iterdir())) == 1
    (tmp_path / 'part/below').mkdir()
    (tmp_path / 'part/below/two').touch()
    flushed.clear()
    put_in_place(tmp_path / 'part', tmp_path / 'whole')
    assert sorted(flushed[:4]) == ['a.md', 'below', 'part', 'two'] and flushed[4:] == ['-> whole', tmp_path.name]
    (tmp_path / 'part').mkdir()
    with pytest.raises(OSError):
        put_in_place(tmp_path / 'part', tmp_path / 'whole')
    assert len(list((tmp_path / 'whole').iterdir())) == 2


# ---------------------------------------------------------------------------------------------------------------- locks
needs_locks = pytest.mark.skipif(files.fcntl is None, reason='no file locks here')


@needs_locks
def test_a_lock_names_its_holder_and_ends_with_it_at_once(tmp_path):
    """Also if what it forked lives on."""
    path, (ours, theirs) = tmp_path / '.lock', os.pipe()
    assert lock_holder(path) is None
    holder = os.fork()
    if not holder:
        with locked(path):
            worker = os.fork()
            if worker:
                os.write(theirs, f'{worker}\n'.encode())
            time.sleep(60)
            os._exit(0)
    worker, who = int(os.read(ours, 20)), f'process {holder} on {socket.gethostname()}, since 20'
    try:
        assert lock_holder(path).startswith(who)
        with pytest.raises(UserFileError, match=who), locked(path):
            pass
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        assert lock_holder(path) is None
        with pytest.raises(ZeroDivisionError), locked(path):
            assert lock_holder(path).startswith(f'process {os.getpid()} ')
            with pytest.raises(UserFileError), locked(path):  # one process takes it once
                pass
            raise ZeroDivisionError
    finally:
        os.kill(worker, signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []  # nothing is left


@needs_locks
def test_waiting_processes_get_the_lock_one_after_another(tmp_path):
    """Also those that had opened the file which the one before them removes."""
    inside, together = [], []

    def work(number):
        for _ in range(20):
            with locked(tmp_path / 'lock', wait=True):
                inside.append(number)
                time.sleep(0.0005)
                together.append(len(inside))
                inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [1] * 80


@pytest.mark.parametrize('why', ['No locks available', 'no file locks on'])
def test_a_file_system_without_locks_is_warned_of(why, tmp_path, monkeypatch, capsys):
    def refuse(*args):
        raise OSError(errno.ENOLCK, why)

    windows = why == 'no file locks on'
    monkeypatch.setattr(files, 'fcntl', None) if windows else monkeypatch.setattr(files.fcntl, 'flock', refuse)
    with locked(tmp_path / 'lock'):
        assert lock_holder(tmp_path / 'lock') is None
    assert f'lock cannot be locked ({why}' in capsys.readouterr().err


@needs_locks
def test_a_lock_file_of_another_machine_is_warned_of_and_one_of_another_run_is_not_removed(tmp_path, capsys):
    path = tmp_path / 'lock'
    path.write_text('process 7 on elsewhere, since 2026-01-02 03:04:05')
    with locked(path):
        assert lock_holder(path).startswith(f'process {os.getpid()} on {socket.gethostname()}')
        path.unlink()  # the folder was deleted, and a new run started there
        path.write_text('theirs')
    assert 'left behind by process 7 on elsewhere, since 2026-01-02 03:04:05' in capsys.readouterr().err
    assert path.read_text() == 'theirs'
