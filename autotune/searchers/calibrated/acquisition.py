"""What a point is worth trying: the ensemble's word on R, put right by the residuals, against the best so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autotune.performance.arrays import Array
from autotune.performance.expected_scores import Expectation
from autotune.searchers.calibrated.encodings import EncodedSpace
from autotune.searchers.calibrated.residuals import LENGTHS, Kernel, Residuals

LEAST_SCORE = 0.1
"""R below is as bad: the logarithm of less would only tell how bad."""
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
    failed: Array
    open: Array
    """Asked and not told."""


POWER = 1
NORM = False


class Judge:
    """Judges encodings; the ensemble's members believe what was observed, each put right by its own residuals.

    R of a member is log-normal: its word times a Gaussian process of the residuals (Kennedy and O'Hagan 2001, section
    4.2: a calibrated model and its discrepancy). Points that are open count as if R were what all members think of it on
    average ("kriging believer", Ginsbourger et al. 2010).
    """

    def __init__(self, space: EncodedSpace, expectation: Expectation, history: History) -> None:
        self._space = space
        self._expectation = expectation
        self._kernels = [Kernel(space.distances, length) for length in LENGTHS]
        self._near = Kernel(space.distances, FAILURE_LENGTH)
        self._residuals: Residuals | None = None
        self._tried = space.indicators(np.concatenate([history.scored, history.failed]))
        self._has_failed = np.repeat([0.0, 1.0], [len(history.scored), len(history.failed)])
        self.best = 0.0
        logarithms = np.log(np.maximum(history.scores, LEAST_SCORE))
        if len(history.scored):
            self._residuals = self._conditioned(history.scored, logarithms)
            self.best = float(history.scores.max())
        if len(history.open):
            believed = self._members(history.open)[0].mean(axis=0)
            both = np.concatenate([history.scored, history.open])
            self._residuals = self._conditioned(both, np.concatenate([logarithms, believed]))
            self.best = max(self.best, float(np.exp(believed.max())))

    def values(self, encodings: Array) -> Array:
        """Return each member's R times its probability of success, shape (members, points)."""
        logarithm, _, success = self._members(encodings)
        return np.asarray(np.exp(logarithm) * success)

    def robust(self, encodings: Array) -> Array:
        """Return values and, as the last row, their mean; shape (members + 1, points)."""
        found = self.values(encodings)
        if NORM:
            self.top = np.maximum(getattr(self, "top", 0.0), found.max(axis=1, keepdims=True))
            found = found / self.top
        return np.concatenate([found, found.mean(axis=0)[None]])

    def improvement(self, encodings: Array) -> Array:
        """Return values and, as the last row, the expected improvement; shape (members + 1, points)."""
        logarithm, deviation, success = self._members(encodings)
        gain = expected_improvement(logarithm, deviation, self.best) * success**POWER
        if NORM:
            self.top = np.maximum(getattr(self, "top", 0.0), (np.exp(logarithm) * success).max(axis=1, keepdims=True))
            gain = gain / self.top
        return np.concatenate([np.exp(logarithm) * success, gain.mean(axis=0)[None]])

    def _conditioned(self, encodings: Array, logarithms: Array) -> Residuals:
        expected = self._expectation.of(self._space.configurations(encodings)).score
        residuals = logarithms - np.log(np.maximum(expected, LEAST_SCORE))
        return Residuals(self._kernels, self._space.indicators(encodings), residuals)

    def _members(self, encodings: Array) -> tuple[Array, Array, Array]:
        """Return log R, shape (members, points); its standard deviation, (points,); success, (members, points)."""
        expected = self._expectation.of(self._space.configurations(encodings))
        logarithm = np.log(np.maximum(expected.score, LEAST_SCORE))
        indicators = self._space.indicators(encodings)
        deviation = np.full(len(encodings), 1e-4)
        if self._residuals is not None:
            mean, deviation = self._residuals.at(indicators)
            logarithm = logarithm + mean
        return logarithm, deviation, 1.0 - self._failure(expected.failure_probability, indicators)

    def _failure(self, expected: Array, indicators: Array) -> Array:
        """Return the failure probability, the model's mixed with what became of like points.

        A kernel estimate whose prior counts `FAILURE_WEIGHT` trials (Goetschalckx et al. 2011, continuous correlated
        beta processes).
        """
        alike = self._near.between(indicators, self._tried)
        return np.asarray((FAILURE_WEIGHT * expected + alike @ self._has_failed) / (FAILURE_WEIGHT + alike.sum(axis=1)))


def expected_improvement(logarithm: Array, deviation: Array, best: float) -> Array:
    """Return E[max(R - best, 0)] where log R is normal.

    exp(m + s^2/2) Phi(d + s) - best Phi(d), d = (m - log best)/s: the price of a call by Black and Scholes 1973.
    """
    if best <= 0:
        return np.asarray(np.exp(logarithm + deviation**2 / 2.0))
    over = (logarithm - np.log(best)) / deviation
    return np.asarray(
        np.maximum(np.exp(logarithm + deviation**2 / 2.0) * ndtr(over + deviation) - best * ndtr(over), 0.0)
    )
