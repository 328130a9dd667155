"""The configs of the demo."""

import logging
import os
from pathlib import Path

from mmengine.config import Config

from ..utils import paths


def find_config(name: str) -> Path:
    """A config of the demo."""
    return paths.find_config(f'configs/demo/{name}.py')


def read_config(name: str, **variables: str) -> Config:
    """Read a config of the demo, with environment variables for it, quietly."""
    before = dict(os.environ)
    os.environ.update(variables, MMRM_BACKBONE='random')
    logging.disable(logging.INFO)
    try:
        return Config.fromfile(find_config(name))
    finally:
        logging.disable(logging.NOTSET)
        for variable in ('MMRM_BACKBONE', *variables):
            os.environ.pop(variable)
        os.environ.update(before)
