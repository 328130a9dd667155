"""mmengine as mmrm's tools have it."""

import pytest

from mmrm import compat


@pytest.fixture(scope='session', autouse=True)
def _policed():
    compat.police()
