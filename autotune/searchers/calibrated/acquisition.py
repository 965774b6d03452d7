"""What a point is worth trying: the ensemble's word on R, put right by its residuals, against the best so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autotune.objective import Objective
from autotune.performance.arrays import Array
from autotune.performance.expected_scores import Expectation, ExpectedScores
from autotune.searchers.calibrated.encodings import EncodedSpace
from autotune.searchers.calibrated.residuals import LENGTHS, Kernel, Residuals

LEAST_RATIO = 0.1
"""A ratio to the start below this is as bad: the logarithm of less would only tell how bad."""
CAUTION = 2.0
"""Power of the probability of success: 1 weighs a failure like any other trial without gain, but it tells less."""
FAILURE_WEIGHT = 2.0
"""How many like trials the model's own failure probability counts for."""
FAILURE_LENGTH = 0.3
"""How near a trial must be for its failure to count: a level or two of an ordered dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What was tried, as encodings of shape (trials, dimensions)."""

    scored: Array
    scores: Array
    """R of those, shape (trials,)."""
    ratios: Array
    """Their throughput and convergence over the start's, shape (2, trials)."""
    failed: Array
    open: Array
    """Asked and not told."""


class Judge:
    """Judges encodings; the ensemble's members believe what was observed, each put right by its own residuals.

    Throughput and convergence of a member are log-normal: its word times a Gaussian process of the residuals (Kennedy
    and O'Hagan 2001, section 4.2: a calibrated model and its discrepancy). Points that are open count as if they came
    to what all members think on average ("kriging believer", Ginsbourger et al. 2010).

    Args:
        space: what is searched.
        expectation: of an ensemble.
        objective: the weights of R.
        history: what was tried.
    """

    def __init__(self, space: EncodedSpace, expectation: Expectation, objective: Objective, history: History) -> None:
        self._space = space
        self._expectation = expectation
        self._weights = np.array([objective.alpha, objective.beta])
        self._near = Kernel(space.distances, FAILURE_LENGTH)
        self._residuals: list[Residuals] = []
        self._tried = space.indicators(np.concatenate([history.scored, history.failed]))
        self._has_failed = np.repeat([0.0, 1.0], [len(history.scored), len(history.failed)])
        self.best = 0.0
        kernels = [Kernel(space.distances, length) for length in LENGTHS]
        observed = np.log(np.maximum(history.ratios, LEAST_RATIO))
        if len(history.scored):
            self._condition(kernels, history.scored, observed)
            self.best = float(history.scores.max())
        if len(history.open):
            believed = self._ratios(history.open)[0].mean(axis=1)
            both = np.concatenate([history.scored, history.open])
            self._condition(kernels, both, np.concatenate([observed, believed], axis=1))
            self.best = max(self.best, float((self._weights @ np.exp(believed)).max()))

    def robust(self, encodings: Array) -> Array:
        """Return each member's R times its probability of success and, as the last row, their mean.

        Shape (members + 1, points).
        """
        logarithms, _, success = self._ratios(encodings)
        found = self._score(np.exp(logarithms)) * success
        return np.concatenate([found, found.mean(axis=0)[None]])

    def improvement(self, encodings: Array) -> Array:
        """Return each member's R times its probability of success and, as the last row, the expected improvement.

        Shape (members + 1, points).
        """
        logarithms, deviations, success = self._ratios(encodings)
        mean, deviation = self._joined(logarithms, deviations)
        gain = expected_improvement(mean, deviation, self.best) * success**CAUTION
        return np.concatenate([self._score(np.exp(logarithms)) * success, gain.mean(axis=0)[None]])

    def _condition(self, kernels: list[Kernel], encodings: Array, observed: Array) -> None:
        expected = _logarithms(self._expectation.of(self._space.configurations(encodings)))
        indicators = self._space.indicators(encodings)
        self._residuals = [
            Residuals(kernels, indicators, seen - word) for seen, word in zip(observed, expected, strict=True)
        ]

    def _ratios(self, encodings: Array) -> tuple[Array, Array, Array]:
        """Return log ratios, shape (2, members, points); their standard deviations, (2, points); success of members."""
        expected = self._expectation.of(self._space.configurations(encodings))
        indicators = self._space.indicators(encodings)
        logarithms = _logarithms(expected)
        deviations = np.full((2, len(encodings)), 1e-4)
        for part, residuals in enumerate(self._residuals):
            mean, deviations[part] = residuals.at(indicators)
            logarithms[part] += mean
        return logarithms, deviations, 1.0 - self._failure(expected.failure_probability, indicators)

    def _score(self, ratios: Array) -> Array:
        return np.asarray(np.tensordot(self._weights, ratios, axes=1))

    def _joined(self, logarithms: Array, deviations: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of log R: the sum of log-normals taken for one (Fenton 1960)."""
        variances = deviations[:, None, :] ** 2
        means = np.exp(logarithms + variances / 2.0)
        mean = self._score(means)
        spread = np.tensordot(self._weights**2, means**2 * np.expm1(variances), axes=1)
        variance = np.log1p(spread / mean**2)
        return np.log(mean) - variance / 2.0, np.sqrt(variance)

    def _failure(self, expected: Array, indicators: Array) -> Array:
        """Return the failure probability, the model's mixed with what became of like points.

        A kernel estimate whose prior counts `FAILURE_WEIGHT` trials (Goetschalckx et al. 2011, continuous correlated
        beta processes).
        """
        alike = self._near.between(indicators, self._tried)
        return np.asarray((FAILURE_WEIGHT * expected + alike @ self._has_failed) / (FAILURE_WEIGHT + alike.sum(axis=1)))


def expected_improvement(logarithm: Array, deviation: Array, best: float) -> Array:
    """Return E[max(R - best, 0)] where log R is normal.

    exp(m + s^2/2) Phi(d + s) - best Phi(d), d = (m - log best)/s, as Black and Scholes 1973 price a call.
    """
    mean = np.exp(logarithm + deviation**2 / 2.0)
    if best <= 0:
        return np.asarray(mean)
    over = (logarithm - np.log(best)) / deviation
    return np.asarray(np.maximum(mean * ndtr(over + deviation) - best * ndtr(over), 0.0))


def _logarithms(expected: ExpectedScores) -> Array:
    """Return log ratios, shape (2, members, points)."""
    ratios = np.stack([expected.throughput_ratio, expected.convergence_ratio])
    return np.asarray(np.log(np.maximum(ratios, LEAST_RATIO)))
