"""The objective: `R = alpha * throughput / throughput_0 + beta * convergence / convergence_0`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.errors import CampaignError
from autotune.trials import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What index 0 stands for: the user's own configuration, measured first in the same study."""

    samples_per_second: float
    convergence_per_second: float | None
    """None where the reference did not learn (its held-out loss did not fall): the ratio has no meaning then."""

    @classmethod
    def of(cls, measurement: Measurement) -> Reference:
        convergence = measurement.convergence_per_second
        return cls(
            samples_per_second=measurement.samples_per_second,
            convergence_per_second=convergence if math.isfinite(convergence) and convergence > 0 else None,
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
            value=self.alpha * throughput_ratio + self.beta * (convergence_ratio or 0.0),
            throughput_ratio=throughput_ratio,
            convergence_ratio=convergence_ratio,
        )
