"""The protocol of the fine-tuning study: cells, seeds, pilots, and what decides. Fixed before any test result."""

import math
from typing import Any, Dict, List, NamedTuple, Sequence

METHODS = ('none', 'mixup', 'cutmix', 'rm')
RATES = (0.005, 0.015, 0.045)
START: Dict[str, Dict[str, Any]] = dict(
    none=dict(weight_decay=1e-4), mixup=dict(alpha=0.2), cutmix=dict(prob=1), rm=dict(prob=1, omega=0.1)
)
Setting = Dict[str, Any]


class Cell(NamedTuple):
    """A number of images per class, a length, and seeds: each draws its own images and trains by itself."""

    images: int
    epochs: int
    seeds: Sequence[int]


PILOT = Cell(50, 15, (100, 101))
CELLS = {
    '10x15': Cell(10, 15, range(3)),
    '10x45': Cell(10, 45, range(3)),
    '50x15': Cell(50, 15, range(3)),
    '50x45': Cell(50, 45, range(8)),
}
DECIDING = '50x45'
BATCH = 32
COMPARISONS = 3  # none against the three others: the intervals in the deciding cell are 1 - 0.05 / 3


def name(setting: Setting) -> str:
    """Such as ``lr=0.015,omega=0.1,prob=1``: the same for the same setting."""
    return ','.join(f'{key}={setting[key]:g}' for key in sorted(setting))


def pilots(method: str, found: Dict[str, float]) -> List[Setting]:
    """The settings of a method that are tried, as far as they are known: six in all.

    Three learning rates, then three changes of the best so far.

    Args:
        method: One of :data:`METHODS`.
        found: The mean accuracy of the pilots that are done, by :func:`name`.
    """
    tried = [dict(START[method], lr=rate) for rate in RATES]
    if not _done(tried, found):
        return tried
    best = _best(tried, found)
    if method == 'mixup':
        return tried + [dict(best, alpha=alpha) for alpha in (0.1, 0.4, 1.0)]
    if method == 'none':
        tried += [dict(best, lr=float(f'{best["lr"] * factor:.3g}')) for factor in (3**-0.5, 3**0.5)]
        return tried + [dict(_best(tried, found), weight_decay=5e-4)] if _done(tried, found) else tried
    changes = [dict(prob=0.5), dict(plain_end=1)] + ([dict(omega=0.5)] if method == 'rm' else [])
    for change in changes:
        if not _done(tried, found):
            return tried
        tried.append({**_best(tried, found), **change})
    if method == 'cutmix':  # the combination of the two that was not tried
        own = dict(START[method], lr=tried[-1]['lr'])
        four = [{**own, **a, **b} for a in ({}, dict(prob=0.5)) for b in ({}, dict(plain_end=1))]
        tried += [setting for setting in four if setting not in tried][:1]
    return tried


def chosen(method: str, found: Dict[str, float]) -> Setting:
    """The setting that is tested: the best of the six pilots."""
    tried = pilots(method, found)
    if len(tried) < 6 or not _done(tried, found):
        raise ValueError(f'{method}: not all pilots are done')
    return _best(tried, found)


def _done(settings: Sequence[Setting], found: Dict[str, float]) -> bool:
    return all(name(setting) in found for setting in settings)


def _best(settings: Sequence[Setting], found: Dict[str, float]) -> Setting:
    return max(settings, key=lambda setting: found[name(setting)])  # of equals the first


def arguments(method: str, setting: Setting, cell: Cell) -> List[str]:
    """The options of ``mmrm compare`` that train this setting in a cell."""
    options = {key: value for key, value in setting.items() if key not in ('lr', 'weight_decay', 'plain_end')}
    if setting.get('plain_end'):
        options['last_epochs'] = math.ceil(cell.epochs / 10)
    words = ','.join(f'{key}={value:g}' for key, value in options.items())
    settings = {
        'optim_wrapper.optimizer.lr': setting['lr'],
        'optim_wrapper.optimizer.weight_decay': setting.get('weight_decay', START['none']['weight_decay']),
        'train_cfg.max_epochs': cell.epochs,
        'param_scheduler.1.end': cell.epochs,
    }
    if cell is PILOT:
        for part, file in (('train', 'pilot_train'), ('test', 'pilot_val')):
            settings[f'{part}_dataloader.dataset.ann_file'] = f'mmrm/{file}.txt'
    return [
        *('--methods', f'{method}:{words}' if words else method),
        *('--images-per-class', str(cell.images), '--test-last'),
        *('--cfg-options', *(f'{key}={value}' for key, value in settings.items())),
    ]
