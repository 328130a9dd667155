"""The batches of a loader, from any one on, each sample with its own seed."""

from typing import Iterator, List, Optional

from mmengine.dist import get_dist_info
from torch.utils.data import DataLoader, IterableDataset

from ..datasets.seeding import Draw, SeededDataset
from ..utils.random_state import seeded
from .batched_images import CollateUnlessBatched, as_batched_images


class ResumableBatches:
    """A batch sampler around another one, which can begin at any batch and gives every sample its seed.

    Batches before the first are counted through, not loaded. A sample is seeded by (seed, epoch, place): the place is
    that in the order of all processes, rank + number of processes x place in the order of this one. It is not the
    index, because an index may come twice in an epoch (repeated augmentation, an infinite sampler, the samples that
    fill up the last batch) and must not look the same each time.

    A sampler that draws from the global generators, while workers load ahead or while the model trains, gets its own
    seed as well.

    Args:
        batches: The batch sampler of a loader.
        seed: For samplers that have none.

    Attributes:
        epoch: Which order of the data comes next; part of the seeds.
        first: The batch to begin with. It counts for one iteration over the batches.
    """

    def __init__(self, batches, seed: Optional[int] = None):
        self.batches = batches
        self.epoch = 0
        self.first = 0
        self._seed = seed or 0

    @property
    def sampler(self):
        return getattr(self.batches, 'sampler', None)

    @property
    def seed(self) -> int:
        seed = getattr(self.sampler, 'seed', None)
        return self._seed if seed is None else seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = seed
        if hasattr(self.sampler, 'seed'):
            self.sampler.seed = seed

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the data, as mmengine's hook does at the start of an epoch."""
        self.epoch = epoch
        if hasattr(self.sampler, 'set_epoch'):
            self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[List[Draw]]:
        seed, epoch, first = self.seed, self.epoch, self.first
        self.first = 0
        rank, processes = get_dist_info()
        batches, number, place = iter(self.batches), 0, rank
        while True:
            try:
                with seeded(seed, epoch, number, -1):  # four numbers: no sample has this seed
                    indices = next(batches)
            except StopIteration:
                return
            if number >= first:
                yield [Draw(index, (seed, epoch, place + processes * nth)) for nth, index in enumerate(indices)]
            number += 1
            place += processes * len(indices)

    def __len__(self) -> int:
        return len(self.batches)

    def __getattr__(self, name):
        if name == 'batches':  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.batches, name)


def make_resumable(loader: DataLoader, seed: Optional[int] = None, batched: bool = False) -> Optional[ResumableBatches]:
    """Give a loader's samples their seeds and let it begin at any batch, in place.

    Args:
        loader: The loader.
        seed: For samplers that have none.
        batched: Whether batches of small images may come without an object per image.

    Returns:
        Its new batch sampler; None for a loader whose data has no indices or that does not batch, which stays as it is.
    """
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return None
    batches = ResumableBatches(loader.batch_sampler, seed)
    images = as_batched_images(loader.dataset) if batched else None
    if images is not None:
        loader.collate_fn = CollateUnlessBatched(loader.collate_fn)
    # torch forbids to replace them, because an iterator that runs would not notice. None runs yet.
    object.__setattr__(loader, 'dataset', images or SeededDataset(loader.dataset))
    object.__setattr__(loader, 'batch_sampler', batches)
    return batches
