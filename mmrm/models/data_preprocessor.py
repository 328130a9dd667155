"""The way of what was mixed, from the batch augment to the head: :class:`RMDataPreprocessor` puts it on the samples."""
import warnings
from typing import List, Optional

from mmpretrain.models import ClsDataPreprocessor
from mmpretrain.registry import MODELS
from torch import nn

from .batch_augments import Mix, RecursiveMix

MIX_FIELD = 'rm_mix'


@MODELS.register_module()
class RMDataPreprocessor(ClsDataPreprocessor):
    """mmpretrain's preprocessor, which also tells the head what :class:`RecursiveMix` did.

    In training every data sample gets the field ``rm_mix``: the :class:`Mix` of this iteration, or None when another
    augment (or none) was chosen. All arguments are those of mmpretrain's ``ClsDataPreprocessor``.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._last_mix: Optional[Mix] = None
        self._warned = False

    def forward(self, data: dict, training: bool = False) -> dict:
        """Normalise, pad and augment a batch as mmpretrain does, and mark its samples with what was mixed."""
        augments = recursive_mixes(self) if training else []
        self._warn_if_nobody_answers()
        batch = super().forward(data, training)
        if augments and batch['data_samples']:
            mixes = [augment.take_mix() for augment in augments]
            mix = next((mix for mix in mixes if mix is not None), None)
            for sample in batch['data_samples']:
                sample.set_field(mix, MIX_FIELD, field_type='metainfo')
            self._last_mix = mix if any(augment.history for augment in augments) else None
        return batch

    def reset_history(self) -> None:
        """Empty the history of every RecursiveMix."""
        self._last_mix = None
        for augment in recursive_mixes(self):
            augment.reset()

    def _warn_if_nobody_answers(self) -> None:
        if self._last_mix is not None and not self._last_mix.answered and not self._warned:
            self._warned = True
            warnings.warn(
                'RecursiveMix runs without a head that answers it, so there is no consistency loss (the ablation '
                '"RS + HIS"). Use head=dict(type="RMConsistencyHead", ...) for RM, or with omega=0 to silence this.',
                stacklevel=2)
        self._last_mix = None


def recursive_mixes(preprocessor: nn.Module) -> List[RecursiveMix]:
    """The RecursiveMix augments of a data preprocessor, stock or not."""
    augment = getattr(preprocessor, 'batch_augments', None)
    return [a for a in getattr(augment, 'augments', []) if isinstance(a, RecursiveMix)]


def reset_history(model: nn.Module) -> None:
    """Empty the history of every RecursiveMix in ``model``.

    The authors' code starts every epoch so. :class:`mmrm.engine.hooks.ResetHistoryHook` calls this under
    mmengine's Runner; call it yourself at the start of an epoch in a loop of your own.
    """
    for module in model.modules():
        if isinstance(module, RMDataPreprocessor):
            module.reset_history()
        else:
            for augment in recursive_mixes(module):
                augment.reset()
