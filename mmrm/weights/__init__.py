"""Weights in and out: safe reading, strict loading of backbones, conversion and export."""

from ..utils.checkpoints import read_checkpoint
from .convert import convert
from .export import export_backbone, export_classifier
from .strict import StrictPretrained, check_placement, find_checkpoint, load_backbone

__all__ = [
    'StrictPretrained',
    'check_placement',
    'convert',
    'export_backbone',
    'export_classifier',
    'find_checkpoint',
    'load_backbone',
    'read_checkpoint',
]
