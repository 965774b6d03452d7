"""The objective: `R = alpha * throughput / throughput_0 + beta * convergence / convergence_0`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import CampaignError
from autotune.trials import Intermediate, Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What index 0 stands for: the user's own configuration, measured first in the same study."""

    samples_per_second: float
    convergence_per_second: float | None
    """None where the reference did not learn (its held-out loss did not fall): the ratio has no meaning then."""
    course: tuple[Intermediate, ...] = ()
    """What the reference had measured on the way: trials that still run are compared with it."""

    @classmethod
    def of(cls, measurement: Measurement, *, course: Sequence[Intermediate] = ()) -> Reference:
        convergence = measurement.convergence_per_second
        return cls(
            samples_per_second=measurement.samples_per_second,
            convergence_per_second=convergence if math.isfinite(convergence) and convergence > 0 else None,
            course=tuple(course),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """R and its two components, each relative to the reference."""

    value: float
    throughput_ratio: float
    convergence_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The weights of R; `alpha + beta = 1` makes R = 1 read 'as good as what you have'.

    Raises:
        CampaignError: when a weight is negative or not finite, or both are 0.
    """

    alpha: float = 0.5
    """Weight of throughput."""
    beta: float = 0.5
    """Weight of convergence speed."""

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise CampaignError(f"objective.{name}: got {value}; it must be a finite number, 0 or more")
        if self.alpha + self.beta == 0:
            raise CampaignError("objective: alpha and beta are both 0; give at least one a weight, such as 0.5")

    def value(self, throughput_ratio: float, convergence_ratio: float | None) -> float:
        """Return R of two ratios to the reference; without a convergence ratio that term counts 0."""
        return self.alpha * throughput_ratio + self.beta * (convergence_ratio or 0.0)

    def score(self, measurement: Measurement, reference: Reference) -> Score:
        """Score one measurement.

        Args:
            measurement: of a trial that completed; its losses are finite.
            reference: of the same study. Where it did not learn, the convergence term counts 0 for every trial.
        """
        throughput_ratio = measurement.samples_per_second / reference.samples_per_second
        convergence_ratio = None
        if reference.convergence_per_second is not None:
            convergence_ratio = measurement.convergence_per_second / reference.convergence_per_second
        return Score(
            value=self.value(throughput_ratio, convergence_ratio),
            throughput_ratio=throughput_ratio,
            convergence_ratio=convergence_ratio,
        )

    def score_so_far(self, course: Sequence[Intermediate], reference: Reference) -> Score | None:
        """Score what a running trial has measured on the way, as if it went on like that.

        Convergence is the drop of the training loss over the reference's at the same training time; each loss stands
        for the middle of the time over which it was averaged.

        Args:
            course: of the trial, at least one moment.
            reference: of the same study, with its own course.

        Returns:
            None where the reference had not learnt by then, so that nothing can be compared yet.
        """
        throughput_ratio = course[-1].samples_per_second / reference.samples_per_second
        convergence_ratio = None
        if reference.convergence_per_second is not None:
            at_s, drop = _drops(course)[-1]
            reference_drop = interpolated(_drops(reference.course), at_s)
            if reference_drop <= 0:
                return None
            convergence_ratio = drop / reference_drop
        return Score(
            value=self.value(throughput_ratio, convergence_ratio),
            throughput_ratio=throughput_ratio,
            convergence_ratio=convergence_ratio,
        )


def interpolated(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the value at `at`, linear between the neighbouring points (x ascending), and flat outside them."""
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if at <= x1:
            return y1 if x1 == x0 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return points[-1][1]


def _drops(course: Sequence[Intermediate]) -> list[tuple[float, float]]:
    """Return (training time, how far the training loss had fallen), nothing at time 0 first."""
    times_s = [0.0, *(moment.training_time_s for moment in course)]
    middles_s = [(begin_s + end_s) / 2 for begin_s, end_s in itertools.pairwise(times_s)]
    falls = [moment.loss_before - moment.training_loss for moment in course]
    return [(0.0, 0.0), *zip(middles_s, falls, strict=True)]
