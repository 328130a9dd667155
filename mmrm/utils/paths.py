"""Where things are: the checkout (or the installed package), configs, runs.

A relative path that a user gives is looked up from the current folder first, then from :func:`home`, so that every tool
works from any folder.
"""

from pathlib import Path
from typing import Union

from .errors import UserFileError

PACKAGE = Path(__file__).resolve().parents[1]


def in_checkout() -> bool:
    """Whether mmrm runs from its source tree (a clone, an editable install) rather than from a wheel."""
    return (PACKAGE.parent / 'setup.py').is_file() and (PACKAGE.parent / 'configs').is_dir()


def home() -> Path:
    """The folder of ``work_dirs/`` and ``data/``: the checkout, or the current folder for an installed wheel."""
    return PACKAGE.parent if in_checkout() else Path.cwd()


def shipped() -> Path:
    """The folder that holds the shipped ``configs/`` and ``tools/``: the checkout, or ``mmrm/.mim`` in a wheel."""
    return PACKAGE.parent if in_checkout() else PACKAGE / '.mim'


def find(path: Union[str, Path]) -> Path:
    """Return ``path`` if it exists from the current folder, else from :func:`home`, else ``path`` as it came."""
    path = Path(path).expanduser()
    if not path.exists() and not path.is_absolute() and (home() / path).exists():
        return home() / path
    return path


def looked_in(path: Union[str, Path]) -> str:
    """`` in A and B``, the folders where :func:`find` looked for a path; '' for an absolute one."""
    if Path(path).expanduser().is_absolute():
        return ''
    return ' in ' + ' and '.join(sorted({str(Path.cwd()), str(home())}))


def find_config(path: Union[str, Path]) -> Path:
    """Return a config file, looked up from the current folder, the home folder and the shipped configs.

    Raises:
        UserFileError: If there is none; the message lists near names.
    """
    path = Path(path).expanduser()
    for base in (Path(), home(), shipped(), shipped() / 'configs'):
        if (base / path).is_file():
            return (base / path).resolve()
    import difflib

    known = sorted(str(p.relative_to(shipped())) for p in (shipped() / 'configs').glob('[!_]*/*.py'))
    near = difflib.get_close_matches(str(path), known, n=3, cutoff=0.5)
    hint = f' Did you mean {", ".join(near)}?' if near else ' The shipped configs are in configs/*/*.py.'
    what = 'is a folder, not a config file' if path.is_dir() else 'does not exist'
    raise UserFileError(f'config {path} {what}.{hint}')


def default_work_dir(config: Union[str, Path], seed: Union[int, None] = None) -> Path:
    """``work_dirs/<regulariser>/<config name>[/seed<N>]``, without the regulariser for a config of the user's."""
    config = Path(config).resolve()
    work_dir = home() / 'work_dirs'
    if config.parent.parent.name == 'configs':
        work_dir = work_dir / config.parent.name
    work_dir = work_dir / config.stem
    return work_dir if seed is None else work_dir / f'seed{seed}'


def show_path(path: Path) -> str:
    """A path as the user would type it: relative to the current folder, else to the project's, else whole."""
    for base in (Path.cwd(), home()):
        try:
            return str(Path(path).resolve().relative_to(base.resolve()))
        except ValueError:
            continue
    return str(path)
