"""Small images that all lie in memory are loaded a batch at a time, not one by one: no object, no call per image."""

from typing import Any, Callable, List, Optional

import numpy as np
import torch
from mmengine.model import is_model_wrapper
from mmpretrain.datasets import BaseDataset
from mmpretrain.datasets.transforms import PackInputs
from mmpretrain.models import ImageClassifier
from mmpretrain.models.heads import ClsHead

from ..datasets.crop_flip import RMCropFlip
from ..datasets.seeding import Draw, SeededDataset
from ..models.data_preprocessor import RMDataPreprocessor
from ..models.samples import SampleBatch


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, also inside DDP."""
    return model.module if is_model_wrapper(model) else model


def takes_batched_images(model: torch.nn.Module) -> bool:
    """Whether a model's preprocessor and head do without an object per image."""
    classifier = unwrapped(model)
    head = getattr(classifier, 'head', None)
    return (
        isinstance(classifier, ImageClassifier)
        and type(classifier).loss is ImageClassifier.loss
        and isinstance(getattr(classifier, 'data_preprocessor', None), RMDataPreprocessor)
        and isinstance(head, ClsHead)
        and type(head)._get_loss is ClsHead._get_loss
    )


def batched_transform(dataset: Any) -> Optional[RMCropFlip]:
    """The transform of a pipeline that is made of ``RMCropFlip`` and ``PackInputs``; None for any other."""
    transforms = getattr(getattr(dataset, 'pipeline', None), 'transforms', None) or []
    if [type(transform) for transform in transforms] == [RMCropFlip, PackInputs]:
        return transforms[0]
    return None


class BatchedImages(SeededDataset):
    """A :class:`SeededDataset` that loads the draws of a batch at once: the pixels that one by one would give.

    Args:
        dataset: Its pipeline is one of :func:`batched_transform`.
        images: uint8, shape ``(number, C, H, W)``.
        labels: Shape ``(number, )``.
    """

    def __init__(self, dataset: BaseDataset, images: np.ndarray, labels: torch.Tensor):
        super().__init__(dataset)
        object.__setattr__(self, '_images', images)
        object.__setattr__(self, '_labels', labels)

    def __getitems__(self, draws: List[Draw]) -> Any:
        transform = batched_transform(self._dataset)
        if transform is None:  # a hook has given the data another pipeline
            return super().__getitems__(draws)
        indices = np.array([draw.index for draw in draws])
        images = transform.batch(self._images[indices], np.array([draw.seed for draw in draws]))
        return dict(inputs=torch.from_numpy(images), data_samples=SampleBatch(self._labels[indices]))

    def __reduce__(self):
        return BatchedImages, (self._dataset, self._images, self._labels)


def as_batched_images(dataset: Any) -> Optional[BatchedImages]:
    """The data set as :class:`BatchedImages` if its images lie in memory, of one size, with a label each; else None."""
    if not isinstance(dataset, BaseDataset) or batched_transform(dataset) is None or not len(dataset):
        return None
    rows = [dataset.get_data_info(index) for index in range(len(dataset))]
    images, labels = [row.get('img') for row in rows], [row.get('gt_label') for row in rows]
    shape = getattr(images[0], 'shape', ())
    if len(shape) != 3 or any(getattr(image, 'shape', None) != shape for image in images):
        return None
    if not all(isinstance(label, (int, np.integer)) for label in labels):
        return None
    return BatchedImages(dataset, np.stack([image.transpose(2, 0, 1) for image in images]), torch.tensor(labels))


class CollateUnlessBatched:
    """A collate function that leaves alone what is a batch already."""

    def __init__(self, collate: Callable):
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        return samples if isinstance(samples, dict) else self.collate(samples)
