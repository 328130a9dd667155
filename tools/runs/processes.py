"""The processes that train."""

import os

from mmrm.utils.paths import PACKAGE


def environment(**variables: str) -> dict:
    """The variables of a process that this one starts: it finds this mmrm, and knows whom to end with."""
    modules = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get('PYTHONPATH')]))
    return dict(os.environ, PYTHONPATH=modules, MMRM_PARENT=str(os.getpid()), PYTHONUNBUFFERED='1', **variables)
