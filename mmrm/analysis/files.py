"""Writing results: never over a file of the user's, and whole or not at all."""
import os
import tempfile
from pathlib import Path
from typing import Sequence, Union

from ..errors import UserFileError, UserValueError

PICTURES = ('.png', '.svg', '.pdf')


def check_out(path: Union[str, Path], overwrite: bool = False, suffixes: Sequence[str] = ()) -> Path:
    """Check where to write, before any work is done.

    Args:
        path (str | Path): The file to write.
        overwrite (bool): Whether an existing file may be replaced. Defaults to False.
        suffixes (Sequence[str]): The endings that are allowed; empty for any.

    Raises:
        UserValueError: If the ending is another one.
        UserFileError: If the file exists and may not be replaced, or is a folder.
    """
    path = Path(path).expanduser()
    if suffixes and path.suffix.lower() not in suffixes:
        raise UserValueError(f'{path}: the file to write must end in {", ".join(suffixes)}.')
    if path.is_dir():
        raise UserFileError(f'{path} is a folder: name the file to write.')
    if path.exists() and not overwrite:
        raise UserFileError(f'{path} exists and is left as it is. Choose another name, or give --overwrite.')
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserFileError(f'{path} cannot be written: {parent} is not a folder that may be written to.')
    return path


def write_bytes(path: Union[str, Path], data: bytes, overwrite: bool = False) -> Path:
    """Write a file; it appears whole or not at all. Arguments and errors as in :func:`check_out`."""
    path = check_out(path, overwrite)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f'.{path.name}.', dir=path.parent)
        try:
            with os.fdopen(handle, 'wb') as file:
                file.write(data)
            os.chmod(part, 0o666 & ~_umask())
            os.replace(part, path)
        finally:
            Path(part).unlink(missing_ok=True)
    except OSError as error:
        raise UserFileError(f'{path} could not be written: {error.strerror or error}') from error
    return path


def write_text(path: Union[str, Path], text: str, overwrite: bool = False) -> Path:
    """:func:`write_bytes` for text, in UTF-8."""
    return write_bytes(path, text.encode(), overwrite)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
