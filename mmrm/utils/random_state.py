"""The global generators of Python, NumPy and torch: their state, and a seed for a while."""

import contextlib
import hashlib
import random
from typing import Iterator, Optional

import numpy as np
import torch


def get_random_state() -> dict:
    """The state of Python's, NumPy's, torch's and the accelerator's generators, in types that load safely."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = dict(
        python=random.getstate(),
        numpy=(name, np.asarray(keys).astype(np.int64).tolist(), position, has_gauss, cached),
        torch=torch.get_rng_state(),
    )
    kind = accelerator()
    if kind is not None:
        state[kind] = getattr(torch, kind).get_rng_state()
    return state


def set_random_state(state: dict) -> None:
    """Set what :func:`get_random_state` returned."""
    version, internal, gauss = state['python']
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state['numpy']
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state['torch'].cpu())
    kind = accelerator()
    if kind and kind in state:
        getattr(torch, kind).set_rng_state(state[kind].cpu())


def accelerator() -> Optional[str]:
    """The kind of this machine's accelerator, 'cuda', 'mps', 'xpu' ..., or None."""
    if hasattr(torch, 'accelerator'):  # torch 2.6
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return device.type if device else None
    return 'cuda' if torch.cuda.is_available() else 'mps' if torch.backends.mps.is_available() else None


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Whatever is drawn or seeded inside, the three generators of the CPU are afterwards as they were before."""
    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])


def seed_generators(*key: int) -> None:
    """Seed the three generators of the CPU by any whole numbers, e.g. seed, epoch and place.

    Each gets its own seed, cut out of one hash: NumPy's and Python's are both Mersenne Twisters and would else draw
    the same numbers. CUDA's generators are left alone, no transform of a sample uses them.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=28).digest()
    random.seed(int.from_bytes(digest[:16], 'little'))
    torch.default_generator.manual_seed(int.from_bytes(digest[16:24], 'little'))
    np.random.seed(int.from_bytes(digest[24:], 'little'))  # 32 bits: five times as fast as more


@contextlib.contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Inside, the generators depend on ``key`` alone; afterwards they are as they were before."""
    with kept_generators():
        seed_generators(*key)
        yield
