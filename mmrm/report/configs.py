"""Which shipped config a run is of, what the paper has for it, and in what the run departs from it."""

import functools
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..utils.paths import shipped
from ..utils.settings import Difference, differences, result_settings
from . import authors_curves
from .published import METRICS, TABLES

# Of a run, not of its recipe.
NO_RECIPE = ('work_dir', 'launcher', 'resume', 'load_from', 'randomness', 'log_level', 'visualizer', 'vis_backends')
MOST_DIFFERENT = 12  # settings that decide; above, a run is not of that config


class Base(NamedTuple):
    """A shipped config that a run is of.

    Args:
        config (str): ``configs/<regulariser>/<name>.py``.
        decisive (list[Difference]): Settings that decide the result and differ from it.
    """

    config: str
    decisive: List[Difference]


class Published(NamedTuple):
    """The paper's number for a config, in the scale of the log (an accuracy, not an error).

    Args:
        value (float): In percent.
        table (str): The title of its table.
        reported (str): 'best' or 'last'.
        recipe (str): How it was trained, where that differs between the rows of a table.
    """

    value: float
    table: str
    reported: str
    recipe: str = ''


@functools.lru_cache(maxsize=64)
def read_shipped(config: str) -> Optional[dict]:
    """A shipped config as a dict; None if it cannot be read, such as one of a toolbox that is not installed."""
    from mmengine.config import Config

    try:
        return Config.fromfile(shipped() / config, import_custom_modules=False).to_dict()
    except Exception:  # whatever a base of another package raises
        return None


@functools.lru_cache(maxsize=256)
def _candidates(stem: str) -> Tuple[str, ...]:
    found = sorted((shipped() / 'configs').glob(f'[!_]*/{stem}.py'))
    return tuple(path.relative_to(shipped()).as_posix() for path in found)


def find_base(folder: Path, settings: Optional[dict]) -> Optional[Base]:
    """The shipped config that a run is of: by its folder, else by the name of the config in it and its settings."""
    owner = folder.parent if folder.name.startswith('seed') else folder
    stems = [owner.name, *(path.stem for path in sorted(folder.glob('*.py')))]
    named = f'configs/{owner.parent.name}/{owner.name}.py'
    best: Optional[Base] = None
    for config in dict.fromkeys(each for stem in stems if _is_plain(stem) for each in _candidates(stem)):
        wanted = read_shipped(config)
        if settings is None or wanted is None:
            differ: List[Difference] = []
            if config != named:
                continue
        else:
            old, new = (result_settings(each, length=True, weights=True) for each in (wanted, settings))
            differ = differences(old, new)
        if config == named:
            return Base(config, differ)
        if len(differ) <= MOST_DIFFERENT and (best is None or len(differ) < len(best.decisive)):
            best = Base(config, differ)
    return best


def _is_plain(stem: str) -> bool:
    return not set(stem) & set('*?[]/')


@functools.lru_cache(maxsize=1)
def _rows() -> Dict[Tuple[str, str], Published]:
    found: Dict[Tuple[str, str], Published] = {}
    for table in TABLES.values():
        for row in table.rows:
            for config in row.configs:
                for name, value in zip(table.metrics, row.published):
                    metric = METRICS[name]
                    if metric.source == 'validation':
                        shown = 100 - value if metric.offset else value
                        found.setdefault(
                            (config, metric.key), Published(shown, table.title, table.reported, row.recipe)
                        )
    return found


def published(base: Optional[Base], key: str) -> Optional[Published]:
    """The paper's number for a run's config and a key of the log."""
    return _rows().get((base.config, key)) if base else None


def authors(base: Optional[Base]) -> Optional[authors_curves.Curves]:
    """The authors' own training logs of a run's config."""
    return authors_curves.curves_of(base.config) if base else None


def sweep_of(folder: Path) -> Optional[str]:
    """``sweep/<sweep>/<setting>/<value>`` of a run that tools/analysis/sweep.py started; None of any other."""
    parts = folder.absolute().parts
    if len(parts) > 5 and parts[-5] == 'sweep' and parts[-1].startswith('seed'):
        return '/'.join(parts[-5:-1])
    return None


# ----------------------------------------------------------------------------------------------------------------- diff
class Setting(NamedTuple):
    """A setting that differs: ``decisive`` if it can change the result."""

    key: str
    old: str
    new: str
    decisive: bool


def settings_diff(old: dict, new: dict, decisive: List[Difference]) -> List[Setting]:
    """Where two configs differ, the settings that decide the result first."""
    deciding = {each.key for each in decisive}
    before, after = flat(old), flat(new)
    found = [Setting(each.key, each.old, each.new, True) for each in decisive]
    for key in dict.fromkeys([*before, *after]):
        top = key.split('.')[0]
        if before.get(key) == after.get(key) or top in NO_RECIPE or '_scope_' in key:
            continue
        if not any(key == name or key.startswith(f'{name}.') for name in deciding):
            found.append(Setting(key, before.get(key, ''), after.get(key, ''), False))
    return found


def flat(node, key: str = '') -> Dict[str, str]:
    """A config as ``{'a.b.0.c': text}``."""
    if not isinstance(node, (dict, list, tuple)) or not node:
        text = getattr(node, '__name__', None) or repr(node)
        return {key: text if len(text) <= 160 else f'{text[:157]}...'}
    found: Dict[str, str] = {}
    for name, value in node.items() if isinstance(node, dict) else enumerate(node):
        found.update(flat(value, f'{key}.{name}' if key else str(name)))
    return found
