"""Writing files: never over one of the user's, whole or not at all, and by one process at a time."""

import contextlib
import errno
import os
import socket
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional, Sequence, Set, Union

from .errors import UserError, UserFileError, UserValueError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

RUN_LOCK = '.run.lock'  # of a training run, in each folder that it writes to
# What flock says where a file system has no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
MANY = 100  # files to be flushed one by one
_held: Set[int] = set()  # descriptors of the locks of this process


def check_out(path: Union[str, Path], overwrite: bool = False, suffixes: Sequence[str] = ()) -> Path:
    """Check where to write, before any work is done.

    Args:
        path (str | Path): The file to write.
        overwrite (bool): Whether an existing file may be replaced. Defaults to False.
        suffixes (Sequence[str]): The endings that are allowed; empty for any.

    Raises:
        UserValueError: If the ending is another one.
        UserFileError: If the file exists and may not be replaced, or is a folder, or its folder may not be written to.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise UserFileError(f'{path} is a folder: name the file to write.')
    if suffixes and path.suffix not in suffixes:
        raise UserValueError(f'{path}: the file to write must end in {", ".join(suffixes)}.')
    if path.exists() and not overwrite:
        raise UserFileError(f'{path} already exists. Choose another name or use --overwrite.')
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserFileError(f'{path} cannot be written: {parent} is not a folder that may be written to.')
    return path


@contextmanager
def atomic_write(path: Union[str, Path], overwrite: bool = False) -> Iterator[Path]:
    """Inside, a temporary file in the folder of ``path``; at the end it takes that name, or is removed after an error.

    What has its name is on the disk, also after a power cut (:func:`put_in_place`). Arguments and errors as in
    :func:`check_out`; a failure to write is a :class:`UserFileError` as well.
    """
    path, part = check_out(path, overwrite), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f'.{path.name}.', dir=path.parent)
        os.close(handle)
        yield Path(part)
        os.chmod(part, 0o666 & ~umask())
        check_out(path, overwrite)  # it may have appeared in the meantime
        put_in_place(part, path)
    except UserError:
        raise
    except OSError as error:
        raise UserFileError(f'{path} could not be written: {error.strerror or error}') from error
    finally:
        if part is not None:
            Path(part).unlink(missing_ok=True)


def put_in_place(source: Union[str, Path], target: Union[str, Path]) -> None:
    """Give a finished file or folder its name, on the disk and not only in its cache.

    Args:
        source (str | Path): On the same file system.
        target (str | Path): Its name. A file there is replaced; a folder only if it is empty.
    """
    source = Path(source)
    parts = [source, *(source.rglob('*') if source.is_dir() else ())]
    if len(parts) > MANY and hasattr(os, 'sync'):
        os.sync()  # one flush of all is faster than thousands
    else:
        for path in parts:
            flush(path)
    os.replace(source, target)
    flush(Path(target).parent)


def flush(path: Union[str, Path]) -> None:
    """Wait until a file, or the list of names that a folder is, is on the disk."""
    folder = os.path.isdir(path)
    if folder and os.name == 'nt':  # no such thing there
        return
    descriptor = os.open(path, os.O_RDWR if os.name == 'nt' else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not folder or error.errno not in (errno.EINVAL, errno.EBADF):  # some file systems do it by themselves
            raise
    finally:
        os.close(descriptor)


def write_text(path: Union[str, Path], text: str, overwrite: bool = False) -> Path:
    """Write a text in UTF-8, as :func:`atomic_write` does."""
    with atomic_write(path, overwrite) as part:
        part.write_bytes(text.encode())
    return Path(path).expanduser()


def umask() -> int:
    """The process's mask, by which new files get their permissions."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --------------------------------------------------------------------------------------------------------------- locks
@contextmanager
def locked(path: Union[str, Path], wait: bool = False) -> Iterator[None]:
    """Inside, this process holds a lock file, and no other one does, on any machine that shares the file system.

    The kernel releases it when its owner ends, however that happens; the file is removed when all goes well. It holds
    the host, the number of the process and the time. A process that is forked inside does not hold it.

    Args:
        path (str | Path): The lock file, in a folder that exists.
        wait (bool): Whether to wait for another holder instead of raising. Defaults to False.

    Raises:
        UserFileError: If another one holds it and ``wait`` is False.
    """
    path, owner = Path(path), os.getpid()
    try:
        descriptor = _take(path, wait)
    except OSError as error:
        if isinstance(error, UserError) or error.errno not in NO_LOCKS:
            raise
        problem = f'{path} cannot be locked ({error.strerror}): nothing keeps a second process out of {path.parent}'
        print(f'warning: {problem}. Make sure only one process writes here.', file=sys.stderr, flush=True)
        yield
        return
    try:
        yield
    finally:
        if os.getpid() == owner:
            with contextlib.suppress(OSError):
                if _is_still(path, descriptor):
                    path.unlink()  # before it is free: no other process has it yet
            _held.discard(descriptor)
            os.close(descriptor)


def lock_holder(path: Union[str, Path]) -> Optional[str]:
    """Who holds a lock file, in words ('process 12 on host, since ...'); None if no process does or it is unknown."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask are not in each other's way
    except BlockingIOError:
        return _holder(descriptor)
    except OSError:  # no locks here
        return None
    finally:
        os.close(descriptor)
    return None


def _take(path: Path, wait: bool) -> int:
    """The descriptor of a lock file that this process holds from now on."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, f'no file locks on {sys.platform}')
    patience = 5
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_still(path, descriptor):
                _write_holder(path, descriptor)
                _held.add(descriptor)
                return descriptor
            os.close(descriptor)  # its last holder has removed it: try again
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            patience -= 1  # one who only asks has it for a moment
            if not patience:
                raise UserFileError(f'{path} is locked by {holder}.') from None
            time.sleep(0.05)
        except OSError:
            os.close(descriptor)
            raise


def _write_holder(path: Path, descriptor: int) -> None:
    """Write this process into a lock file that it holds; warn of another machine's that was left there."""
    before, host = _holder(descriptor), f' on {socket.gethostname()}, since '
    if ' on ' in before and host not in before:
        hint = 'If that one still runs, this file system does not share locks between machines: end one.'
        print(f'warning: {path} was left behind by {before}. {hint}', file=sys.stderr, flush=True)
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, f'process {os.getpid()}{host}{time.strftime("%Y-%m-%d %H:%M:%S")}\n'.encode(), 0)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether a name stands for the file that is open."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """Who holds a lock file, as written in it."""
    return os.pread(descriptor, 200, 0).decode(errors='replace').strip() or 'another process'


def _close_locks() -> None:
    """In a forked process, such as a data loader's worker: what it keeps open would outlive the owner of the lock."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_close_locks)
