"""Test a checkpoint, or a run's folder, with a config."""

from .launch import prepare_test as prepare
from .launch import test as main
from .launch import test_parser as parser

__all__ = ['main', 'parser', 'prepare']
