"""Files are written whole or not at all, never over one of the user's, and by one process at a time."""

import contextlib
import errno
import os
import re
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
    with pytest.raises(UserFileError, match='exists and is left as it is'):
        check_out(tmp_path / 'file')


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / 'a.md').write_text('old')
    with (
        pytest.raises(UserFileError, match='could not be written: No space left'),
        atomic_write(tmp_path / 'a.md', overwrite=True) as part,
    ):
        part.write_text('half')
        raise OSError(28, 'No space left on device')
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / 'b.md') as part:
        part.write_text(str(1 / 0))
    assert [path.name for path in tmp_path.iterdir()] == ['a.md'] and (tmp_path / 'a.md').read_text() == 'old'


def test_a_file_that_appears_in_the_meantime_is_kept(tmp_path):
    with pytest.raises(UserFileError, match='exists and is left as it is'), atomic_write(tmp_path / 'a.md') as part:
        part.write_text('mine')
        (tmp_path / 'a.md').write_text('theirs')
    assert (tmp_path / 'a.md').read_text() == 'theirs' and len(list(tmp_path.iterdir())) == 1


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
def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_after_that(flushed, tmp_path):
    path = write_text(tmp_path / 'new' / 'a.md', 'ü')
    assert flushed[1:] == ['-> a.md', 'new'] and flushed[0].startswith('.a.md.')
    assert path.read_text(encoding='utf-8') == 'ü' and len(list(path.parent.iterdir())) == 1


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='looks into /proc')
def test_a_folder_is_put_in_place_with_all_that_is_in_it(flushed, tmp_path):
    for name in ('part/one', 'part/below/two'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    put_in_place(tmp_path / 'part', tmp_path / 'whole')
    assert sorted(flushed[:4]) == ['below', 'one', 'part', 'two'] and flushed[4:] == ['-> whole', tmp_path.name]
    assert (tmp_path / 'whole/below/two').read_text() == 'part/below/two' and not (tmp_path / 'part').exists()
    (tmp_path / 'part').mkdir()
    with pytest.raises(OSError):
        put_in_place(tmp_path / 'part', tmp_path / 'whole')
    assert len(list((tmp_path / 'whole').iterdir())) == 2


# ---------------------------------------------------------------------------------------------------------------- locks
needs_locks = pytest.mark.skipif(files.fcntl is None, reason='no file locks here')


@contextlib.contextmanager
def held_by_another(path, with_worker):
    """The number of a process that holds a lock and perhaps has forked another, which outlives it."""
    ours, theirs = os.pipe()
    parent = os.fork()
    if not parent:
        with locked(path):
            worker = os.fork() if with_worker else 1
            if worker:
                os.write(theirs, f'{worker}\n'.encode())
            time.sleep(60)
            os._exit(0)
    worker = int(os.read(ours, 20))
    try:
        yield parent
    finally:
        if with_worker:
            os.kill(worker, signal.SIGKILL)
        for end in (ours, theirs):
            os.close(end)


@needs_locks
@pytest.mark.parametrize('worker', [False, True])
def test_a_lock_names_its_holder_and_ends_with_it_at_once(worker, tmp_path):
    """Also if what it forked lives on."""
    path = tmp_path / '.lock'
    assert lock_holder(path) is None
    with held_by_another(path, worker) as other:
        who = f'process {other} on {socket.gethostname()}, since 20'
        assert lock_holder(path).startswith(who)
        with pytest.raises(UserFileError, match=who), locked(path):
            pass
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
        assert lock_holder(path) is None
        with locked(path):
            assert lock_holder(path).startswith(f'process {os.getpid()} ')
    assert list(tmp_path.iterdir()) == []  # nothing is left


@needs_locks
def test_one_process_takes_a_lock_once_and_after_an_error_it_is_free(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / 'a'):
        with pytest.raises(UserFileError), locked(tmp_path / 'a'):
            pass
        with locked(tmp_path / 'b'):
            pass
        raise ZeroDivisionError
    with locked(tmp_path / 'a'):
        pass


@needs_locks
def test_those_who_wait_for_a_lock_have_it_one_after_the_other(tmp_path):
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


@pytest.mark.parametrize('why', ['nfs', 'windows'])
def test_a_file_system_without_locks_is_warned_of(why, tmp_path, monkeypatch, capsys):
    if why == 'windows':
        monkeypatch.setattr(files, 'fcntl', None)
    else:

        def refuse(*args):
            raise OSError(errno.ENOLCK, 'No locks available')

        monkeypatch.setattr(files.fcntl, 'flock', refuse)
    with locked(tmp_path / 'lock'):
        pass
    told = capsys.readouterr().err
    assert re.search(r'warning: .*/lock cannot be locked \((No locks available|no file locks on .*)\): nothing', told)
    assert lock_holder(tmp_path / 'lock') is None


@needs_locks
def test_a_lock_file_of_another_machine_is_warned_of(tmp_path, capsys):
    path = tmp_path / 'lock'
    path.write_text('process 7 on elsewhere, since 2026-01-02 03:04:05')
    with locked(path):
        assert lock_holder(path).startswith(f'process {os.getpid()} on {socket.gethostname()}')
    assert 'left behind by process 7 on elsewhere, since 2026-01-02 03:04:05' in capsys.readouterr().err


@needs_locks
def test_a_lock_file_of_somebody_else_is_not_removed(tmp_path):
    path = tmp_path / 'work' / 'lock'
    path.parent.mkdir()
    with locked(path):
        path.unlink()  # the folder was deleted, and a new run started there
        path.write_text('theirs')
    assert path.read_text() == 'theirs'
