"""Parts in a config that belong together: RM's augment, preprocessor and head; what is drawn, and who applies it."""

from typing import Iterable, Optional

from torch import nn

from ..utils.config import type_name
from ..utils.errors import UserValueError
from .data_preprocessor import RMDataPreprocessor, recursive_mixes
from .heads import RMConsistencyHead


def check_trio(model: nn.Module) -> Optional[str]:
    """Tell what keeps ``model`` from training with the consistency loss though it has parts of RM, and what to do.

    :class:`mmrm.engine.hooks.ResetHistoryHook` and mmrm's Runner log it when training starts.

    Args:
        model: mmpretrain's classifier; it may be wrapped by DDP.

    Returns:
        A short text, or None if all is well: the three parts are there, there is none of them, or ``omega=0`` says that
        no consistency is wanted.
    """
    modules = list(model.modules())
    preprocessor = next((module for module in modules if recursive_mixes(module)), None)
    head = next((module for module in modules if isinstance(module, RMConsistencyHead)), None)
    if (preprocessor is None and head is None) or (head is not None and head.omega == 0):
        return None
    if preprocessor is None and head is not None:
        return (
            f'The head is RMConsistencyHead with omega={head.omega}, but RecursiveMix is off: there will be no '
            "consistency loss. Use data_preprocessor=dict(type='RMDataPreprocessor', batch_augments="
            "dict(augments=dict(type='RecursiveMix'))), or omega=0 if you want none."
        )
    wrong, use = [], []
    if head is None:
        owner = next((module for module in modules if getattr(module, 'head', None) is not None), None)
        wrong.append(f'the head is {type(owner.head).__name__}' if owner is not None else 'there is no head')
        use.append("neck=None, head=dict(type='RMConsistencyHead', ...), with omega=0 if you want none")
    if not isinstance(preprocessor, RMDataPreprocessor):
        wrong.append(f'the data preprocessor is {type(preprocessor).__name__}')
        use.append("data_preprocessor=dict(type='RMDataPreprocessor', ...)")
    return (
        (f'RecursiveMix is on, but {" and ".join(wrong)}: there will be no consistency loss. Use {"; and ".join(use)}.')
        if wrong
        else None
    )


def check_drawn(model: nn.Module, pipeline: Iterable[dict]) -> None:
    """Raise if a pipeline draws colours or holes (``RMColors``, ``RMCutout``) that nobody would apply to the batch.

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
