"""The way of what was mixed, from the batch augment to the head: :class:`RMDataPreprocessor` puts it on the samples."""

from typing import List

from mmpretrain.models import ClsDataPreprocessor
from mmpretrain.registry import MODELS
from torch import nn

from ..core import RecursiveMix
from .batch_augments import ResizeFillMix

MIX_FIELD = 'rm_mix'


@MODELS.register_module()
class RMDataPreprocessor(ClsDataPreprocessor):
    """mmpretrain's preprocessor, which also tells the head what :class:`RecursiveMix` did.

    In training every data sample gets the field ``rm_mix``: the :class:`mmrm.core.Mix` of this iteration, or None when
    another augment (or none) was chosen. All arguments are those of mmpretrain's ``ClsDataPreprocessor``.
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """Normalise, pad and augment a batch as mmpretrain does, and mark its samples with what was mixed."""
        batch = super().forward(data, training)
        augments = _augments(self, (RecursiveMix, ResizeFillMix)) if training else []
        if augments and batch['data_samples']:
            mixes = [augment.take_mix() for augment in augments]
            mix = next((mix for mix in mixes if mix is not None), None)
            for sample in batch['data_samples']:
                sample.set_field(mix, MIX_FIELD, field_type='metainfo')
        return batch


def recursive_mixes(preprocessor: nn.Module) -> List[RecursiveMix]:
    """The RecursiveMix augments of a data preprocessor, stock or not."""
    return _augments(preprocessor, RecursiveMix)


def reset_history(model: nn.Module) -> None:
    """Empty the history of every RecursiveMix in ``model``.

    The authors' code starts every epoch so. :class:`mmrm.engine.hooks.ResetHistoryHook` calls this under
    mmengine's Runner; call it yourself at the start of an epoch in your own loop.
    """
    for module in model.modules():
        for augment in recursive_mixes(module):
            augment.reset()


def history_state(model: nn.Module) -> List[dict]:
    """The state of every RecursiveMix in ``model``, see :meth:`mmrm.core.RecursiveMix.history_state`."""
    return [augment.history_state() for module in model.modules() for augment in recursive_mixes(module)]


def load_history_state(model: nn.Module, states: List[dict]) -> None:
    """Give every RecursiveMix in ``model`` the state that :func:`history_state` returned."""
    augments = [augment for module in model.modules() for augment in recursive_mixes(module)]
    for augment, state in zip(augments, states):
        augment.load_history_state(state)


def _augments(preprocessor: nn.Module, kinds) -> list:
    augment = getattr(preprocessor, 'batch_augments', None)
    return [each for each in getattr(augment, 'augments', []) if isinstance(each, kinds)]
