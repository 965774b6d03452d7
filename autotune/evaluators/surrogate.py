"""A surrogate of a recording: a Gaussian process for each figure answers between the recorded configurations.

Exact inference with a Matern 5/2 kernel and one weight for each parameter (Rasmussen and Williams 2006, chapters 2, 4.2
and 5.4.1; leave-one-out in closed form, equations 5.10 to 5.12). About a thousand points are few enough for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from autotune.trials import Point

Array = NDArray[np.float64]

_WEIGHT_PRIOR = (math.log(0.3), 2.0)
"""Mean and spread of the logarithm of a parameter's weight: of numbers, per decade squared."""
_NOISE_PRIOR = (math.log(0.05), 1.0)
"""The same of the noise's share of the standard deviation."""
_JITTER = 1e-8
_MOST_STEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What is fitted: it makes a surrogate of the recording again without fitting anew."""

    weights: Mapping[str, float]
    """By parameter: how much a difference in it counts."""
    noise: float
    """Standard deviation of a measurement, as a share of that of all values."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"weights": dict(self.weights), "noise": self.noise}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(weights=dict(data["weights"]), noise=float(data["noise"]))


class Surrogate:
    """One figure over the space, between recorded points.

    Args:
        points: recorded, each with every parameter.
        values: of the figure; shape (points,), finite.
        kernel: fitted before to these points; None: fit it, which takes seconds for a thousand points.
    """

    def __init__(self, points: Sequence[Point], values: Array, kernel: Kernel | None = None) -> None:
        self._names = sorted({name for point in points for name in point})
        self._points = list(points)
        self._mean, self._scale = float(np.mean(values)), float(np.std(values)) or 1.0
        self._targets = (np.asarray(values, dtype=np.float64) - self._mean) / self._scale
        apart = squared_differences(points, points, self._names)
        self.kernel = kernel or _fitted(apart, self._targets, self._names)
        self._factor = cho_factor(self._covariance(apart) + (self.kernel.noise**2 + _JITTER) * np.eye(len(points)))
        self._solved = cho_solve(self._factor, self._targets)

    @property
    def noise(self) -> float:
        """Standard deviation of one measurement."""
        return self.kernel.noise * self._scale

    def value(self, point: Point) -> float:
        """Return the expected figure of a point."""
        across = self._covariance(squared_differences([point], self._points, self._names))
        return self._mean + self._scale * float((across @ self._solved)[0])

    def left_out(self) -> Array:
        """Return what is expected of each recorded point by the others, shape (points,)."""
        inverse = cho_solve(self._factor, np.eye(len(self._points)))
        return np.asarray(self._mean + self._scale * (self._targets - self._solved / np.diag(inverse)))

    def _covariance(self, apart: Array) -> Array:
        return _matern(np.tensordot([self.kernel.weights[name] for name in self._names], apart, axes=1))[0]


def squared_differences(ones: Sequence[Point], others: Sequence[Point], names: Sequence[str]) -> Array:
    """Return how far points are apart in each parameter, shape (names, ones, others).

    Numbers above 0: the difference of their logarithms to base 10, squared; anything else: 1 where values differ.
    """
    return np.array([_differences([p.get(name) for p in ones], [p.get(name) for p in others]) for name in names])


def _differences(ones: Sequence[Any], others: Sequence[Any]) -> Array:
    numbers = [v for v in (*ones, *others) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(ones) + len(others) and all(number >= 0 for number in numbers):
        # 0 switches something off, and lies a decade below the least.
        least = min((number for number in numbers if number > 0), default=1.0) / 10
        logs = [np.log10(np.maximum(np.array(values, dtype=np.float64), least)) for values in (ones, others)]
        return np.asarray((logs[0][:, None] - logs[1][None, :]) ** 2)
    return np.array([[float(a != b) for b in others] for a in ones])


def _matern(squares: Array) -> tuple[Array, Array]:
    """Return the covariance at squared distances, and its derivative by them."""
    root = np.sqrt(5.0 * squares)
    falling = np.exp(-root)
    return (1.0 + root + root**2 / 3.0) * falling, -5.0 / 6.0 * (1.0 + root) * falling


def _fitted(apart: Array, targets: Array, names: Sequence[str]) -> Kernel:
    """Return the most probable kernel (MAP)."""
    count = len(targets)

    def loss(logs: Array) -> tuple[float, Array]:
        weights, noise = np.exp(logs[:-1]), math.exp(logs[-1])
        covariance, slope = _matern(np.tensordot(weights, apart, axes=1))
        covariance[np.diag_indices(count)] += noise**2 + _JITTER
        try:
            factor = cho_factor(covariance)
        except np.linalg.LinAlgError:
            return 1e12, np.zeros_like(logs)
        inverse = cho_solve(factor, np.eye(count))
        solved = inverse @ targets
        outer = 0.5 * (inverse - np.outer(solved, solved))
        by_weight = weights * np.tensordot(apart, outer * slope, axes=([1, 2], [0, 1]))
        by_noise = 2.0 * noise**2 * float(np.trace(outer))
        means = np.append(np.full(len(weights), _WEIGHT_PRIOR[0]), _NOISE_PRIOR[0])
        spreads = np.append(np.full(len(weights), _WEIGHT_PRIOR[1]), _NOISE_PRIOR[1])
        off = (logs - means) / spreads
        value = 0.5 * float(targets @ solved) + float(np.sum(np.log(np.diag(factor[0])))) + 0.5 * float(off @ off)
        return value, np.append(by_weight, by_noise) + off / spreads

    begin = np.append(np.full(len(names), _WEIGHT_PRIOR[0]), _NOISE_PRIOR[0])
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS}).x
    return Kernel(
        weights={name: float(np.exp(log)) for name, log in zip(names, found, strict=False)},
        noise=float(np.exp(found[-1])),
    )
