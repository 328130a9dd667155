"""Which file a path, a run's folder or an address stands for."""

import contextlib
from pathlib import Path
from typing import Callable, List, Optional, Union

from ..utils import paths
from ..utils.checkpoints import check_file, read_checkpoint
from ..utils.errors import UserError, UserFileError, UserTypeError, abbreviate
from ..utils.processes import warn
from ..utils.saved import find_saved, parse_name
from .download import download


def find_checkpoint(path: Union[str, Path], hint: str = '') -> Path:
    """The file that ``path`` stands for.

    Args:
        path (str | Path): A file, looked up from the current folder, then from :func:`mmrm.utils.paths.home`; the
            folder of a run, which stands for its ``best_*.pth``, else for its last one (:func:`weights_of_run`);
            ``torchvision://resnet50`` and the like, or an http(s) address, downloaded once.
        hint (str): What to add to a message when there is nothing at ``path``. Defaults to ''.

    Raises:
        UserFileError: If there is none.
    """
    if not isinstance(path, (str, Path)):
        raise UserTypeError(f'checkpoint={path!r} must be a path.')
    if not str(path).strip():
        raise UserFileError(f'the path of the weights is empty.{hint}')
    if '://' in str(path):
        return download(str(path), hint)
    found = paths.find(path)
    if found.is_dir():
        return weights_of_run(found, hint)
    if not found.exists():
        raise UserFileError(f'weights {path} do not exist{paths.looked_in(path)}.{hint}')
    return found


def saved_checkpoints(work_dir: Optional[Path]) -> List[Path]:
    """The checkpoints of a run, the one with the most epochs or iterations last."""
    saved = [each for each in find_saved(work_dir) if each.metric is None]
    by_unit = {unit: [each.path for each in saved if each.unit == unit] for unit in ('epoch', 'iter')}
    # Epochs and iterations compare only through what the files hold.
    units = sorted(by_unit, key=lambda unit: _iterations(by_unit[unit][-1])) if all(by_unit.values()) else by_unit
    return [path for unit in units for path in by_unit[unit]]


def latest_checkpoint(work_dir: Path, log: Callable[[str], None] = warn) -> Optional[Path]:
    """The checkpoint of ``work_dir`` with the most epochs or iterations, or the one that ``last_checkpoint`` names.

    ``last_checkpoint`` decides unless it names a file that is gone, or one that a complete checkpoint beside it is
    above: a run killed before it writes ``last_checkpoint`` leaves it empty, or with the checkpoint before.

    Args:
        work_dir (Path): A run's folder, perhaps moved or copied.
        log (callable): Called with a line of text where ``last_checkpoint`` is not followed.
    """
    note = work_dir / 'last_checkpoint'
    name = _read_note(note, log)
    if not name:
        return next(reversed(saved_checkpoints(work_dir)), None)
    named = work_dir / Path(name).name
    elsewhere = Path(name)
    # A folder of checkpoint.out_dir; one with a note of its own is that of the run that this one is a copy of.
    if not named.exists() and elsewhere.exists() and not (elsewhere.parent / note.name).exists():
        named = elsewhere
    saved = saved_checkpoints(named.parent)
    highest = next((path for path in reversed(saved) if _is_complete(path)), None)
    if not named.exists() and highest is not None:
        log(f'{note} names {named.name}, which does not exist: using {highest.name}, the newest.')
        return highest
    if named in saved and highest is not None and saved.index(highest) > saved.index(named):
        log(f'{note} names {named.name}, but {highest.name} is newer: using it.')
        return highest
    return named


def best_checkpoints(work_dir: Path) -> List[Path]:
    """The checkpoints that a run kept as its best."""
    return sorted(work_dir.glob('best_*.pth'))


def current_best(work_dir: Path) -> List[Path]:
    """The best checkpoint of each metric.

    A run writes a new best one, then removes the one before it; one that is killed in between leaves both. A best one
    is only ever followed by a better one, so the highest step is the best.
    """
    current = {}
    for path in best_checkpoints(work_dir):
        saved = parse_name(path)
        key = (saved.metric, saved.unit) if saved else path.name
        before = current.get(key)
        if before is None or saved.step > parse_name(before).step:
            current[key] = path
    return sorted(current.values())


def weights_of_run(folder: Path, hint: str = '') -> Path:
    """The best checkpoint of a run, its last one if it kept no best.

    Raises:
        UserFileError: If there is none, or several that could be meant.
    """
    best = current_best(folder)
    latest = None if best else latest_checkpoint(folder)
    if latest is not None and latest.parent.resolve() != folder.resolve():
        best = current_best(latest.parent)  # the run has its checkpoints elsewhere
    if len(best) > 1:
        names = abbreviate(file.name for file in best)
        raise UserFileError(f'{folder} has {len(best)} best checkpoints, name one: {names}.')
    latest = best[0] if best else latest
    if latest is not None:
        if not latest.is_file():
            raise UserFileError(f'{folder / "last_checkpoint"} names {latest.name}, which does not exist.')
        return latest
    seeds = sorted(
        child.name
        for child in folder.iterdir()
        if child.is_dir()
        and not child.name.startswith('replaced-')
        and (best_checkpoints(child) or latest_checkpoint(child))
    )
    if seeds:
        raise UserFileError(f'{folder} holds several runs, name one: {abbreviate(seeds)}.')
    raise UserFileError(f'{folder} is a folder without a checkpoint (best_*.pth, epoch_*.pth, iter_*.pth).{hint}')


def _read_note(note: Path, log: Callable[[str], None]) -> str:
    """The path in ``last_checkpoint``; '' if there is none, or if the file is damaged."""
    if not note.is_file():
        return ''
    with open(note, 'rb') as file:
        content = file.read(1 << 13)
    with contextlib.suppress(UnicodeDecodeError, OSError):
        text = content.decode().strip()
        for path in (Path(text), note.parent / Path(text).name):
            path.exists()  # an OSError for a name that is too long
        if text.isprintable():
            return text
    log(f'{note} is damaged and not used.')
    return ''


def _is_complete(path: Path) -> bool:
    """Whether a checkpoint looks complete from outside."""
    with contextlib.suppress(UserError):
        check_file(path)
        return True
    return path.is_dir()  # DeepSpeed's


def _iterations(path: Path) -> int:
    """The iterations that a checkpoint holds, -1 if it cannot be read."""
    with contextlib.suppress(UserError, KeyError, TypeError):
        return int(read_checkpoint(path)['meta']['iter'])
    return -1
