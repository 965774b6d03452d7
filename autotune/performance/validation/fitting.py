"""Coefficients fitted to published step times: maximum a posteriori, under the priors' spreads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from autotune.performance.arrays import Array
from autotune.performance.coefficients import Coefficients, priors
from autotune.performance.model import estimate
from autotune.performance.validation.rows import Measure, Reading, Table, table

ROW_SPREAD = 0.1
"""Logarithmic spread of one row around its source: repeats of one published run differ by 0 to 11 %."""
SOURCE_SPREAD = 0.1
"""Logarithmic spread of whole sources: frameworks, their versions and clocks. The random effect's prior; predictions
for another source use its mean, 0."""
UNKNOWN_SPREAD = 1.0
"""The same where the convention of TFLOPS is unspecified: only the order within the source teaches."""
AT_MOST_ONE = frozenset(
    {
        "matmul_fraction_of_peak",
        "fp32_fraction_of_peak",
        "matmul_efficiency",
        "attention_efficiency",
        "flash_efficiency",
        "fused_passes",
        "fused_launches",
        "intra_efficiency",
        "inter_efficiency",
        "pcie_efficiency",
    }
)
"""Shares of a rate, which no machine exceeds."""
AT_LEAST_ONE = frozenset({"overlap_power", "launch_overlap", "offload_overlap_power", "unaligned_slowdown"})
"""Powers of `smooth_maximum`: 1 is no overlap at all."""
STEP = 1e-4
"""Of a logarithm, for derivatives by differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted coefficients, and what each source adds on top (logarithm of a factor on the step time)."""

    coefficients: Coefficients
    effects: dict[str, float]
    iterations: int


def fitted_names(part: str) -> list[str]:
    """Return the coefficients of one part ('time', 'memory'), in the table's order."""
    return [name for name, prior in priors().items() if prior.part == part]


def fit_times(table: Table, *, names: Sequence[str] | None = None) -> Fit:
    """Fit the time coefficients and one random effect per source to a table's step times.

    Rows of one source count together like the square root of their number, so that one long table doesn't outweigh
    all others; a robust loss (soft L1) bounds what a single odd row can do.
    """
    chosen = list(names or fitted_names("time"))
    start = np.log([priors()[name].initial for name in chosen])
    spreads = np.array([priors()[name].spread for name in chosen])
    groups, member, counts = np.unique(table.groups, return_inverse=True, return_counts=True)
    relative = np.array([row.measure is Measure.RELATIVE for row in table.rows])
    group_relative = np.zeros(len(groups), dtype=bool)
    np.logical_or.at(group_relative, member, relative)
    effect_spread = np.where(group_relative, UNKNOWN_SPREAD, SOURCE_SPREAD)
    weights = counts[member] ** -0.25
    measured = np.log(table.step_time_s)
    base = Coefficients.initial()

    def logarithms(vectors: Array) -> Array:
        c = Coefficients.from_logarithms(vectors, names=chosen, base=base)
        return np.log(estimate(table.shape, table.cluster, table.configurations, c).time.step_time_s)

    def deviations(values: Array, effects: Array) -> Array:
        return np.asarray((values + effects[member] - measured) / ROW_SPREAD)

    def residuals(x: Array) -> Array:
        theta, effects = x[: len(chosen)], x[len(chosen) :]
        rows, _ = _softened(deviations(logarithms(theta), effects))
        sources, _ = _softened(effects / effect_spread)
        return np.concatenate([rows * weights, (theta - start) / spreads, sources])

    def jacobian(x: Array) -> Array:
        theta = x[: len(chosen)]
        moved = theta + np.vstack([np.zeros(len(chosen)), STEP * np.eye(len(chosen))])
        values = logarithms(moved)
        _, softness = _softened(deviations(values[0], x[len(chosen) :]))
        pull = weights * softness / ROW_SPREAD
        slopes = ((values[1:] - values[0]) / STEP).T * pull[:, None]
        own = np.zeros((len(member), len(groups)))
        own[np.arange(len(member)), member] = pull
        top = np.hstack([slopes, own])
        _, yielding = _softened(x[len(chosen) :] / effect_spread)
        below = np.diag(np.concatenate([1.0 / spreads, yielding / effect_spread]))
        return np.vstack([top, below])

    begin = np.concatenate([start, np.zeros(len(groups))])
    low = np.full(len(begin), -np.inf)
    high = np.full(len(begin), np.inf)
    low[: len(chosen)] = [0.0 if name in AT_LEAST_ONE else -np.inf for name in chosen]
    high[: len(chosen)] = [0.0 if name in AT_MOST_ONE else np.inf for name in chosen]
    answer = least_squares(residuals, begin, jac=jacobian, bounds=(low, high), max_nfev=100, xtol=1e-5, ftol=1e-6)
    theta = answer.x[: len(chosen)]
    return Fit(
        coefficients=Coefficients.from_logarithms(theta, names=chosen, base=base),
        effects=dict(zip(groups.tolist(), answer.x[len(chosen) :].tolist(), strict=True)),
        iterations=int(answer.nfev),
    )


def fit_memory(readings: Sequence[Reading], base: Coefficients) -> Coefficients:
    """Fit the memory coefficients to measured readings, the time coefficients staying as they are.

    Readings of one source count together like the square root of their number.
    """
    if not readings:
        return base
    chosen = fitted_names("memory")
    start = np.log([priors()[name].initial for name in chosen])
    spreads = np.array([priors()[name].spread for name in chosen])
    asked = table([reading.row for reading in readings])
    _, member, counts = np.unique(asked.groups, return_inverse=True, return_counts=True)
    weights = counts[member] ** -0.25
    measured = np.log([reading.measured_bytes for reading in readings])

    def residuals(theta: Array) -> Array:
        c = Coefficients.from_logarithms(theta, names=chosen, base=base)
        said = predicted_bytes(readings, asked, c)
        rows, _ = _softened((np.log(said) - measured) / ROW_SPREAD)
        return np.concatenate([rows * weights, (theta - start) / spreads])

    answer = least_squares(residuals, start, max_nfev=60)
    return Coefficients.from_logarithms(answer.x, names=chosen, base=base)


def predicted_bytes(readings: Sequence[Reading], asked: Table, c: Coefficients) -> Array:
    """Return what the model says of each reading, by the kind of reading it is; shape (readings,)."""
    found = estimate(asked.shape, asked.cluster, asked.configurations, c).memory
    columns = {reading.field: np.broadcast_to(getattr(found, reading.field), len(readings)) for reading in readings}
    return np.array([columns[reading.field][place] for place, reading in enumerate(readings)])


def _softened(deviation: Array) -> tuple[Array, Array]:
    """Return residuals whose squares are the soft L1 loss 2 (sqrt(1 + z^2) - 1), and their slope.

    Scipy's own robust losses would soften the priors too.
    """
    root = np.sqrt(1.0 + deviation**2)
    soft = np.sign(deviation) * np.sqrt(2.0 * (root - 1.0))
    return soft, np.where(np.abs(deviation) < 1e-6, 1.0, deviation / np.where(soft == 0, 1.0, root * soft))
