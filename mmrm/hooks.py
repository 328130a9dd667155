"""The hooks under the name that older configs import; they live in :mod:`mmrm.engine.hooks`."""

from .engine.hooks import *  # noqa: F403
from .engine.hooks import __all__  # noqa: F401
