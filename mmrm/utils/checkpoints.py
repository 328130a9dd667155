"""Reading checkpoint files without executing anything in them.

A ``.pth`` file is a pickle, a program. mmrm reads it with ``weights_only=True`` and in no other way: tensors, plain
Python values and what mmengine stores (:mod:`mmrm.compat.safe_classes`). torch itself compares no checksum; here those
that a file carries are compared: the CRCs of torch's zip files and the SHA-256 of what mmrm exported. For each way in
which a file can be wrong there is a message that says which.
"""

import hashlib
import json
import os
import pickle
import re
import shlex
import stat
import tarfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Set, Tuple, Union

import torch
from mmengine.utils import digit_version

from .errors import UserFileError
from .saved import find_saved, parse_name
from .trust import TRUST, is_trusted

IF_TRUSTED = 'If you trust its source, convert it once (this executes it) and use the new file:'
COUNTER = 'num_batches_tracked'  # of batch norm
DAMAGED = ('is empty', 'is truncated', 'is damaged', 'was changed')  # what a good neighbour is offered for
# A file of these bytes may unpack to FACTOR times its size and SMALL more; one tensor of it to EXPANDED times.
SMALL, FACTOR, EXPANDED = 1 << 24, 100, 4
SAFE_TORCH = '2.10'  # before, a crafted file can corrupt memory although weights_only=True
_own: Set[Path] = set()  # folders of this process's own run
_sound: Dict[str, tuple] = {}  # checksums that were found right in this process, by path


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
    path = Path(path).expanduser()
    check_file(path)
    if path.suffix == '.safetensors':
        checkpoint = _read_safetensors(path)
    else:
        with load_errors(path):
            checkpoint = torch.load(path, map_location='cpu', weights_only=True)
    check_content(path, checkpoint)
    return checkpoint


@contextmanager
def load_errors(path: Union[str, Path]) -> Iterator[None]:
    """Around ``torch.load``: a :class:`UserFileError` says what is wrong with a file, or what it asked for."""
    try:
        yield
    except pickle.UnpicklingError as error:
        raise refusal(path, error) from None
    except (MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # a damaged file fails in many ways: EOFError, KeyError, RuntimeError ...
        if not os.path.isfile(os.path.expanduser(path)):
            raise
        raise file_error(
            path, f'is truncated or damaged ({type(error).__name__}: {_reason(str(error))}). Copy it again.'
        ) from error


def check_file(path: Union[str, Path]) -> None:
    """Look at a file from outside, before anything loads it. Checksums are computed once per file and process.

    Args:
        path (str | Path): A file of ``torch.save`` or a ``.safetensors`` file.

    Raises:
        UserFileError: If it is missing, no regular file, empty, unreadable, truncated, damaged, or no checkpoint by its
            first bytes.
    """
    path = Path(path).expanduser()
    wrong = _unreadable(path)
    if not wrong:
        check_torch(path)
        wrong = _fault(path)
    if wrong:
        raise file_error(path, wrong)


def own_folder(folder: Union[str, Path]) -> None:
    """Say that this process's run writes its checkpoints to a folder, so that it may resume from them."""
    _own.add(Path(folder).resolve())


def check_torch(path: Union[str, Path]) -> None:
    """Raise if this torch cannot read a file safely: a ``.pth`` of another run, before torch 2.10.

    Args:
        path (str | Path): The file, or its address.
    """
    own = not _own.isdisjoint(Path(path).resolve().parents)
    if own or is_trusted() or str(path).endswith('.safetensors'):
        return
    if digit_version(torch.__version__) < digit_version(SAFE_TORCH):
        raise UserFileError(
            f'checkpoint {path} is not read: with torch {torch.__version__} a crafted .pth file can corrupt memory '
            f'although weights_only=True (CVE-2026-24747). Use torch 2.10 or newer or a .safetensors file, or {TRUST}.'
        )


def check_content(path: Union[str, Path], checkpoint: Any) -> None:
    """Look at what was read from a file, before anything computes with it.

    Args:
        path (str | Path): The file.
        checkpoint (Any): What was read from it.

    Raises:
        UserFileError: If its tensors would take far more memory than the file has bytes, which an expanded tensor (one
            number, repeated) can, if one has no values, or if mmrm wrote the file and the hash in it is of others.
    """
    path = Path(path).expanduser()
    size, total, largest = path.stat().st_size, 0, ('', 0)
    for name, tensor in _tensors(checkpoint):
        if tensor.is_meta:
            raise UserFileError(
                f'checkpoint {path}: tensor {name} has a shape but no values (saved from the meta device).'
            )
        if tensor.layout == torch.strided:  # others have no strides to repeat a number with
            needed = tensor.numel() * tensor.element_size()
            total, largest = total + needed, max(largest, (name, needed), key=lambda pair: pair[1])
    if total > FACTOR * size + SMALL or largest[1] > EXPANDED * size + SMALL:
        raise UserFileError(
            f'checkpoint {path} is refused: its tensors would take {total / 1e6:,.1f} MB of memory, '
            f'{largest[0]} alone {largest[1] / 1e6:,.1f} MB, and the file has {size / 1e6:,.1f} MB.'
        )
    meta = meta_of(checkpoint, path)
    if 'mmrm_version' in meta and 'sha256' in meta:
        wrong = _once(path, 'sha256', lambda: _bad_hash(named_tensors(checkpoint), str(meta['sha256'])))
        if wrong:
            raise file_error(path, wrong)


def named_tensors(checkpoint: Any) -> Any:
    """The part of a checkpoint that holds the weights: its ``state_dict`` or ``model``, or itself."""
    if isinstance(checkpoint, Mapping):
        for name in ('state_dict', 'model'):
            if isinstance(checkpoint.get(name), Mapping):
                return checkpoint[name]
    return checkpoint


def meta_of(checkpoint: Any, file: Path) -> dict:
    """What a file says of itself: ``meta`` in a checkpoint, on a bare state dict written here, in a safetensors header.

    The authors' checkpoints have their ``epoch`` beside the weights.
    """
    found: Any = getattr(checkpoint, 'meta', None)
    if file.suffix == '.safetensors':
        from safetensors import safe_open

        with safe_open(file, 'pt') as opened:
            text = (opened.metadata() or {}).get('meta', '')
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):  # none, or another program's
            found = None
    elif isinstance(checkpoint, Mapping) and isinstance(checkpoint.get('meta'), Mapping):
        found = checkpoint['meta']
    meta = dict(found) if isinstance(found, Mapping) else {}
    if isinstance(checkpoint, Mapping) and isinstance(checkpoint.get('epoch'), int):
        meta.setdefault('epoch', checkpoint['epoch'])
    return meta


def check_class_order(meta: Mapping, dataset: Any, path: Union[str, Path]) -> None:
    """Raise if a checkpoint has the classes of a data set in another order: its results would be of other classes.

    Args:
        meta (Mapping): Of the checkpoint.
        dataset (Any): With ``metainfo['classes']``, or without.
        path (str | Path): The checkpoint.
    """
    infos = meta.get('dataset_meta'), getattr(dataset, 'metainfo', None)
    saved, names = ([str(name) for name in (info or {}).get('classes') or ()] for info in infos)
    if saved != names and sorted(saved) == sorted(names):
        moved = next(name for name, other in zip(names, saved) if name != other)
        places = f'{moved} is class {saved.index(moved)} in it and class {names.index(moved)} in the data'
        raise UserFileError(f'checkpoint {path} has the classes of the data in another order: {places}.')


def tensor_hash(state_dict: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, types, shapes and values, in the order of the names.

    BN's counters are left out: some layouts lack them, and they change nothing in inference.
    """
    digest = hashlib.sha256()
    for key in sorted(state_dict):
        if key.endswith(COUNTER):
            continue
        tensor = state_dict[key].detach().cpu().contiguous()
        digest.update(f'{key} {tensor.dtype} {tuple(tensor.shape)}\n'.encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def good_neighbour(path: Union[str, Path]) -> Optional[Path]:
    """The newest checkpoint in the folder of a run's checkpoint that is another one and not damaged; None if none is.

    A best one counts as the oldest: training cannot resume from it.
    """
    path = Path(path)
    if parse_name(path) is None:
        return None
    others = [saved for saved in find_saved(path.parent) if saved.path.name != path.name]
    others.sort(key=lambda saved: saved.metric is None)
    return next((saved.path for saved in reversed(others) if not (_unreadable(saved.path) or _fault(saved.path))), None)


def convert_command(path: Union[str, Path]) -> str:
    """A command line that executes the pickle in ``path`` and saves its state dict alone, for a user who trusts it."""
    path = Path(path)
    target = path.with_name(f'{path.stem}_weights.pth')
    code = (
        f'import torch; c = torch.load({str(path)!r}, map_location="cpu", weights_only=False); '
        's = c.state_dict() if hasattr(c, "state_dict") else c.get("state_dict", c); '
        f'torch.save({{"state_dict": dict(s)}}, {str(target)!r})'
    )
    return f'python -c {shlex.quote(code)}'


def refusal(path: Union[str, Path], error: pickle.UnpicklingError) -> UserFileError:
    """The error for a file, or for an address, that ``torch.load`` refused: which global it asked for, what to do."""
    file = os.path.expanduser(path)
    if not os.path.isfile(file):
        file = os.path.basename(file) or 'checkpoint.pth'
    name = re.search(r'(?:GLOBAL|Unsupported class) (\S+\(.*\)|\S+)(?: was| whose|$)', str(error), re.M)
    reason = f'asks for {name[1]}' if name else f'cannot be checked ({_reason(str(error))})'
    return UserFileError(
        f'checkpoint {path} {reason}. Loading it would execute code from the file, so it is refused. '
        f'{IF_TRUSTED}\n{convert_command(file)}'
    )


def _reason(message: str) -> str:
    """The reason inside ``torch.load``'s long message: its last line but for a link."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and 'documentation of torch' not in line]
    return lines[-1].rpartition('WeightsUnpickler error: ')[2] if lines else 'no reason given'


def file_error(path: Union[str, Path], wrong: str) -> UserFileError:
    """The error for a file that is ``wrong`` ('is truncated ...'). For a damaged one it names a good one beside it."""
    other = good_neighbour(path) if wrong.startswith(DAMAGED) else None
    offer = f' The newest good one beside it is {other}' if other else ''
    return UserFileError(f'checkpoint {path} {wrong}{offer}')


def _unreadable(path: Path) -> str:
    """Why ``path`` is not a file with content; '' if it is one. Only a regular file is opened: the others hang."""
    if re.match(r'[A-Za-z][\w+.-]+:/', str(path)):
        return 'is an address. Download the file and give its path.'
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            files = sorted(file.name for file in path.iterdir() if file.suffix in ('.pth', '.pt', '.safetensors'))
            hint = f'Give one of its files: {", ".join(files[:5])}.' if files else 'There is no .pth file in it.'
            return f'is a folder, not a file. {hint}'
        if not stat.S_ISREG(mode):
            return 'is not a regular file but a pipe, socket or device. Write it to a file and give its path.'
        with open(path, 'rb') as file:
            return '' if file.read(1) else 'is empty (0 bytes).'
    except FileNotFoundError:
        return 'does not exist.'
    except OSError as error:
        return f'cannot be read: {error.strerror or error}.'


def _fault(path: Path) -> str:
    """What a readable file is instead of a whole checkpoint; '' if it may be one."""
    with open(path, 'rb') as file:
        head = file.read(256)
    if path.suffix == '.safetensors':
        return '' if head[8:9] == b'{' else _no_checkpoint(head)  # the library checks header and length
    if head.startswith(b'PK\x03\x04'):  # the very bytes by which torch knows its zip files
        return _bad_zip(path)
    if tarfile.is_tarfile(path):
        # Not left to torch: before 2.6 it executes code from such a file even with weights_only=True.
        return (
            'is a tar file: an archive to be unpacked first, or a checkpoint of torch before 0.1.10, which cannot '
            f'be read without executing code from it. {IF_TRUSTED}\n{convert_command(path)}'
        )
    if head.startswith(b'\x80'):  # a pickle, the format of torch before 1.6, which has no checksums
        return ''
    return _no_checkpoint(head)


def _no_checkpoint(head: bytes) -> str:
    """What to say of a file that begins with ``head``."""
    text = head.decode('utf-8', 'replace').strip()
    if sum((char.isprintable() and char != '\ufffd') or char.isspace() for char in text) > 0.9 * len(text):
        return (
            f'is text, not a checkpoint: it begins with {text[:60]!r}. A web page or a pointer saved in its place? '
            'Download it again.'
        )
    return f'is not a checkpoint: it begins with the bytes {head[:8]!r}.'


def _bad_zip(path: Path) -> str:
    """What is wrong with a zip file of ``torch.save``; '' if nothing is. Memory stays at a megabyte."""
    size = path.stat().st_size
    try:
        if not zipfile.is_zipfile(path):
            return f'is truncated: a zip file of {size} bytes without its end. Copy it again.'
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            names = {entry.filename.partition('/')[2] for entry in entries}
            if 'data.pkl' not in names:
                return 'is a zip file, but not one of torch.save (there is no data.pkl in it).'
            if 'constants.pkl' in names:
                return 'is a TorchScript program, not weights. Save the state_dict() of the model instead.'
            unpacked = sum(entry.file_size for entry in entries)
            if unpacked > FACTOR * size + SMALL:  # torch.save does not compress at all
                return f'is refused: its {size / 1e6:,.1f} MB would unpack to {unpacked / 1e6:,.1f} MB.'
            # torch does not fill the tensors of a part that is marked as a folder or as empty: they would hold whatever
            # was in memory before.
            folders = [e.filename for e in entries if e.external_attr & 0x10 or (e.file_size and not e.compress_size)]
            if folders:
                return f'is damaged: its part {folders[0].partition("/")[2]} has no content. Copy it again.'
            if not any(entry.CRC for entry in entries):  # saved after torch.serialization.set_crc32_options(False)
                return ''
            part = (_once(path, 'crc', archive.testzip) or '').partition('/')[2]
            return f'is damaged in its part {part}: its checksum is wrong. Copy it again.' if part else ''
    except Exception as error:  # wrong headers raise many kinds
        return f'is damaged: {error or "it ends too early"}. Copy it again.'


def _bad_hash(tensors: Mapping, sha256: str) -> str:
    if sha256 == tensor_hash({str(key): value for key, value in tensors.items() if isinstance(value, torch.Tensor)}):
        return ''
    return (
        f'was changed or damaged after it was written: its tensors do not have the hash {sha256[:16]}... that it '
        'carries. Export it again.'
    )


def _tensors(value: Any) -> Iterator[Tuple[str, torch.Tensor]]:
    """All tensors in nested dicts, lists and tuples, with their names; each container once."""
    stack, seen = [('', value)], set()
    while stack:
        name, value = stack.pop()
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            stack.extend((f'{name}.{key}'.lstrip('.'), item) for key, item in pairs)


def _once(path: Path, check: str, run: Callable[[], Optional[str]]) -> Optional[str]:
    """What ``run`` finds wrong with a file; a file that it found right is not checked again while it stays as it is."""
    found = path.stat()
    key = f'{check} {path.absolute()}'
    stamp = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    wrong = '' if _sound.get(key) == stamp else run()
    if not wrong:
        _sound[key] = stamp
    return wrong


def _read_safetensors(path: Path) -> dict:
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise UserFileError(f'checkpoint {path} needs the package safetensors: pip install safetensors.') from None
    with load_errors(path):
        return load_file(path, device='cpu')
