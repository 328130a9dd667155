"""Weights in and out: safe reading, strict loading of backbones, conversion and export."""

from importlib.util import find_spec

if find_spec('mmpretrain') is not None:  # mmrm.list_models works without OpenMMLab
    import mmrm.models  # noqa: F401  first: it repairs OpenMMLab and imports what it registers in one order

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
