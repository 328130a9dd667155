"""The demo on photographs of blood cells, and a small drawn world in the layouts of the large data sets."""

from .photographs import make_photographs
from .world import make_world

__all__ = ['make_photographs', 'make_world']
