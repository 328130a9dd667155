"""Writing files: never over one of the user's, and whole or not at all."""
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Sequence, Union

from .errors import UserError, UserFileError, UserValueError


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
        raise UserFileError(f'{path} exists and is left as it is. Choose another name, or give --overwrite.')
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserFileError(f'{path} cannot be written: {parent} is not a folder that may be written to.')
    return path


@contextmanager
def atomic_write(path: Union[str, Path], overwrite: bool = False) -> Iterator[Path]:
    """Inside, a temporary file in the folder of ``path``; at the end it takes that name, or is removed after an error.

    Arguments and errors as in :func:`check_out`; a failure to write is a :class:`UserFileError` as well.
    """
    path, part = check_out(path, overwrite), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f'.{path.name}.', dir=path.parent)
        os.close(handle)
        yield Path(part)
        os.chmod(part, 0o666 & ~umask())
        check_out(path, overwrite)  # it may have appeared in the meantime
        os.replace(part, path)
    except UserError:
        raise
    except OSError as error:
        raise UserFileError(f'{path} could not be written: {error.strerror or error}') from error
    finally:
        if part is not None:
            Path(part).unlink(missing_ok=True)


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
