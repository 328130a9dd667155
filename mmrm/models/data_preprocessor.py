"""What is done to a batch on the training device: colours, holes, normalisation and mixing."""

from typing import Any, List, Optional, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from mmpretrain.models import ClsDataPreprocessor
from mmpretrain.registry import MODELS
from torch import nn

from ..core import Mix, RecursiveMix, to_device
from ..datasets.colors import COLORS_FIELD, HOLE_FIELD, apply_colors, fill_holes
from ..utils.errors import UserValueError
from .batch_augments import ResizeFillMix
from .samples import MIX_FIELD, SampleBatch


@MODELS.register_module()
class RMDataPreprocessor(ClsDataPreprocessor):
    """mmpretrain's preprocessor, which also applies drawn colours and passes :class:`RecursiveMix`'s mix to the head.

    Where the samples carry colour changes (of the transform ``RMColors``) or holes (of ``RMCutout``), these are applied
    to the batch on its device, together with the normalisation. In training every data sample gets the field
    ``rm_mix``: the :class:`mmrm.core.Mix` of this iteration, or None when another augment (or none) was chosen.

    Args:
        args, kwargs: As for mmpretrain's ``ClsDataPreprocessor``.
        non_blocking (bool): Whether a copy to the device does not wait for it, with a loader's ``pin_memory``. Defaults
            to True.

    Attributes:
        mixing (bool): False leaves every batch as it is, and RM's history, too (see ``MixScheduleHook``).
    """

    to_rgb: bool
    _enable_normalize: bool

    def __init__(self, *args, non_blocking: bool = True, **kwargs):
        super().__init__(*args, **kwargs)
        self._non_blocking = non_blocking
        self.mixing = True

    def forward(self, data: dict, training: bool = False) -> dict:
        """Normalise, pad and augment a batch as mmpretrain does, and mark its samples with what was mixed."""
        samples = data.get('data_samples') or []
        if isinstance(samples, SampleBatch):
            return self._forward_batch(data['inputs'], samples, training)
        if self.device.type == 'cuda' and all('gt_label' in sample for sample in samples):
            send_labels(samples, self.device)
        colors, holes = (_carried(samples, field) for field in (COLORS_FIELD, HOLE_FIELD))
        if colors is None and holes is None:
            batch = super().forward(data, training and self.mixing)
        else:
            inputs = self._paint(self.cast_data(data['inputs']), colors, holes)
            to_rgb, normalize = self.to_rgb, self._enable_normalize
            self.to_rgb = self._enable_normalize = False  # done already
            try:
                batch = super().forward({**data, 'inputs': inputs}, training and self.mixing)
            finally:
                self.to_rgb, self._enable_normalize = to_rgb, normalize
        if training and not self.mixing:
            for sample in batch['data_samples']:
                sample.gt_score = sample.gt_score.float()  # as RandomBatchAugment leaves them
        if training and self._mixing_augments() and batch['data_samples']:
            mix = self._take_mix()
            for sample in batch['data_samples']:
                sample.set_field(mix, MIX_FIELD, field_type='metainfo')
        return batch

    def _forward_batch(self, inputs: torch.Tensor, samples: SampleBatch, training: bool) -> dict:
        """The same for labels that are one tensor."""
        images = super().forward(dict(inputs=inputs), training)['inputs']
        label = self.cast_data(samples.label)
        score = samples.score
        if self.to_onehot:
            if self.num_classes is None:
                raise UserValueError('RMDataPreprocessor: batch_augments and to_onehot need num_classes.')
            score = F.one_hot(label, self.num_classes).float()
        if training and self.mixing and self.batch_augments is not None:
            images, score = self.batch_augments(images, score)
        return dict(inputs=images, data_samples=SampleBatch(label, score, self._take_mix() if training else None))

    def _take_mix(self) -> Optional[Mix]:
        mixes = [augment.take_mix() for augment in self._mixing_augments()]
        return next((mix for mix in mixes if mix is not None), None)

    def _mixing_augments(self) -> list:
        return [each for each in augments_of(self) if isinstance(each, (RecursiveMix, ResizeFillMix))]

    def _paint(self, inputs: Any, colors: Any, holes: Any) -> Any:
        """Images (a list, if of several sizes) in their drawn colours, normalised, with their holes."""
        if not isinstance(inputs, torch.Tensor):
            nothing = [None] * len(inputs)
            given = zip(inputs, nothing if colors is None else colors, nothing if holes is None else holes)
            return [
                self._paint(image[None], *(None if each is None else each[None] for each in rest))[0]
                for image, *rest in given
            ]
        if inputs.shape[1] != 3:
            raise UserValueError(f'RMColors and RMCutout need images of 3 channels, but these have {inputs.shape[1]}.')
        if colors is not None:
            blank = torch.zeros(3, device=inputs.device)
            mean, std = (self.mean, self.std) if self._enable_normalize else (blank, blank + 1)
            inputs = apply_colors(inputs, to_device(colors, inputs.device), mean, std, self.to_rgb)
        else:
            inputs = (inputs.flip(1) if self.to_rgb else inputs).float()
            inputs = (inputs - self.mean) / self.std if self._enable_normalize else inputs
        return inputs if holes is None else fill_holes(inputs, to_device(holes, inputs.device))


def send_labels(samples: Sequence[Any], device: torch.device) -> None:
    """Give samples their labels on a device, by one copy that the host does not wait for; mmpretrain's own waits."""
    labels = [sample.gt_label for sample in samples]
    sent = to_device(torch.cat(labels), device).split([len(label) for label in labels]) if labels else ()
    for sample, label in zip(samples, sent):
        sample.set_gt_label(label)


def _carried(samples: Sequence[Any], field: str) -> Any:
    """What the samples of a batch carry in ``field``, stacked; None if they carry nothing."""
    found = [getattr(sample, field) for sample in samples if hasattr(sample, field)]
    if 0 < len(found) < len(samples):
        raise UserValueError(
            f'{len(found)} of {len(samples)} samples of a batch carry {field}: RMColors and RMCutout must be in all '
            'pipelines that are mixed in a batch, or in none.'
        )
    return np.stack(found) if found else None


def augments_of(preprocessor: nn.Module) -> list:
    """The batch augments of a data preprocessor, stock or not."""
    return getattr(getattr(preprocessor, 'batch_augments', None), 'augments', [])


def recursive_mixes(model: nn.Module) -> List[RecursiveMix]:
    """Every RecursiveMix in ``model``, or in a data preprocessor."""
    return [each for module in model.modules() for each in augments_of(module) if isinstance(each, RecursiveMix)]


def reset_history(model: nn.Module) -> None:
    """Empty the history of every RecursiveMix in ``model``.

    The authors' code starts every epoch so. :class:`mmrm.engine.hooks.ResetHistoryHook` calls this under
    mmengine's Runner; call it yourself at the start of an epoch in your own loop.
    """
    for augment in recursive_mixes(model):
        augment.reset()


def history_state(model: nn.Module) -> List[dict]:
    """The state of every RecursiveMix in ``model``, see :meth:`mmrm.core.RecursiveMix.state_dict`."""
    return [augment.state_dict() for augment in recursive_mixes(model)]


def load_history_state(model: nn.Module, states: List[dict]) -> None:
    """Give every RecursiveMix in ``model`` the state that :func:`history_state` returned."""
    for augment, state in zip(recursive_mixes(model), states):
        augment.load_state_dict(state)
