"""The statistics of a comparison: aggregates over runs with their intervals, and paired tests.

R. Agarwal, M. Schwarzer, P. S. Castro, A. Courville, M. G. Bellemare, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", NeurIPS 2021: the interquartile mean and the probability of improvement (section 4.3), intervals
by stratified bootstrap (section 4.1; a stratum is one searcher's runs on one workload).
T. C. Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69, 2015, section 4.1.3:
the expanded percentile interval, for a plain one is too narrow with few runs.
R. G. Newcombe, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic. Part 2",
Statistics in Medicine 25, 2006, method 5: the interval of the probability of improvement. A bootstrap of "all runs won"
knows of no other end, and would call three wins of three certain.
R. A. Fisher, "The Design of Experiments", 1935, section 21: the randomisation test, where under the null hypothesis the
sign of each pair's difference is a toss.
P. H. Westfall, S. S. Young, "Resampling-Based Multiple Testing", 1993, algorithm 4.1: the step-down maxT correction,
which makes use of how much the figures at several marks of the same runs depend on each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t, trim_mean

LEVEL = 0.95
"""Of every interval; 1 - LEVEL is the error rate of the tests of one comparison, all of them together."""
LEAST_RUNS = 6
"""Of one workload that an interval takes; with several workloads one more for each further one."""
_RESAMPLES = 2000
"""Of a bootstrap. rliable's default is 50000 (`get_interval_estimates`); here each point of a curve has an interval."""
_SIGNS_IN_FULL = 14
"""Pairs up to which the randomisation test goes through all signs (16384); above, that many are drawn."""
_ROUNDING = 1e-12
"""By which sums of the same figures in another order may differ."""
_GRID = np.linspace(0.0, 1.0, 2001)
"""Probabilities among which the ends of an interval are looked for."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its interval; None bounds where there are too few runs for one."""

    value: float
    low: float | None = None
    high: float | None = None


def interquartile_mean(figures: Floats, axis: int = 0) -> Floats:
    """Return the mean of the middle half along an axis; with fewer than four figures the plain mean."""
    return np.asarray(trim_mean(figures, 0.25, axis=axis), dtype=float)


def interquartile_means(
    figures: Floats, generator: np.random.Generator, *, strata: Sequence[str] | None = None
) -> list[Estimate]:
    """Return the interquartile mean over runs with its bootstrap interval, for each column.

    Of fewer than six runs no percentile interval can hold the truth in 95 of 100 cases: even between the lowest and
    the highest of five the median lies in 94 only. There is none then.

    Args:
        figures: shape (runs, columns).
        generator: draws the resamples; runs are drawn whole, so that columns keep together.
        strata: the workload of each run, shape (runs,); runs are drawn within their own. None: all have one.
    """
    values = interquartile_mean(figures)
    groups = _groups(strata if strata is not None else [""] * len(figures))
    freedom = len(figures) - len(groups)
    if freedom < LEAST_RUNS - 1:
        return [Estimate(value=float(value)) for value in values]
    drawn = np.concatenate(
        [group[generator.integers(len(group), size=(_RESAMPLES, len(group)))] for group in groups], 1
    )
    tail = float(norm.cdf(-math.sqrt(len(figures) / freedom) * t.ppf((1 + LEVEL) / 2, freedom)))
    resampled = (interquartile_mean(figures[:, column][drawn], axis=1) for column in range(figures.shape[1]))
    return [_estimate(float(value), means, tail) for value, means in zip(values, resampled, strict=True)]


def probability_of_improvement(pairs: Sequence[tuple[Floats, Floats]]) -> Estimate:
    """Return the chance that a run of the first beats a run of the second on the same workload (ties count half).

    Args:
        pairs: for each workload the figures of both, shapes (runs,) and (other runs,); workloads weigh the same.
    """
    shares = [np.mean((one[:, None] > other) + 0.5 * (one[:, None] == other)) for one, other in pairs]
    value = float(np.mean(shares))
    firsts, seconds = (float(np.mean([len(both[side]) for both in pairs])) for side in (0, 1))
    if min(firsts, seconds) * len(pairs) < 2:
        return Estimate(value=value)
    more = (firsts + seconds) / 2 - 1
    spread = 1 + more * ((1 - _GRID) / (2 - _GRID) + _GRID / (1 + _GRID))
    variance = _GRID * (1 - _GRID) * spread / (firsts * seconds * len(pairs))
    inside = _GRID[np.abs(_GRID - value) <= norm.ppf((1 + LEVEL) / 2) * np.sqrt(variance)]
    return Estimate(value=value, low=min(value, *inside), high=max(value, *inside))


def paired_p_values(differences: Floats, generator: np.random.Generator) -> list[float]:
    """Return the two-sided p-value of the randomisation test that the mean difference is 0, for each column.

    They are corrected for being several: were all columns without a difference, one of them would come out at p or
    below in a share p of cases at most, however much they depend on each other.

    Args:
        differences: shape (pairs, columns); the columns are the same pairs at several marks.
        generator: draws the signs where there are too many pairs to go through all.
    """
    count, columns = differences.shape
    if count == 0:
        return [1.0] * columns
    if count <= _SIGNS_IN_FULL:
        signs = np.asarray(list(itertools.product((1.0, -1.0), repeat=count)))
    else:
        signs = generator.choice((-1.0, 1.0), size=(2**_SIGNS_IN_FULL, count))
        signs[0] = 1.0
    # Row 0 is what was seen, the others are what might have been. Over the root of the sum of squares, which no sign
    # changes, columns of different scales compare.
    scales = np.sqrt(np.sum(differences**2, axis=0))
    sizes = np.abs(signs @ differences) / np.where(scales > 0, scales, 1.0)
    order = np.argsort(-sizes[0], kind="stable")
    of_this_and_later = np.maximum.accumulate(sizes[:, order[::-1]], axis=1)[:, ::-1]
    stepped = np.mean(of_this_and_later >= sizes[0, order] - _ROUNDING, axis=0)
    corrected = np.empty(columns)
    corrected[order] = np.maximum.accumulate(stepped)
    return [float(p_value) for p_value in corrected]


def pairs_needed(tests: int) -> int:
    """Return how many pairs the randomisation test needs at least to find anything, corrected for so many tests."""
    return next(pairs for pairs in itertools.count(1) if tests * 2.0 ** (1 - pairs) <= 1 - LEVEL + 1e-12)


def _groups(strata: Sequence[str]) -> list[NDArray[np.intp]]:
    """Return the positions of each stratum's runs."""
    labels = np.asarray(strata, dtype=object)
    return [np.flatnonzero(labels == label) for label in dict.fromkeys(strata)]


def _estimate(value: float, resampled: Floats, tail: float) -> Estimate:
    """The percentile interval, widened to hold the estimate itself where a skewed resample leaves it out."""
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value))
