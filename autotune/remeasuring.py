"""A configuration run again: what one run gave, its ratios to the run of another beside it, and their intervals.

Ratios of positive figures are averaged as logarithms, with a t interval (P. J. Fleming and J. J. Wallace, "How not to
lie with statistics", CACM 29, 1986: the geometric mean is the one mean of ratios).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import stdtrit

from autotune.objective import Objective
from autotune.trials import Outcome

LEAST_REPEATS = 3
"""With two pairs a t interval spans orders of magnitude."""
LEVEL = 0.95
"""Of every interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remeasured:
    """One run of a configuration: its figures, or why there are none."""

    samples_per_second: float | None = None
    convergence_per_second: float | None = None
    failure: str | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> Remeasured:
        """Return the figures of an outcome."""
        measurement, failure = outcome.measurement, outcome.failure
        if measurement is None:
            return cls(failure=f"{failure.kind}: {failure.reason}" if failure else "unknown")
        return cls(
            samples_per_second=measurement.samples_per_second,
            convergence_per_second=measurement.convergence_per_second,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean of ratios with its interval."""

    value: float | None
    """Geometric where all are positive, else arithmetic. None without a ratio."""
    low: float | None
    """Bounds of the interval; None with fewer than two ratios."""
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """The figures of one configuration over those of a reference run beside it, a ratio for each pair of runs."""

    throughput: tuple[float, ...]
    convergence: tuple[float, ...]
    """Empty where the reference did not learn."""
    score: tuple[float, ...]
    """R over the reference's own: 1 is as good as the reference."""


def gains(pairs: Sequence[tuple[Remeasured, Remeasured]], objective: Objective) -> Gains:
    """Return the ratios of pairs of runs (reference, other), all of which gave figures."""
    throughput = [_of(other.samples_per_second) / _of(reference.samples_per_second) for reference, other in pairs]
    convergence = _convergence_ratios(pairs)
    whole = objective.alpha + (objective.beta if convergence else 0.0)
    scores = [
        (objective.alpha * speed + objective.beta * learning) / whole if whole else 0.0
        for speed, learning in zip(throughput, convergence or [0.0] * len(pairs), strict=True)
    ]
    return Gains(throughput=tuple(throughput), convergence=tuple(convergence), score=tuple(scores))


def mean_with_interval(ratios: Sequence[float]) -> Mean:
    """Return the mean of ratios and the bounds of its t interval: of their logarithms where all are positive."""
    if not ratios:
        return Mean(value=None, low=None, high=None)
    in_logarithms = all(ratio > 0 for ratio in ratios)
    figures = np.log(ratios) if in_logarithms else np.asarray(ratios, dtype=float)
    bounds = [float(figures.mean())]
    if len(figures) > 1:
        arm = _quantile(len(figures) - 1) * float(figures.std(ddof=1)) / math.sqrt(len(figures))
        bounds += [bounds[0] - arm, bounds[0] + arm]
    if in_logarithms:
        bounds = [math.exp(bound) for bound in bounds]
    if len(bounds) == 1:
        return Mean(value=bounds[0], low=None, high=None)
    return Mean(value=bounds[0], low=bounds[1], high=bounds[2])


@cache
def _quantile(freedom: int) -> float:
    """Return the quantile of Student's t (`scipy.stats` has it too, and takes half a second to load)."""
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def _convergence_ratios(pairs: Sequence[tuple[Remeasured, Remeasured]]) -> list[float]:
    """Return a ratio for each pair; none where the reference did not learn.

    Where a figure is not positive, a ratio by pair has no meaning: then each other is put over the mean reference by
    its difference, 1 + (other - reference) / mean reference, whose mean is the ratio of the means.
    """
    others = [_of(other.convergence_per_second) for _, other in pairs]
    references = [_of(reference.convergence_per_second) for reference, _ in pairs]
    if all(figure > 0 for figure in (*others, *references)):
        return [one / other for one, other in zip(others, references, strict=True)]
    mean = math.fsum(references) / len(references)
    return [1 + (one - other) / mean for one, other in zip(others, references, strict=True)] if mean > 0 else []


def _of(figure: float | None) -> float:
    if figure is None:
        raise ValueError("a run that gave figures has all of them")
    return figure
