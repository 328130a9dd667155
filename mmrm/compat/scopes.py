"""``mmpretrain::``, ``mmdet::``, ``mmseg::`` and ``mmrm::`` in ``_base_``.

mmengine looks for the distribution that it believes a module comes from (``mmsegmentation`` for ``mmseg``) and misses
OneDL's, which has another name; and mmengine 0.10.7 asks ``pkg_resources``, which setuptools 82 no longer has and
earlier ones warn of at every config. Python itself knows where a module is.
"""

import functools
import importlib
import importlib.util
import pkgutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ..utils import paths

REASON = "mmengine finds neither mmrm:: nor OneDL's packages in _base_, and asks pkg_resources and pkgutil.find_loader"
VERSIONS = 'every mmengine; pkg_resources: setuptools 82; find_loader: Python 3.14'


def _importable(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def is_distributed(package: str) -> bool:
    """Whether a distribution of this name is installed, whatever its modules are called."""
    try:
        return distribution(package) is not None
    except PackageNotFoundError:
        return False


def needed() -> bool:
    """Whether :func:`apply` has not been here: no mmengine knows ``mmrm::`` by itself."""
    from mmengine.config import Config

    return not hasattr(Config._get_cfg_path, 'serves_mmrm')


def apply() -> None:
    """Teach mmengine where the packages are, as far as it does not know."""
    from mmengine.config.utils import MODULE2PACKAGE
    from mmengine.utils import package_utils

    for module, package in list(MODULE2PACKAGE.items()):
        if module != package and not is_distributed(package) and _importable(module):
            MODULE2PACKAGE[module] = module
    if 'pkg_resources' in package_utils.is_installed.__code__.co_names:
        _do_without_pkg_resources({package: module for module, package in MODULE2PACKAGE.items()})
    if not hasattr(pkgutil, 'find_loader'):  # gone in Python 3.14; mmengine and mmcv look for mmcv._ext with it
        pkgutil.find_loader = lambda name: getattr(importlib.util.find_spec(name), 'loader', None)
    _serve_own_configs()


def _do_without_pkg_resources(module_of: dict) -> None:
    """Replace mmengine's ``is_installed`` and ``get_installed_path`` where they are used.

    Args:
        module_of (dict): Module name of each package name.
    """

    def is_installed(package: str) -> bool:
        return is_distributed(package) or _importable(package)

    def get_installed_path(package: str) -> str:
        listed = (distribution(package).read_text('top_level.txt') or '').split() if is_distributed(package) else []
        for module in (module_of.get(package, package), *listed):
            if _importable(module):
                return str(Path(importlib.util.find_spec(module).origin).parent)
        raise ModuleNotFoundError(f'{package} is not installed.')

    for user in ('mmengine.utils.package_utils', 'mmengine.utils', 'mmengine.config.config', 'mmengine.hub.hub'):
        module = importlib.import_module(user)
        for function in (is_installed, get_installed_path):
            if hasattr(module, function.__name__):
                setattr(module, function.__name__, function)


def _serve_own_configs() -> None:
    """Answer ``mmrm::<regulariser>/<name>.py`` from the checkout or the installed package."""
    from mmengine.config import Config

    inner = Config._get_cfg_path

    @functools.wraps(inner)
    def _get_cfg_path(cfg_path, filename):
        scope, separator, name = cfg_path.partition('::')
        if scope == 'mmrm' and separator:
            # No scope: mmrm's components are in the registries of the toolboxes, and the configs name these.
            return str(paths.find_config(paths.shipped() / 'configs' / name)), None
        return inner(cfg_path, filename)

    _get_cfg_path.serves_mmrm = True
    Config._get_cfg_path = staticmethod(_get_cfg_path)
