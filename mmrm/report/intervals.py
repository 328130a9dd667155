"""Differences of means with their 95 % intervals."""

import math
import statistics
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence


class Difference(NamedTuple):
    """The difference of two means over ``n`` seeds and its interval, None where there are too few."""

    mean: float
    low: Optional[float]
    high: Optional[float]
    n: int


def difference(
    runs: Dict[int, Any], others: Dict[int, Any], measure: Callable[[Any], float] = float, confidence: float = 0.95
) -> Optional[Difference]:
    """How much better ``runs`` are than ``others``, paired by seed; None if they have no seed in common.

    Args:
        runs (dict[int, Any]): Seed -> result.
        others (dict[int, Any]): The same of what they are compared with.
        measure (callable): The number of a result. Defaults to float: the results are numbers.
        confidence (float): Of the interval. Defaults to 0.95.
    """
    pairs = [measure(runs[seed]) - measure(others[seed]) for seed in sorted(set(runs) & set(others))]
    if not pairs:
        return None
    error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    return _with_interval(statistics.fmean(pairs), error, len(pairs) - 1, len(pairs), confidence)


def welch_difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """The difference of the means of independent values with Welch's interval, where both have two values or more."""
    mean, count = statistics.fmean(a) - statistics.fmean(b), min(len(a), len(b))
    if count < 2:
        return Difference(mean, None, None, count)
    parts = [statistics.variance(each) / len(each) for each in (a, b)]
    squares = sum(part**2 / (len(each) - 1) for part, each in zip(parts, (a, b)))
    return _with_interval(mean, math.sqrt(sum(parts)), sum(parts) ** 2 / squares if squares else 1, count)


def _with_interval(
    mean: float, error: Optional[float], freedom: float, count: int, confidence: float = 0.95
) -> Difference:
    """Student's interval around a mean with a standard error, None where there is none."""
    from scipy.stats import t

    if error is None:
        return Difference(mean, None, None, count)
    half = t.ppf((1 + confidence) / 2, freedom) * error
    return Difference(mean, mean - half, mean + half, count)
