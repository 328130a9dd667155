"""Test a checkpoint, or a run's folder, with a config."""

from .launch import test as main

__all__ = ['main']
