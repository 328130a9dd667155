"""The global generators of Python, NumPy and torch: their state, and a seed for a while."""
import contextlib
import hashlib
import random
from typing import Iterator

import numpy as np
import torch


def get_random_state() -> dict:
    """The state of Python's, NumPy's, torch's and the current CUDA device's generators, in types that load safely."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    state = dict(
        python=random.getstate(),
        numpy=(name, keys.astype(np.int64).tolist(), position, has_gauss, cached),
        torch=torch.get_rng_state())
    if torch.cuda.is_available():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict) -> None:
    """Set what :func:`get_random_state` returned."""
    version, internal, gauss = state['python']
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state['numpy']
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state['torch'].cpu())
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())


@contextlib.contextmanager
def seeded(*key: int, restore: bool = True) -> Iterator[None]:
    """Inside, the three generators of the CPU depend on ``key`` alone; afterwards they are as they were before.

    Each gets its own seed, cut out of one hash: NumPy's and Python's are both Mersenne Twisters and would else draw
    the same numbers. CUDA's generators are left alone, no transform of a sample uses them.

    Args:
        key: Any whole numbers, e.g. seed, epoch and place.
        restore: False saves half of the time where nobody needs the state from before.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=40).digest()
    if restore:
        before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(int.from_bytes(digest[:16], 'little'))
    np.random.seed(np.frombuffer(digest[16:32], np.uint32))
    torch.default_generator.manual_seed(int.from_bytes(digest[32:], 'little'))
    try:
        yield
    finally:
        if restore:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.default_generator.set_state(before[2])
