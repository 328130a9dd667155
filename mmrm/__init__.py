"""RecursiveMix (Mixed Learning with History) for OpenMMLab.

Importing mmrm registers every component in the registries of mmpretrain and mmengine and, only where the installed
packages need it, repairs them (:mod:`mmrm.compat`). That must happen before ``mmcv.ops`` is imported: import it first.
"""
from . import compat
from .version import __version__

compat.apply()

from . import datasets, weights  # noqa: E402
from .core import Consistency, RecursiveMix  # noqa: E402
from .engine import hooks, schedulers  # noqa: E402
from .engine.optim_wrapper import BFloat16OptimWrapper  # noqa: E402
from .models import backbones  # noqa: E402
from .models.data_preprocessor import RMDataPreprocessor, reset_history  # noqa: E402
from .models.heads import RMConsistencyHead  # noqa: E402
from .models.regularisers import bind_augments  # noqa: E402

__all__ = [
    'BFloat16OptimWrapper', 'Consistency', 'RMConsistencyHead', 'RMDataPreprocessor', 'RecursiveMix', '__version__',
    'backbones', 'bind_augments', 'compat', 'datasets', 'hooks', 'reset_history', 'schedulers', 'weights'
]
