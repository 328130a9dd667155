"""RecursiveMix (Mixed Learning with History) for OpenMMLab and for every PyTorch loop.

The method needs torch and numpy alone: :class:`RecursiveMix` and :class:`Consistency` in a loop of your own, or
:class:`RecursiveMixModel` around a classifier.

Where OpenMMLab is installed, importing mmrm also registers every component in the registries of mmpretrain and mmengine
and, only where the installed packages need it, repairs them (:mod:`mmrm.compat`). That must happen before ``mmcv.ops``
is imported: import mmrm first.
"""

# ruff: noqa: F401 (the names of OpenMMLab's part join __all__ only where they exist)
from importlib.util import find_spec as _find_spec

from .core import Box, Consistency, Mix, RecursiveMix
from .version import __version__
from .wrapper import RecursiveMixModel

__all__ = ['Box', 'Consistency', 'Mix', 'RecursiveMix', 'RecursiveMixModel', '__version__', 'get_model', 'list_models']

_MISSING = [name for name in ('mmengine', 'mmcv', 'mmpretrain') if _find_spec(name) is None]
_OPENMMLAB_NAMES = [
    'BFloat16OptimWrapper',
    'RMConsistencyHead',
    'RMDataPreprocessor',
    'backbones',
    'bind_augments',
    'compat',
    'datasets',
    'hooks',
    'reset_history',
    'schedulers',
    'weights',
]

if not _MISSING:
    from . import compat

    compat.apply()

    from . import datasets, weights
    from .engine import hooks, metrics, schedulers
    from .engine.optim_wrapper import BFloat16OptimWrapper
    from .models import backbones
    from .models.data_preprocessor import RMDataPreprocessor, reset_history
    from .models.heads import RMConsistencyHead
    from .models.regularisers import bind_augments

    __all__ += _OPENMMLAB_NAMES


def __getattr__(name: str):
    if name in ('get_model', 'list_models'):
        from .weights import registry  # only who asks for a model waits for it

        return getattr(registry, name)
    if _MISSING and name in _OPENMMLAB_NAMES:
        raise ImportError(
            f'mmrm.{name} needs OpenMMLab, and {", ".join(_MISSING)} cannot be found: install mmrm with '
            'pip install .[openmmlab] or .[onedl], or bring mmengine, mmcv and mmpretrain yourself. '
            'RecursiveMix, Consistency and RecursiveMixModel work without.'
        )
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
