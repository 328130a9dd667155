"""Folders of made data: complete or not there."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Callable, Union

from mmrm.utils.errors import UserError, UserFileError
from mmrm.utils.files import put_in_place, umask


def make_once(root: Union[str, Path], name: str, stamp: dict, what: str, write: Callable[[Path], None]) -> Path:
    """A folder that is complete or not there; one that was made before of the same is taken as it is.

    It is written beside ``root`` and renamed at the end: an interrupted call leaves nothing half-done, and processes
    that race for one folder all end with it.

    Args:
        root: The folder.
        name: Of the file in it that gets ``stamp``.
        stamp: What the content is made of.
        what: It in words, for messages.
        write: Writes the content into the folder that it is given.

    Raises:
        UserFileError: If ``root`` holds something else, which is left as it is, or cannot be written.
    """
    root, temporary = Path(root).expanduser(), None
    if _is_made(root, name, stamp, what):
        return root
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=root.parent, prefix=f'.{root.name}-'))
        write(temporary)
        (temporary / name).write_text(json.dumps(stamp))
        temporary.chmod(0o777 & ~umask())
        put_in_place(temporary, root)
    except UserError:
        raise
    except OSError as error:
        # Another process may have been faster.
        if not _is_made(root, name, stamp, what):
            raise UserFileError(f'cannot write {what} to {root}: {error.strerror or error}') from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return root


def _is_made(root: Path, name: str, stamp: dict, what: str) -> bool:
    if not os.path.lexists(root) or (root.is_dir() and not any(root.iterdir())):
        return False
    try:
        found = json.loads((root / name).read_text())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise UserFileError(f'{root} exists and is not {what}. It is left as it is; choose another folder.')
    wanted = json.loads(json.dumps(stamp))
    differ = [f'{key} {found.get(key)} instead of {value}' for key, value in wanted.items() if found.get(key) != value]
    if differ:
        raise UserFileError(
            f'{root} is {what}, but another one ({", ".join(differ)}). It is left as it is; choose another folder or '
            'delete it.'
        )
    return True
