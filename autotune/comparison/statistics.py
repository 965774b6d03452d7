"""The statistics of a comparison, from numpy: aggregates over seeds with bootstrap intervals, and paired tests.

R. Agarwal, M. Schwarzer, P. S. Castro, A. Courville, M. G. Bellemare, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", NeurIPS 2021: the interquartile mean (section 4.3), intervals by stratified bootstrap
(section 4.1; a stratum is one searcher's runs), the probability of improvement (section 4.3).
S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979.
The paired test is Fisher's randomisation test: under the null hypothesis the sign of each pair's difference is a toss
(R. A. Fisher, "The Design of Experiments", 1935, section 21).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import trim_mean

LEVEL = 0.95
"""Of every interval; 1 - LEVEL is the error rate of the tests."""
_RESAMPLES = 2000
"""Of a bootstrap. rliable's default is 50000 (`get_interval_estimates`); here each point of a curve has an interval."""
_SIGNS_IN_FULL = 14
"""Pairs up to which the randomisation test goes through all signs (16384); above, that many are drawn."""

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


def interquartile_means(figures: Floats, generator: np.random.Generator) -> list[Estimate]:
    """Return the interquartile mean over runs with its bootstrap interval, for each column.

    Args:
        figures: shape (runs, columns).
        generator: draws the resamples; runs are drawn whole, so that columns keep together.
    """
    values = interquartile_mean(figures)
    if len(figures) < 2:
        return [Estimate(value=float(value)) for value in values]
    drawn = generator.integers(len(figures), size=(_RESAMPLES, len(figures)))
    resampled = (interquartile_mean(figures[:, column][drawn], axis=1) for column in range(figures.shape[1]))
    return [_estimate(float(value), means) for value, means in zip(values, resampled, strict=True)]


def probability_of_improvement(one: Floats, other: Floats, generator: np.random.Generator) -> Estimate:
    """Return the chance that a run of `one` beats a run of `other` (ties count half), with its interval.

    Args:
        one: a figure for each run, shape (runs,).
        other: the same of the other contender, shape (other runs,).
        generator: draws the resamples, of each contender's runs by itself.
    """
    wins = np.where(one[:, None] > other[None, :], 1.0, np.where(one[:, None] == other[None, :], 0.5, 0.0))
    if min(len(one), len(other)) < 2:
        return Estimate(value=float(wins.mean()))
    rows = generator.integers(len(one), size=(_RESAMPLES, len(one)))
    columns = generator.integers(len(other), size=(_RESAMPLES, len(other)))
    resampled = wins[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2))
    return _estimate(float(wins.mean()), resampled)


def paired_p_value(differences: Floats, generator: np.random.Generator) -> float:
    """Return the two-sided p-value of Fisher's randomisation test that the mean difference is 0, shape (pairs,)."""
    count = len(differences)
    if count == 0 or not np.any(differences):
        return 1.0
    if count <= _SIGNS_IN_FULL:
        signs = np.asarray(list(itertools.product((-1.0, 1.0), repeat=count)))
    else:
        signs = generator.choice((-1.0, 1.0), size=(2**_SIGNS_IN_FULL, count))
        signs[0] = 1.0
    means = np.abs(signs @ differences)
    return float(np.mean(means >= abs(differences.sum()) * (1 - 1e-12)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for being one of many (Holm 1979), in the order given."""
    corrected = [1.0] * len(p_values)
    so_far = 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda position: p_values[position])):
        so_far = max(so_far, min(1.0, p_values[position] * (len(p_values) - rank)))
        corrected[position] = so_far
    return corrected


def pairs_needed(tests: int) -> int:
    """Return how many pairs the randomisation test needs at least to find anything among so many tests."""
    fits: Callable[[int], bool] = lambda pairs: tests * 2.0 ** (1 - pairs) <= 1 - LEVEL + 1e-12  # noqa: E731
    return next(pairs for pairs in itertools.count(1) if fits(pairs))


def _estimate(value: float, resampled: Floats) -> Estimate:
    """The percentile interval, widened to hold the estimate itself where a skewed resample leaves it out."""
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value))
