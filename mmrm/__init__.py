"""RecursiveMix (Mixed Learning with History) for OpenMMLab and for every PyTorch loop.

The method needs torch and numpy alone: :class:`RecursiveMix` and :class:`Consistency` in a loop of your own, or
:class:`RecursiveMixModel` around a classifier.

``import mmrm`` imports neither torch nor OpenMMLab and changes nothing in them: a name is imported when it is first
used. For OpenMMLab there is ``import mmrm.models``, which a config names in its ``custom_imports``.
"""

# ruff: noqa: F401 (the names for type checkers; __all__ has those of OpenMMLab only where they exist)
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .version import __version__

if TYPE_CHECKING:
    from . import compat, datasets, weights
    from .core import Box, Consistency, Mix, RecursiveMix
    from .engine import schedulers
    from .engine.optim_wrapper import BFloat16OptimWrapper
    from .models import backbones
    from .models.data_preprocessor import RMDataPreprocessor, reset_history
    from .models.heads import RMConsistencyHead
    from .models.regularisers import bind_augments
    from .weights.registry import get_model, list_models
    from .wrapper import RecursiveMixModel

__all__ = ['Box', 'Consistency', 'Mix', 'RecursiveMix', 'RecursiveMixModel', '__version__', 'get_model', 'list_models']

# Each name and the module that has it.
_METHOD = {
    **dict.fromkeys(('Box', 'Consistency', 'Mix', 'RecursiveMix'), 'core'),
    **dict.fromkeys(('get_model', 'list_models'), 'weights.registry'),
    'RecursiveMixModel': 'wrapper',
}
_OPENMMLAB = {
    'BFloat16OptimWrapper': 'engine.optim_wrapper',
    'RMConsistencyHead': 'models.heads',
    'RMDataPreprocessor': 'models.data_preprocessor',
    'backbones': 'models',
    'bind_augments': 'models.regularisers',
    'compat': '',
    'datasets': '',
    'reset_history': 'models.data_preprocessor',
    'schedulers': 'engine',
    'weights': '',
}
_MISSING = [name for name in ('mmengine', 'mmcv', 'mmpretrain') if find_spec(name) is None]
if not _MISSING:
    __all__ += _OPENMMLAB


def __getattr__(name: str):
    if name in _OPENMMLAB and _MISSING:
        raise ImportError(
            f'mmrm.{name} needs OpenMMLab, and {", ".join(_MISSING)} cannot be found: install mmrm with '
            'pip install .[openmmlab] or .[onedl], or install mmengine, mmcv and mmpretrain yourself. '
            'RecursiveMix, Consistency and RecursiveMixModel work without it.'
        )
    module = {**_METHOD, **_OPENMMLAB}.get(name)
    if module is None:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'mmrm.{module}'), name) if module else import_module(f'mmrm.{name}')


def __dir__() -> list:
    return sorted({*globals(), *__all__})
