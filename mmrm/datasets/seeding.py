"""A seed for every sample: what its transforms draw depends on where it stands in the epoch, on nothing else."""

import contextlib
from typing import Any, List, NamedTuple, Optional, Tuple

import numpy as np
from torch.utils.data import Dataset, get_worker_info

from ..utils.random_state import kept_generators, seed_generators
from .images import name_broken


class Draw(NamedTuple):
    """A sample to load: its index, and what to seed the generators with.

    The seed travels with the index, because a worker that persists holds an old copy of the data set.
    """

    index: Any
    seed: Tuple[int, ...]


_current: Optional[Tuple[int, ...]] = None


def current_seed() -> Optional[Tuple[int, ...]]:
    """The seed of the sample that is being loaded; None outside of a :class:`SeededDataset`."""
    return _current


def sample_uniforms(seeds: np.ndarray, count: int) -> np.ndarray:
    """Numbers in [0, 1) that depend on nothing but a sample's seed, for many samples at once.

    Each number of a seed, then the place in the row, goes through the finaliser of SplitMix64.

    Args:
        seeds (ndarray): Whole numbers, shape ``(N, K)``.
        count (int): How many for each.

    Returns:
        ndarray: float64, shape ``(N, count)``.
    """
    seeds = np.asarray(seeds).astype(np.int64).view(np.uint64)
    state = np.zeros((len(seeds), 1), np.uint64)
    for column in seeds.T:
        state = _scramble(state + column[:, None])
    return (_scramble(state + np.arange(1, count + 1, dtype=np.uint64)) >> np.uint64(11)) * 2.0**-53


def _scramble(state: np.ndarray) -> np.ndarray:
    state = state * np.uint64(0x9E3779B97F4A7C15)  # so that neighbours lie far apart; wraps around
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class SeededDataset(Dataset):
    """A data set that loads a sample asked for by a :class:`Draw` under its own seed.

    Transforms draw from the global generators of Python, NumPy and torch. These are seeded before each sample and set
    back after the batch, so that a loader without workers leaves those of the training alone. Attributes are read from
    the data set and written to it: hooks look up its classes, and give it another pipeline.
    """

    def __init__(self, dataset):
        object.__setattr__(self, '_dataset', dataset)

    def __getitem__(self, draw):
        return self.__getitems__([draw])[0] if isinstance(draw, Draw) else self._dataset[draw]

    def __getitems__(self, draws: List[Draw]) -> list:
        """The samples of a batch, as torch's loader asks for them."""
        # Setting the generators back takes longer than seeding them: once in a batch, and never in a worker, where
        # only transforms draw.
        with kept_generators() if get_worker_info() is None else contextlib.nullcontext():
            return [self._load(draw) for draw in draws]

    def _load(self, draw: Draw):
        global _current
        seed_generators(*draw.seed)
        _current = draw.seed
        try:
            return self._dataset[draw.index]
        except Exception as error:
            broken = name_broken(self._dataset, draw.index, error)
            if broken is None:
                raise
            raise broken from None
        finally:
            _current = None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, '_dataset'), name)

    def __setattr__(self, name, value):
        setattr(self._dataset, name, value)

    def __reduce__(self):
        return SeededDataset, (self._dataset,)
