"""Paired timing: the candidates run in turn, in a new random order each round, so that all meet the same machine."""

import random
import time
from typing import Callable, Dict, List, Tuple

import numpy as np


def interleaved(candidates: Dict[str, Callable[[], None]], rounds: int, seed: int = 0) -> Dict[str, List[float]]:
    """Seconds of each candidate in each round, after one round that does not count."""
    order, seconds = list(candidates), {name: [] for name in candidates}
    draw = random.Random(seed)
    for index in range(rounds + 1):
        draw.shuffle(order)
        for name in order:
            start = time.perf_counter()
            candidates[name]()
            if index:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: List[float], base: List[float], draws: int = 2000, seed: int = 0) -> Tuple[float, float, float]:
    """Median of the paired ratios and its 95 % interval by bootstrap over rounds."""
    ratios = np.array(seconds) / np.array(base)
    picks = np.random.RandomState(seed).randint(0, len(ratios), (draws, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)
