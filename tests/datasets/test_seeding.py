"""A sample's random numbers depend on where it stands in the epoch, and on nothing else."""

import copy
import pickle
import random
from collections import Counter

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmpretrain.datasets.samplers import RepeatAugSampler
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, Subset

from mmrm.datasets.seeding import Draw, SeededDataset
from mmrm.engine.samplers import make_resumable
from mmrm.utils.random_state import seeded


class Dice(Dataset):
    """Each sample is its index and what the three generators give."""

    metainfo = dict(classes=('a',))

    def __init__(self, number=10):
        self.number = number
        self.faces = 2**20

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return torch.tensor(
            [index, random.randrange(self.faces), np.random.randint(self.faces), torch.randint(self.faces, ()).item()]
        )


def loader(sampler=DefaultSampler, workers=0, batch=4, dataset=None, **kwargs):
    dataset = dataset or Dice()
    sampler = sampler(dataset, **kwargs)
    built = DataLoader(dataset, batch, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    make_resumable(built, seed=5)
    return built


def epoch(built, number=0, first=0):
    built.sampler.set_epoch(number)
    built.batch_sampler.epoch, built.batch_sampler.first = number, first
    return [batch.tolist() for batch in built]


def generators():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_samples_do_not_depend_on_the_number_of_workers_which_persist():
    alone, persistent = loader(seed=3), loader(seed=3, workers=2)
    for number in (0, 1, 0):
        assert epoch(alone, number) == epoch(persistent, number)


def test_epochs_seeds_and_samples_differ():
    rows = [
        tuple(row[1:])
        for seed in (3, 4)
        for number in (0, 1)
        for batch in epoch(loader(seed=seed), number)
        for row in batch
    ]
    assert len(rows) == len(set(rows)) == 40
    assert len({face for row in rows for face in row}) > 110  # no generator repeats another


def test_loader_starts_at_any_batch_once():
    built = loader(seed=3)
    whole = epoch(built, 2)
    for first in range(4):
        assert epoch(built, 2, first) == whole[first:]
    assert [batch.tolist() for batch in built] == whole
    assert len(built) == 3


def test_another_number_of_processes_shares_out_the_same_samples(monkeypatch):
    def rows(rank, processes):
        for module in ('mmengine.dataset.sampler', 'mmrm.engine.samplers'):
            monkeypatch.setattr(f'{module}.get_dist_info', lambda: (rank, processes))
        return [tuple(row) for batch in epoch(loader(seed=3)) for row in batch]

    assert sorted(rows(0, 2) + rows(1, 2)) == sorted(rows(0, 1))


@pytest.mark.parametrize('sampler', [InfiniteSampler, RepeatAugSampler])
def test_a_repeated_index_gets_another_seed(sampler, monkeypatch):
    """Repeated augmentation gives the copies of a picture to different processes."""
    rows = []
    for rank in (0, 1):
        monkeypatch.setattr(f'{sampler.__module__}.get_dist_info', lambda rank=rank: (rank, 2))
        monkeypatch.setattr('mmrm.engine.samplers.get_dist_info', lambda rank=rank: (rank, 2))
        for number, batch in enumerate(loader(sampler, seed=3)):
            rows += [tuple(row) for row in batch.tolist()]
            if number == 4:
                break
    assert max(Counter(row[0] for row in rows).values()) > 1
    assert len({row[1:] for row in rows}) == len(rows)


@pytest.mark.parametrize('workers', [0, 2])
def test_the_generators_of_the_training_are_left_alone(workers):
    built = loader(seed=3, workers=workers)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = generators()
    iterator = iter(built)  # torch draws a seed for the workers here
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    for _ in iterator:
        pass
    assert generators() == expected


def test_batches_by_aspect_ratio_as_mmdet_makes_them():
    pytest.importorskip('mmdet')
    from mmdet.datasets.samplers import AspectRatioBatchSampler

    dataset = Dice(11)
    dataset.get_data_info = lambda index: dict(width=2 - index % 2, height=1.5)
    sampler = DefaultSampler(dataset, seed=3)
    built = DataLoader(dataset, batch_sampler=AspectRatioBatchSampler(sampler, 3))
    batches = make_resumable(built)
    sampler.set_epoch(2)
    batches.epoch = 2
    whole = [batch.tolist() for batch in built]
    batches.first = 2
    assert [batch.tolist() for batch in built] == whole[2:] and len(whole) == len(built) == 4
    assert batches.sampler is sampler and batches.seed == 3 and batches.batch_size == 3
    assert len({tuple(row[1:]) for batch in whole for row in batch}) == 11


def test_seeded_data_set_forwards_attributes():
    inner = Dice()
    seen = SeededDataset(inner)
    assert len(seen) == 10 and seen.metainfo is inner.metainfo
    seen.faces = 2
    assert inner.faces == 2 and seen[3][0] == 3
    with pytest.raises(AttributeError):
        seen.nothing  # noqa: B018
    for other in (copy.deepcopy(seen), pickle.loads(pickle.dumps(seen))):
        assert type(other) is SeededDataset and other.faces == 2
        assert torch.equal(other[Draw(3, (1, 2))], seen[Draw(3, (1, 2))])


def test_getitems_is_seeded_per_sample():
    part = Subset(Dice(), range(2, 10))
    assert hasattr(part, '__getitems__')
    rows = [row for batch in epoch(loader(SequentialOf, dataset=part)) for row in batch]
    alone = [row for batch in epoch(loader(SequentialOf, dataset=Dice(8))) for row in batch]
    assert [row[0] for row in rows] == list(range(2, 10))
    assert [row[1:] for row in rows] == [row[1:] for row in alone]


class SequentialOf(SequentialSampler):
    def set_epoch(self, number):
        pass


def test_a_loader_without_indices_or_batches_stays_as_it_is():
    stream = type('Stream', (IterableDataset,), dict(__iter__=lambda self: iter(range(3))))()
    for built in (DataLoader(stream), DataLoader(Dice(), None)):
        dataset = built.dataset
        assert make_resumable(built) is None and built.dataset is dataset


def test_inside_seeded_the_numbers_are_those_of_the_key_and_afterwards_those_from_before():
    expected = generators()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    found = []
    for key in ((1, 2), (1, 2), (1, 3)):
        with seeded(*key):
            found.append(generators())
    assert found[0] == found[1] != found[2]
    assert generators() == expected
