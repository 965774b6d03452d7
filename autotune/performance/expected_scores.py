"""What the performance model expects of R: the objective of configurations that were never tried, and their risk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autotune.objective import Objective
from autotune.performance.arrays import Array
from autotune.performance.calibration.fitting import MEMORY_NOISE
from autotune.performance.calibration.parameters import Parameters
from autotune.performance.configurations import Configurations
from autotune.performance.model import Estimate, estimate
from autotune.performance.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedScores:
    """Of configurations; arrays have shape (members, configurations), or (configurations,) without an ensemble."""

    throughput_ratio: Array
    """Samples per second over the reference's."""
    convergence_ratio: Array
    """Fall of the held-out loss at equal training time over the reference's."""
    score: Array
    """R of the two, where the trial succeeds."""
    failure_probability: Array
    """Of running out of memory or diverging."""

    @property
    def value(self) -> Array:
        """R times the probability of success: a failed trial counts 0."""
        return np.asarray(self.score * (1.0 - self.failure_probability))


def expected_scores(
    subject: Subject,
    parameters: Parameters,
    configurations: Configurations,
    *,
    reference: Configurations,
    convergence_at_s: float,
    objective: Objective,
) -> ExpectedScores:
    """Return what the model expects, as `Expectation` does; for one call only."""
    expectation = Expectation(
        subject, parameters, reference=reference, convergence_at_s=convergence_at_s, objective=objective
    )
    return expectation.of(configurations)


class Expectation:
    """What the model expects of R; ratios are to its own word on the reference, so that a common error cancels out.

    Args:
        subject: what is tuned.
        parameters: of a calibration, one vector or an ensemble.
        reference: the user's own configuration: one row, with the subject's fixed fields.
        convergence_at_s: training time after which losses are compared (`TrialRequest.convergence_at_s`).
        objective: the weights of R.
    """

    def __init__(
        self,
        subject: Subject,
        parameters: Parameters,
        *,
        reference: Configurations,
        convergence_at_s: float,
        objective: Objective,
    ) -> None:
        self._subject = subject
        self._parameters = parameters
        self._convergence_at_s = convergence_at_s
        self._objective = objective
        self._reference = _Prediction(subject, parameters, reference, convergence_at_s)

    def of(self, configurations: Configurations) -> ExpectedScores:
        """Return what is expected of configurations, which have the subject's fixed fields."""
        own = _Prediction(self._subject, self._parameters, configurations, self._convergence_at_s)
        throughput_ratio = np.asarray(own.found.samples_per_second / self._reference.found.samples_per_second)
        convergence_ratio = np.asarray(own.loss_drop / self._reference.loss_drop)
        return ExpectedScores(
            throughput_ratio=throughput_ratio,
            convergence_ratio=convergence_ratio,
            score=np.asarray(self._objective.alpha * throughput_ratio + self._objective.beta * convergence_ratio),
            failure_probability=own.failure_probability,
        )


class _Prediction:
    """The model's word on some configurations."""

    def __init__(
        self, subject: Subject, parameters: Parameters, configurations: Configurations, convergence_at_s: float
    ) -> None:
        cluster = parameters.on(subject.cluster)
        self.found: Estimate = estimate(subject.shape, cluster, configurations, parameters.coefficients)
        steps = convergence_at_s / self.found.time.step_time_s
        self.loss_drop = parameters.loss_drop(subject.shape, self.found.convergence, steps)
        memory = self.found.memory
        needed = parameters.needed_bytes(memory, subject.cluster)
        fits = ndtr(-np.log(needed / memory.capacity_bytes) / MEMORY_NOISE) * (memory.host_margin_bytes >= 0)
        self.failure_probability = np.asarray(1.0 - fits * (1.0 - self.found.convergence.divergence_probability))
