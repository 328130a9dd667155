"""Which checkpoint a run's folder stands for."""

import contextlib
import sys
from pathlib import Path
from typing import Callable, List, Optional

from ..utils.checkpoints import check_file, read_checkpoint
from ..utils.errors import UserError, UserFileError
from ..utils.saved import find_saved, parse_name
from .layouts import abbreviate

CHECKPOINTS = ('epoch_*.pth', 'iter_*.pth')


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def saved_checkpoints(work_dir: Optional[Path]) -> List[Path]:
    """The checkpoints of a run, the one with the most epochs or iterations last."""
    saved = [each for each in find_saved(work_dir) if each.metric is None]
    by_unit = {unit: [each.path for each in saved if each.unit == unit] for unit in ('epoch', 'iter')}
    # Epochs and iterations compare only through what the files hold.
    units = sorted(by_unit, key=lambda unit: _iterations(by_unit[unit][-1])) if all(by_unit.values()) else by_unit
    return [path for unit in units for path in by_unit[unit]]


def latest_checkpoint(work_dir: Path, tell: Callable[[str], None] = _tell) -> Optional[Path]:
    """The checkpoint of ``work_dir`` with the most epochs or iterations, or the one that ``last_checkpoint`` names.

    ``last_checkpoint`` decides unless it names a file that is gone, or one that a complete checkpoint beside it is
    above: a run killed before it writes ``last_checkpoint`` leaves it empty, or with the checkpoint before.

    Args:
        work_dir (Path): A run's folder, perhaps moved or copied.
        tell (callable): Called with a line of text where ``last_checkpoint`` is not followed.
    """
    note = work_dir / 'last_checkpoint'
    name = _read_note(note, tell)
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
        tell(f'{note} names {named.name}, which is not there: {highest.name} is taken, the highest that is.')
        return highest
    if named in saved and highest is not None and saved.index(highest) > saved.index(named):
        tell(f'{note} names {named.name}, but {highest.name} is there too: the higher one is taken.')
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
            raise UserFileError(f'{folder / "last_checkpoint"} names {latest.name}, which is not there.')
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
    raise UserFileError(f'{folder} is a folder without a checkpoint (best_*.pth, {", ".join(CHECKPOINTS)}).{hint}')


def _read_note(note: Path, tell: Callable[[str], None]) -> str:
    """The path in ``last_checkpoint``; '' if there is none, or if the file is damaged."""
    if not note.is_file():
        return ''
    with open(note, 'rb') as file:
        content = file.read(1 << 13)
    with contextlib.suppress(UnicodeDecodeError):
        text = content.decode().strip()
        if all(char.isprintable() for char in text):
            return text
    tell(f'{note} is damaged and not used.')
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
