"""Work dirs as mmengine writes them, by hand."""

import json
from pathlib import Path

CONFIG = """
train_cfg = dict(by_epoch={by_epoch}, {length})
randomness = dict(seed={seed})
{more}
"""


def write_session(folder: Path, time: str, records: list, config: str = '', broken: str = '') -> Path:
    """One session: ``<time>/vis_data/scalars.json`` with ``records``, its config, and an unfinished last line."""
    data = folder / time / 'vis_data'
    data.mkdir(parents=True)
    (data / 'scalars.json').write_text('\n'.join(map(json.dumps, records)) + '\n' + broken)
    if config:
        (data / 'config.py').write_text(config)
        (folder / 'config.py').write_text(config)
    return folder


def epochs(first: int, accuracies: list, key: str = 'accuracy/top1', per_epoch: int = 10, **more) -> list:
    """Training and validation records of successive epochs, from number ``first``."""
    records = []
    for epoch, value in enumerate(accuracies, first):
        step = epoch * per_epoch
        records.append(dict(lr=0.1, loss=1.0, time=0.5, epoch=epoch, iter=step, step=step, **more))
        records.append({key: value, 'data_time': 0.1, 'time': 0.2, 'step': epoch})
    return records


def settings(length: int = 3, seed: int = 0, by_epoch: bool = True, more: str = '') -> str:
    """The config that a run of so many epochs (or iterations) dumps."""
    name = 'max_epochs' if by_epoch else 'max_iters'
    return CONFIG.format(by_epoch=by_epoch, length=f'{name}={length}', seed=seed, more=more)


def write_run(folder: Path, accuracies: list, length=None, seed: int = 0, **kwargs) -> Path:
    """A run in one session, finished unless ``length`` says otherwise."""
    config = settings(length or len(accuracies), seed)
    return write_session(folder, '20260101_000000', epochs(1, accuracies, **kwargs), config)
