"""From pretraining to a detector on a small drawn world, in minutes."""

from .world import make_world

__all__ = ['make_world']
