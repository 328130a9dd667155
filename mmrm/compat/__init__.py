"""Keeps the OpenMMLab packages alive on a current torch and NumPy, and safe.

One repair a module, each with ``needed()`` (is the flaw there, and not repaired yet?) and ``apply()``. Once upstream is
repaired, a module can be deleted together with its name below.

:mod:`~mmrm.compat.ops`
    ``mmcv.ops`` without mmcv's compiled extension.
:mod:`~mmrm.compat.checkpoints`
    mmengine loads checkpoints without executing their pickle, its own ones included.
:mod:`~mmrm.compat.scopes`
    ``mmseg::``, ``mmdet::``, ``mmpretrain::`` and ``mmrm::`` in ``_base_``.
:mod:`~mmrm.compat.multimodal`
    mmpretrain beside transformers 5.
:mod:`~mmrm.compat.hue`
    ``mmcv.adjust_hue`` beside NumPy 2.
:mod:`~mmrm.compat.configs`
    Configs in yaml, and those inside checkpoints, are data.
"""

from . import checkpoints, configs, hue, multimodal, ops, scopes

REPAIRS = (ops, checkpoints, scopes, multimodal, hue, configs)


def apply() -> None:
    """Repair what needs it. Safe to call twice; must come before the first import of ``mmcv.ops``."""
    for repair in REPAIRS:
        if repair.needed():
            repair.apply()
