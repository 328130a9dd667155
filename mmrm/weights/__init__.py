"""Weights in and out: which file, layouts, strict loading, export, models by name."""

from importlib.util import find_spec

if find_spec('mmpretrain') is not None:  # mmrm.list_models works without OpenMMLab
    import mmrm.models  # noqa: F401  first: it repairs OpenMMLab and imports what it registers in one order

    from ..utils.checkpoints import read_checkpoint
    from .export import export_backbone, export_classifier
    from .runs import find_checkpoint
    from .strict import StrictPretrained, check_placement, load_backbone

    __all__ = [
        'StrictPretrained',
        'check_placement',
        'export_backbone',
        'export_classifier',
        'find_checkpoint',
        'load_backbone',
        'read_checkpoint',
    ]
