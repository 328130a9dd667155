"""Where things are: the checkout (or the installed package), configs, runs.

A relative path that a user gives is looked up from the current folder first, then from :func:`home`, so that every tool
works from any folder.
"""

import difflib
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

    ``mmrm::rm/resnet50_8xb64_in1k.py`` is the shipped one, as in ``_base_``; mmengine knows other packages' names.
    ``rm_resnet50_8xb64_in1k``, its name in model-index.yml, is the same.

    Raises:
        UserFileError: If there is none; the message lists near names, those of the current folder first.
    """
    scope, separator, name = str(path).partition('::')
    if separator and scope != 'mmrm':
        return _config_of_package(str(path), scope)
    alias = _alias(Path(name) if separator else Path(path))
    if alias is not None:
        return alias
    bases = (shipped() / 'configs',) if separator else (Path(), home(), shipped(), shipped() / 'configs')
    path = Path(name) if separator else Path(path).expanduser()
    for base in bases:
        if (base / path).is_file():
            return (base / path).resolve()
    what = 'is a folder, not a config file' if path.is_dir() and not separator else 'does not exist'
    shown = f'mmrm::{path}' if separator else path
    raise UserFileError(f'config {shown} {what}.{_near_configs(path, "mmrm::" if separator else "")}')


def _alias(path: Path) -> Union[Path, None]:
    """The shipped config that goes by ``<regulariser>_<name>[.py]``, as in model-index.yml and in ``.mim/aliases``."""
    given = path.expanduser()
    if given.parent != Path() and given.resolve().parent != PACKAGE / '.mim' / 'aliases':
        return None
    if given.parent == Path() and given.is_file():  # the user's own
        return None
    stem = given.name[:-3] if given.suffix == '.py' else given.name
    for folder in (shipped() / 'configs').glob('[!_]*'):
        config = folder / f'{stem[len(folder.name) + 1 :]}.py'
        if stem.startswith(f'{folder.name}_') and config.is_file():
            return config.resolve()
    return None


def _config_of_package(path: str, scope: str) -> Path:
    """The file of ``mmpretrain::resnet/resnet50_8xb32_in1k.py`` and the like."""
    from mmengine.config import Config

    try:
        found = Path(Config._get_cfg_path(path, '')[0])
    except Exception as error:  # mmengine's errors for a package without configs are many
        raise UserFileError(f'config {path}: the package {scope} or its configs cannot be found.') from error
    if not found.is_file():
        raise UserFileError(f'config {path} does not exist.')
    return found


def _near_configs(path: Path, scope: str) -> str:
    """`` Did you mean A?``: configs of the folder that was named, of the current one, then the shipped ones."""
    root = shipped() / 'configs' if scope else shipped()
    known = [str(each.relative_to(root)) for each in (shipped() / 'configs').glob('[!_]*/*.py')]
    own = [] if scope else [str(each) for folder in {path.parent, Path()} for each in folder.glob('*.py')]
    near = difflib.get_close_matches(str(path), own, n=3) + difflib.get_close_matches(str(path), known, n=3, cutoff=0.5)
    if near:
        return f' Did you mean {", ".join(scope + name for name in near[:3])}?'
    return ' The shipped configs are in configs/*/*.py.'


def default_work_dir(config: Union[str, Path], seed: Union[int, None] = None) -> Path:
    """``work_dirs/<regulariser>/<config name>[/seed<N>]``, without the regulariser for a config of the user's.

    It stands in the project's folder for a config in there, else in the current one.
    """
    config = Path(config).resolve()
    work_dir = (home() if home().resolve() in config.parents else Path.cwd()) / 'work_dirs'
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
