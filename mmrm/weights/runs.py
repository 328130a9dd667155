"""Which checkpoint a run's folder stands for."""
from pathlib import Path
from typing import List, Optional

from ..utils.errors import UserFileError
from .layouts import abbreviate

CHECKPOINTS = ('epoch_*.pth', 'iter_*.pth')


def saved_checkpoints(work_dir: Optional[Path]) -> List[Path]:
    """The checkpoints of a run, oldest first."""
    if work_dir is None:
        return []
    saved = [path for pattern in CHECKPOINTS for path in work_dir.glob(pattern)]
    return sorted(saved, key=lambda path: (path.stat().st_mtime_ns, path.name))


def latest_checkpoint(work_dir: Path) -> Optional[Path]:
    """The checkpoint that ``last_checkpoint`` names (in ``work_dir`` if that was moved or copied), else the newest.

    A run killed while it wrote ``last_checkpoint`` leaves an empty or no such file beside a complete checkpoint.
    """
    note = work_dir / 'last_checkpoint'
    name = note.read_text().strip() if note.is_file() else ''
    if not name:
        return next(reversed(saved_checkpoints(work_dir)), None)
    here = work_dir / Path(name).name
    return Path(name) if Path(name).exists() and not here.exists() else here


def best_checkpoints(work_dir: Path) -> List[Path]:
    """The checkpoints that a run kept as its best, one a metric."""
    return sorted(work_dir.glob('best_*.pth'))


def weights_of_run(folder: Path, hint: str = '') -> Path:
    """The best checkpoint of a run, its last one if it kept no best.

    Raises:
        UserFileError: If there is none, or several that could be meant.
    """
    best = best_checkpoints(folder)
    if len(best) > 1:
        names = abbreviate(file.name for file in best)
        raise UserFileError(f'{folder} has {len(best)} best checkpoints, name one: {names}.')
    latest = best[0] if best else latest_checkpoint(folder)
    if latest is not None:
        if not latest.is_file():
            raise UserFileError(f'{folder / "last_checkpoint"} names {latest.name}, which is not there.')
        return latest
    seeds = sorted(child.name for child in folder.iterdir() if child.is_dir() and not child.name.startswith('replaced-')
                   and (best_checkpoints(child) or latest_checkpoint(child)))
    if seeds:
        raise UserFileError(f'{folder} holds several runs, name one: {abbreviate(seeds)}.')
    raise UserFileError(f'{folder} is a folder without a checkpoint (best_*.pth, {", ".join(CHECKPOINTS)}).{hint}')
