"""Parts of a config that need each other: RM's augment, preprocessor and head; drawn colours and their preprocessor."""

from typing import Iterable, Optional

from torch import nn

from ..core import RecursiveMix
from ..utils.config import type_name
from ..utils.errors import UserValueError
from .data_preprocessor import RMDataPreprocessor, augments_of
from .heads import RMConsistencyHead


def missing_parts(model: nn.Module) -> Optional[str]:
    """Say which part is missing for the consistency loss, and how to add it.

    :class:`mmrm.engine.hooks.ResetHistoryHook` and mmrm's Runner log it when training starts.

    Args:
        model: mmpretrain's classifier; it may be wrapped by DDP.

    Returns:
        A short text, or None: all three parts are there, or none of them, or ``omega=0`` switches the loss off.
    """
    modules = list(model.modules())
    head = next((module for module in modules if isinstance(module, RMConsistencyHead)), None)
    if head is not None and head.omega == 0:
        return None
    preprocessor = next((m for m in modules if any(isinstance(each, RecursiveMix) for each in augments_of(m))), None)
    if preprocessor is None:
        if head is None:
            return None
        return (
            f'The head is RMConsistencyHead with omega={head.omega}, but RecursiveMix is off: there will be no '
            "consistency loss. Use data_preprocessor=dict(type='RMDataPreprocessor', batch_augments="
            "dict(augments=dict(type='RecursiveMix'))), or omega=0 if you want none."
        )
    problems, fixes = [], []
    if head is None:
        owner = next((module for module in modules if getattr(module, 'head', None) is not None), None)
        problems.append('there is no head' if owner is None else f'the head is {type(owner.head).__name__}')
        fixes.append("neck=None, head=dict(type='RMConsistencyHead', ...), with omega=0 if you want none")
    if not isinstance(preprocessor, RMDataPreprocessor):
        problems.append(f'the data preprocessor is {type(preprocessor).__name__}')
        fixes.append("data_preprocessor=dict(type='RMDataPreprocessor', ...)")
    if not problems:
        return None
    return (
        f'RecursiveMix is on, but {" and ".join(problems)}: there will be no consistency loss. '
        f'Use {"; and ".join(fixes)}.'
    )


def check_head_norm(model: nn.Module) -> None:
    """Raise if the head's hidden layers have SyncBN.

    The region goes through them only in a process that has mixed something; where ranks disagree, they would wait for
    each other forever.
    """
    heads = [module for module in model.modules() if isinstance(module, RMConsistencyHead)]
    if any('SyncBatchNorm' in type(module).__name__ for head in heads for module in head.modules()):
        raise UserValueError(
            'RMConsistencyHead: its hidden layers have SyncBN, and a process that mixes nothing in an iteration would '
            "block the others. Use head.norm_cfg=dict(type='BN1d'), and no sync_bn in the config."
        )


def check_drawn_colors(model: nn.Module, pipeline: Iterable[dict]) -> None:
    """Raise if a pipeline draws colours or holes (``RMColors``, ``RMCutout``) that the preprocessor would not apply.

    Args:
        model: mmpretrain's classifier; it may be wrapped by DDP.
        pipeline: The transforms' configs.
    """
    steps = [type_name(step) for step in pipeline]
    drawn = [step for step in steps if step in ('RMColors', 'RMCutout')]
    if not drawn:
        return
    preprocessor = getattr(getattr(model, 'module', model), 'data_preprocessor', None)
    if not isinstance(preprocessor, RMDataPreprocessor):
        problem = f"the data preprocessor is {type(preprocessor).__name__}. Use type='RMDataPreprocessor'"
    elif 'RMPackInputs' not in steps[steps.index(drawn[-1]) :]:
        problem = "no RMPackInputs follows it in the pipeline. Use dict(type='RMPackInputs') instead of PackInputs"
    elif not preprocessor.to_rgb and any('Load' in step for step in steps):
        problem = 'the images are BGR and the data preprocessor leaves them so. Use to_rgb=True'
    else:
        return
    raise UserValueError(f'{drawn[0]} only draws what RMDataPreprocessor applies, and {problem}.')
