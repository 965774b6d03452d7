"""What the calibrated model still gets wrong: an exact Gaussian process on the residuals of a logarithm.

Of the libraries that are dependencies none has a public Gaussian process (Optuna's is private to its sampler), and an
exact one of a few dozen trials is two calls of scipy (Rasmussen and Williams 2006, algorithm 2.1).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from scipy.linalg import block_diag, cho_solve, cholesky, solve_triangular

from autotune.performance.arrays import Array

AMPLITUDES = (0.1, 0.2, 0.4, 0.8)
"""Standard deviations of the residuals that are tried; a factor of 1.1 to 2.2."""
LENGTHS = (0.5, 1.0, 2.0)
"""A whole ordered dimension, or another level of one without order, is 1."""
NOISES = (0.03, 0.1)
"""Of one trial's logarithm: 2 to 5 % between runs of one configuration, more where a machine drifts."""
USUAL_AMPLITUDE, AMPLITUDE_SPREAD = 0.2, 0.7
"""Log-normal prior of the amplitude: what the formulas' step times are off after calibration, .1 to .4."""
ADDITIVE = 0.5
"""Share of the variance that is a sum of one-dimensional functions (Duvenaud et al. 2011), the rest is one of all."""


class Kernel:
    """Correlations of residuals between points given as indicators of levels: products of matrices, whatever the sizes.

    Matern 5/2 (Rasmussen and Williams 2006, equation 4.17), of each dimension by itself and of all jointly.

    Args:
        distances: between the levels of each dimension, each of shape (levels, levels).
        length: over which a residual changes, in units of the distances.
    """

    def __init__(self, distances: Sequence[Array], length: float) -> None:
        self._squares = block_diag(*(each**2 for each in distances))
        self._alone = block_diag(*(_matern(each / length) for each in distances)) / len(distances)
        self.length = length

    def between(self, one: Array, other: Array) -> Array:
        """Return the correlations, shape (len(one), len(other)), of indicators of shape (points, levels)."""
        joint = _matern(np.sqrt(one @ (self._squares @ other.T)) / self.length)
        return np.asarray(ADDITIVE * (one @ (self._alone @ other.T)) + (1.0 - ADDITIVE) * joint)


class Residuals:
    """A Gaussian process conditioned on residuals: one function per member of an ensemble, all with one kernel.

    The kernel's numbers are the most probable of a grid.

    Args:
        kernels: to choose from.
        indicators: of the points observed, shape (trials, levels).
        residuals: of a logarithm, shape (members, trials).
    """

    def __init__(self, kernels: Sequence[Kernel], indicators: Array, residuals: Array) -> None:
        self._indicators = indicators
        typical = residuals.mean(axis=0)
        best = -np.inf
        for kernel in kernels:
            shape = kernel.between(indicators, indicators)
            for amplitude, noise in itertools.product(AMPLITUDES, NOISES):
                root = cholesky(amplitude**2 * shape + noise**2 * np.eye(len(shape)), lower=True)
                white = solve_triangular(root, typical, lower=True)
                evidence = -0.5 * float(white @ white) - float(np.sum(np.log(np.diag(root))))
                evidence -= 0.5 * (np.log(amplitude / USUAL_AMPLITUDE) / AMPLITUDE_SPREAD) ** 2
                if evidence > best:
                    best = evidence
                    self._kernel, self.amplitude, self.noise, self._root = kernel, amplitude, noise, root
        self._weights = cho_solve((self._root, True), residuals.T)

    def at(self, indicators: Array) -> tuple[Array, Array]:
        """Return mean, shape (members, points), and standard deviation, shape (points,), of the residuals."""
        across = self.amplitude**2 * self._kernel.between(indicators, self._indicators)
        explained = solve_triangular(self._root, across.T, lower=True)
        variance = self.amplitude**2 - np.sum(explained**2, axis=0)
        return (across @ self._weights).T, np.sqrt(np.maximum(variance, 1e-8))


def _matern(distance: Array) -> Array:
    scaled = np.sqrt(5.0) * distance
    return np.asarray((1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled))
