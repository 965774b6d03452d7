"""Step times of a trial: how they are summed up, which of them count, and how precisely their median is known."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

STAGE_3_WARMUP_STEPS = 4
"""ZeRO-3 records the order of parameters in its first steps and prefetches only then; four were slower."""
LEAST_TIMED_STEPS = 3
"""A budget of seconds or samples shorter than three steps still times three, or there would be no spread."""
LEVEL = 0.95
"""Of the interval of the median."""
_EXACT_UP_TO = 1000
"""Steps from which on the binomial distribution is taken for a normal one (2 ** -n leaves the floats at 1,074)."""


def median(sorted_s: Sequence[float]) -> float:
    """Return the median of at least one time, ascending; `statistics.median` sorts anew, at every step of a trial."""
    middle = len(sorted_s) // 2
    return sorted_s[middle] if len(sorted_s) % 2 else (sorted_s[middle - 1] + sorted_s[middle]) / 2


def relative_spread(times_s: Sequence[float]) -> float:
    """Return half the interquartile range over the median; 0 for fewer than two."""
    if len(times_s) < 2:
        return 0.0
    first, median, third = statistics.quantiles(times_s, n=4, method="inclusive")
    return (third - first) / 2 / median


def relative_interval(sorted_s: Sequence[float]) -> float | None:
    """Return the half width of the 95 % interval of the median, over the median; None for fewer than six times.

    Whatever the times' distribution is, their k-th smallest and k-th largest enclose its median with the probability
    that a fair coin shows at least k heads and at least k tails (W. J. Conover, Practical Nonparametric Statistics,
    3rd ed. 1999, section 3.2; G. J. Hahn and W. Q. Meeker, Statistical Intervals, 1991, section 5.2). That takes the
    steps for independent; a machine that drifts is known less well than this says.

    Args:
        sorted_s: step times, ascending.
    """
    rank = _interval_rank(len(sorted_s))
    if rank == 0:
        return None
    return (sorted_s[-rank] - sorted_s[rank - 1]) / 2 / median(sorted_s)


@functools.cache
def _interval_rank(count: int) -> int:
    """Return the largest k for which the k-th smallest and k-th largest of so many enclose the median; 0: none does."""
    tail = (1 - LEVEL) / 2
    if count > _EXACT_UP_TO:
        return math.floor((count - statistics.NormalDist().inv_cdf(1 - tail) * math.sqrt(count)) / 2)
    rank, probability, below = 0, 0.5**count, 0.0
    while below + probability <= tail:
        below += probability
        probability *= (count - rank) / (rank + 1)
        rank += 1
    return rank
