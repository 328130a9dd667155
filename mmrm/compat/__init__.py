"""Repairs of the installed OpenMMLab packages, and what mmrm's own tools refuse to execute.

One repair per module, each with ``needed()`` (is the flaw there, and not repaired yet?), ``apply()``, its reason and
the versions that it is for. ``import mmrm.models`` applies those that are needed, before it imports mmpretrain. Once
upstream is repaired, a module can be deleted together with its name below.
"""

from typing import List, NamedTuple

from . import hue, multimodal, operators, safe_classes, scopes

REPAIRS = (operators, safe_classes, scopes, multimodal, hue)


class Repair(NamedTuple):
    """A repair that was applied.

    Args:
        name (str): Its module.
        reason (str): What does not work without it.
        versions (str): The packages that need it.
    """

    name: str
    reason: str
    versions: str


_applied: List[Repair] = []


def apply() -> None:
    """Repair what needs it. Safe to call twice; must come before the first import of ``mmcv.ops``."""
    for repair in REPAIRS:
        if repair.needed():
            repair.apply()
            _applied.append(Repair(repair.__name__.rpartition('.')[2], repair.REASON, repair.VERSIONS))


def applied() -> List[Repair]:
    """The repairs that this process needed, in their order."""
    return list(_applied)


def police() -> None:
    """Have mmengine refuse files that would execute code; for mmrm's own tools (:mod:`mmrm.compat.policy`)."""
    from . import policy

    policy.apply()
