"""The labels of a batch as tensors, for what needs no object per image: a compiled step, and small networks."""

from typing import Any, Iterator, List, Optional, Union

import torch

from ..core import Mix

MIX_FIELD = 'rm_mix'


class Sample:
    """One sample of a :class:`SampleBatch`, with as much of mmpretrain's ``DataSample`` as a head asks for in training.

    Args:
        gt_label: Shape ``(1, )``.
        gt_score: Shape ``(num_classes, )``.
        rm_mix: What was mixed.
    """

    def __init__(self, gt_label: Optional[torch.Tensor], gt_score: Optional[torch.Tensor], rm_mix: Optional[Mix]):
        if gt_label is not None:
            self.gt_label = gt_label
        if gt_score is not None:
            self.gt_score = gt_score
        self.rm_mix = rm_mix

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


class SampleBatch:
    """The samples of a training batch. It stands where mmpretrain has a list of ``DataSample``.

    Args:
        label: Shape ``(N, )``, or None.
        score: One-hot or mixed, shape ``(N, num_classes)``, or None.
        mix: What RecursiveMix did, or None.
    """

    def __init__(self, label: Optional[torch.Tensor], score: Optional[torch.Tensor] = None, mix: Optional[Mix] = None):
        self.label, self.score, self.mix = label, score, mix

    def pin_memory(self) -> 'SampleBatch':
        """As torch's loader asks for it."""
        label, score = (part if part is None else part.pin_memory() for part in (self.label, self.score))
        return SampleBatch(label, score, self.mix)

    def __len__(self) -> int:
        return len(next(part for part in (self.score, self.label) if part is not None))

    def __getitem__(self, index: Union[int, slice]) -> Any:
        if isinstance(index, slice):
            return self._samples()[index]
        label = None if self.label is None else self.label[index].reshape(1)
        return Sample(label, None if self.score is None else self.score[index], self.mix)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples())

    def _samples(self) -> List[Sample]:
        nothing = [None] * len(self)
        labels = nothing if self.label is None else self.label.split(1)
        scores = nothing if self.score is None else self.score.unbind()
        return [Sample(label, score, self.mix) for label, score in zip(labels, scores)]


def as_batch(samples: Any) -> Any:
    """A list of ``DataSample`` as a :class:`SampleBatch`; samples with several labels each stay as they are."""
    if isinstance(samples, SampleBatch) or not samples:
        return samples
    labels = [sample.get('gt_label') for sample in samples]
    scores = [sample.get('gt_score') for sample in samples]
    complete = [all(part is not None for part in parts) for parts in (labels, scores)]
    if not any(complete) or (complete[0] and any(label.numel() != 1 for label in labels)):
        return samples
    return SampleBatch(
        torch.cat([label.reshape(1) for label in labels]) if complete[0] else None,
        torch.stack(scores) if complete[1] else None,
        samples[0].get(MIX_FIELD),
    )
