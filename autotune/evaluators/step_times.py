"""Step times of a trial: how they are summed up, and which of them count."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

STAGE_3_WARMUP_STEPS = 4
"""ZeRO-3 records the order of parameters in its first steps and prefetches only then; four were slower."""
LEAST_TIMED_STEPS = 3
"""A budget of seconds or samples shorter than three steps still times three, or there would be no spread."""


def relative_spread(times_s: Sequence[float]) -> float:
    """Return half the interquartile range over the median; 0 for fewer than two."""
    if len(times_s) < 2:
        return 0.0
    first, median, third = statistics.quantiles(times_s, n=4, method="inclusive")
    return (third - first) / 2 / median
