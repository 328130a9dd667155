"""The checkpoints in a run's folder, by name: ``epoch_3.pth``, ``iter_40.pth``, ``best_<metric>_epoch_3.pth``."""

import re
from pathlib import Path
from typing import List, NamedTuple, Optional

NAME = re.compile(r'(?:best_(?P<metric>.+)_)?(?P<unit>epoch|iter)_(?P<step>\d+)\.pth')


class Saved(NamedTuple):
    """A checkpoint of a run.

    Args:
        path (Path): The file.
        metric (str, optional): What it is the best one by, as in its name; None for one that can be resumed from.
        unit (str): 'epoch' or 'iter'.
        step (int): How many epochs or iterations it holds.
    """

    path: Path
    metric: Optional[str]
    unit: str
    step: int


def find_saved(folder: Optional[Path]) -> List[Saved]:
    """The checkpoints in a folder, the lowest step first, whatever the times of the files say.

    A copy or another clock changes a file's time; what it holds is in its name.
    """
    if folder is None or not folder.is_dir():
        return []
    found = [parse_name(path) for path in folder.iterdir()]
    return sorted((saved for saved in found if saved is not None), key=lambda saved: (saved.step, saved.path.name))


def parse_name(path: Path) -> Optional[Saved]:
    """What a file's name says, None if it is not that of a checkpoint."""
    match = NAME.fullmatch(path.name)
    return Saved(path, match['metric'], match['unit'], int(match['step'])) if match else None
