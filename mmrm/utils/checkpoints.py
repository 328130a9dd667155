"""Reading checkpoint files without executing anything in them.

A ``.pth`` file is a pickle, a program. mmrm reads it with ``weights_only=True`` and in no other way: tensors, plain
Python values and what mmengine stores (:mod:`mmrm.compat.checkpoints`). For each way in which a file can be wrong there
is a message that says which.
"""
import io
import os
import pickle
import pickletools
import re
import shlex
import tarfile
import zipfile
from pathlib import Path
from typing import Any, List, Union

import torch

from .errors import UserFileError, UserTypeError

IF_TRUSTED = 'If you trust where it comes from, convert it once (this executes it) and use the new file:'


def read_checkpoint(path: Union[str, Path]) -> Any:
    """Read a checkpoint into main memory.

    Args:
        path (str | Path): A file of ``torch.save`` or a ``.safetensors`` file.

    Returns:
        Any: What was saved, most often a dict: a bare state dict, or one with ``'state_dict'`` in it. Tensors are on
        the CPU. A ``.safetensors`` file gives a dict of tensors.

    Raises:
        UserFileError: If there is no such file, or it is damaged, of another kind, or needs more than weights.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UserTypeError(f'path={path!r} must be a str or a Path.')
    path = Path(path).expanduser()
    check_file(path)
    if path.suffix == '.safetensors':
        return _read_safetensors(path)
    try:
        return torch.load(path, map_location='cpu', weights_only=True)
    except pickle.UnpicklingError as error:
        raise refusal(path, error) from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged file fails in many ways: EOFError, KeyError, RuntimeError ...
        raise _damaged(path, error) from error


def check_file(path: Union[str, Path]) -> None:
    """Look at a file from outside, before anything loads it.

    Args:
        path (str | Path): A file of ``torch.save`` or a ``.safetensors`` file.

    Raises:
        UserFileError: If it is missing, a folder, empty, unreadable, truncated, or no such file by its first bytes.
    """
    path = Path(path).expanduser()
    _check_readable(path)
    wrong = '' if path.suffix == '.safetensors' else _not_weights(path)
    if wrong:
        raise UserFileError(f'checkpoint {path} {wrong}')


def convert_command(path: Union[str, Path]) -> str:
    """A command line that executes the pickle in ``path`` and saves its state dict alone, for a user who trusts it."""
    path = Path(path)
    target = path.with_name(f'{path.stem}_weights.pth')
    code = (f'import torch; c = torch.load({str(path)!r}, map_location="cpu", weights_only=False); '
            's = c.state_dict() if hasattr(c, "state_dict") else c.get("state_dict", c); '
            f'torch.save({{"state_dict": dict(s)}}, {str(target)!r})')
    return f'python -c {shlex.quote(code)}'


def refusal(path: Union[str, Path], error: pickle.UnpicklingError) -> UserFileError:
    """The error for a file that ``torch.load`` refused: which global it asked for, and what to do.

    Args:
        path (str | Path): The file, or the address it came from.
        error (pickle.UnpicklingError): What ``torch.load`` raised.
    """
    file = os.path.expanduser(path)
    local = os.path.isfile(file)
    if 'might be corrupted' in str(error):  # torch before 2.4 says it in this way
        return _damaged(path, error)
    names = _refused_globals(file if local else '', str(error))
    reason = f'asks for {", ".join(names)}' if names else f'cannot be checked ({_reason(str(error))})'
    if not local:
        file = os.path.basename(file) or 'checkpoint.pth'
    return UserFileError(f'checkpoint {path} {reason}. Loading it would execute code from the file, so it is refused. '
                         f'{IF_TRUSTED}\n{convert_command(file)}')


def _refused_globals(file: str, message: str) -> List[str]:
    """Names in a file that torch does not allow; where torch cannot list them, the one that its message is about."""
    names: List[str] = []
    if file and hasattr(torch.serialization, 'get_unsafe_globals_in_checkpoint'):
        try:
            names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
        except Exception:  # not a zip file, or a protocol that torch cannot list
            names = []
    if file and not names and 'Unsupported operand' in message:
        names = [name for name in _named_globals(file) if not name.startswith(('torch.', 'collections.', '_codecs.'))]
    return names or re.findall(r'(?:GLOBAL|Unsupported class) (\S+\(.*\)|\S+)(?: was| whose|$)', message, re.M)[:1]


def _named_globals(file: str) -> List[str]:
    """The globals that a pickle of any protocol names; it is read, not executed."""
    names, memo, strings = set(), {}, ['', '']
    try:
        with open(file, 'rb') as stream:
            if zipfile.is_zipfile(stream):
                with zipfile.ZipFile(stream) as archive:
                    name = next(name for name in archive.namelist() if name.endswith('/data.pkl'))
                    stream = io.BytesIO(archive.read(name))
            else:
                stream.seek(0)
            while True:  # a file of torch before 1.6 has several pickles, then numbers
                top = None
                for opcode, argument, _ in pickletools.genops(stream):
                    if opcode.name == 'GLOBAL':
                        names.add(argument.replace(' ', '.'))
                    elif opcode.name == 'STACK_GLOBAL':
                        names.add('.'.join(strings[-2:]))
                    elif opcode.name == 'MEMOIZE':
                        memo[len(memo)] = top
                        continue
                    top = memo.get(argument) if 'GET' in opcode.name else argument
                    if isinstance(top, str):
                        strings.append(top)
                memo.clear()
    except (ValueError, EOFError, OSError, StopIteration, zipfile.BadZipFile):  # no more pickles
        return sorted(names)


def _reason(message: str) -> str:
    """The reason inside ``torch.load``'s long message: its last line but for a link."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and 'documentation of torch' not in line]
    return lines[-1].rpartition('WeightsUnpickler error: ')[2] if lines else 'no reason given'


def _check_readable(path: Path) -> None:
    """Raise if there is no file at ``path`` with something in it."""
    if re.match(r'[A-Za-z][\w+.-]+:/', str(path)):
        raise UserFileError(f'checkpoint {path} is an address. Download the file and give its path.')
    if path.is_dir():
        files = sorted(file.name for file in path.iterdir() if file.suffix in ('.pth', '.pt', '.safetensors'))
        hint = f'Give one of its files: {", ".join(files[:5])}.' if files else 'There is no .pth file in it.'
        raise UserFileError(f'checkpoint {path} is a folder, not a file. {hint}')
    try:
        with open(path, 'rb') as file:
            empty = not file.read(1)
    except FileNotFoundError:
        raise UserFileError(f'checkpoint {path} does not exist.') from None
    except PermissionError:
        raise UserFileError(f'checkpoint {path} may not be read: no permission.') from None
    except OSError as error:
        raise UserFileError(f'checkpoint {path} cannot be read: {error.strerror or error}.') from None
    if empty:
        raise UserFileError(f'checkpoint {path} is empty (0 bytes).')


def _not_weights(path: Path) -> str:
    """What a file is instead of one of ``torch.save``; '' if it may be one."""
    with open(path, 'rb') as file:
        head = file.read(256)
    if head.startswith(b'PK\x03\x04'):  # the very bytes by which torch knows its zip files
        if not zipfile.is_zipfile(path):
            return f'is truncated: a zip file of {path.stat().st_size} bytes without its end. Copy it again.'
        try:
            with zipfile.ZipFile(path) as archive:
                names = {name.partition('/')[2] for name in archive.namelist()}
        except zipfile.BadZipFile as error:
            return f'is damaged: {error}. Copy it again.'
        if 'data.pkl' not in names:
            return 'is a zip file, but not one of torch.save (there is no data.pkl in it).'
        if 'constants.pkl' in names:
            return 'is a TorchScript program, not weights. Save the state_dict() of the model instead.'
        return ''
    if tarfile.is_tarfile(path):
        # Not left to torch: before 2.6 it executes code from such a file even with weights_only=True.
        return ('is a tar file: an archive to be unpacked first, or a checkpoint of torch before 0.1.10, which cannot '
                f'be read without executing code from it. {IF_TRUSTED}\n{convert_command(path)}')
    if head.startswith(b'\x80'):  # a pickle, the format of torch before 1.6
        return ''
    text = head.decode('utf-8', 'replace').strip()
    if sum((char.isprintable() and char != '\ufffd') or char.isspace() for char in text) > 0.9 * len(text):
        return (f'is text, not a checkpoint: it begins with {text[:60]!r}. A web page or a pointer saved in its place? '
                'Download it again.')
    return f'is not a checkpoint: it begins with the bytes {head[:8]!r}.'


def _damaged(path: Union[str, Path], error: Exception) -> UserFileError:
    return UserFileError(f'checkpoint {path} is truncated or damaged ({type(error).__name__}: {_reason(str(error))}). '
                         'Copy it again.')


def _read_safetensors(path: Path) -> dict:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise UserFileError(f'checkpoint {path} needs the package safetensors: pip install safetensors.') from None
    try:
        return load_file(path, device='cpu')
    except (SafetensorError, ValueError) as error:
        raise _damaged(path, error) from error
