"""Cases: simulated workloads, each with the configuration that a study of it starts from, as one struct of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.evaluators.simulated_workload import LIKELY_DIVERGENCE, SimulatedWorkload
from autotune.objective import Objective
from autotune.performance import Cluster, Coefficients, Device, ModelShape, estimate
from autotune.performance.learning_curve import loss_drop, useful_tokens
from autotune_envs.features import WorkloadFeatures
from autotune_envs.policy_space import policy_space
from autotune_envs.simulation.grid import Rows, canonical, configurations

Floats = NDArray[np.float64]
_CHUNK = 8192
"""Rows whose arrays stay in the processor's cache."""
_SWEEPS = 6
"""Coordinate ascents rarely move after the fourth sweep over the dimensions."""

_Struct = TypeVar("_Struct", ModelShape, Cluster, Coefficients, Device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What trials come to; every field has shape (rows,)."""

    throughput_ratio: Floats
    convergence_ratio: Floats
    score: Floats
    """R; meaningless where the trial fails."""
    out_of_memory: NDArray[np.bool_]
    diverged: NDArray[np.bool_]

    @property
    def scored(self) -> NDArray[np.bool_]:
        return ~(self.out_of_memory | self.diverged)

    @property
    def value(self) -> Floats:
        """R, 0 where the trial fails."""
        return np.where(self.scored, self.score, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Arrays of one entry per case; `SimulatedEvaluator` answers the same for the same workload and configuration."""

    shape: ModelShape
    cluster: Cluster
    coefficients: Coefficients
    flash_attention: Floats
    curve_reach: Floats
    curve_tokens: Floats
    curve_power: Floats
    convergence_at_s: Floats
    """Training time at which losses are compared."""
    features: NDArray[np.float32]
    """`WorkloadFeatures.vector` of what may be known, shape (cases, features)."""
    baseline: Rows
    """Canonical encodings of the starting configurations, shape (cases, dimensions)."""
    reference_rate: Floats
    """Samples per second of the starting configuration."""
    reference_drop: Floats
    """The share of the loss that it takes away."""
    optimum: Rows
    """The best encoding known; see `with_optimum`."""
    optimum_score: Floats

    def __len__(self) -> int:
        return len(self.flash_attention)

    @classmethod
    def of(
        cls,
        workloads: Sequence[SimulatedWorkload],
        features: Sequence[WorkloadFeatures],
        baseline: Rows,
        convergence_at_s: Floats,
    ) -> Cases:
        """Return one case for each workload; the optimum is not known yet."""
        count = len(workloads)

        def numbers(name: str) -> Floats:
            return np.array([float(getattr(workload, name)) for workload in workloads])

        blank = cls(
            shape=_stacked([workload.shape for workload in workloads]),
            cluster=_stacked([workload.cluster for workload in workloads]),
            coefficients=_stacked([workload.coefficients for workload in workloads]),
            flash_attention=numbers("flash_attention"),
            curve_reach=numbers("curve_reach"),
            curve_tokens=numbers("curve_tokens"),
            curve_power=numbers("curve_power"),
            convergence_at_s=convergence_at_s,
            features=np.array([known.vector() for known in features]),
            baseline=baseline,
            reference_rate=np.ones(count),
            reference_drop=np.ones(count),
            optimum=baseline,
            optimum_score=np.ones(count),
        )
        start = blank.judge(np.arange(count), baseline)
        return blank._with(reference_rate=start.throughput_ratio, reference_drop=start.convergence_ratio)

    def __getitem__(self, rows: Rows) -> Cases:
        """Return some of them, in this order; one may come several times."""
        return self._with(**{field.name: _taken(getattr(self, field.name), rows) for field in fields(self)})

    def judge(
        self, rows: Rows, encodings: Rows, *, slowness: Floats | float = 1.0, doubt: Floats | float = 0.0
    ) -> Verdicts:
        """Return what a trial of each canonical encoding comes to in the case of its row.

        Args:
            rows: places of cases, shape (rows,).
            encodings: shape (rows, dimensions).
            slowness: factor that noise puts on the step time.
            doubt: a trial diverges where its divergence probability is above 1/2 and this.
        """
        shape, flash = _taken(self.shape, rows), self.flash_attention[rows]
        asked = configurations(encodings, flash_attention=flash)
        found = estimate(shape, _taken(self.cluster, rows), asked, _taken(self.coefficients, rows))
        step_time_s = found.time.step_time_s * slowness
        tokens = useful_tokens(shape, found.convergence, self.convergence_at_s[rows] / step_time_s)
        curve = {"reach": self.curve_reach, "scale": self.curve_tokens, "power": self.curve_power}
        drop = loss_drop(tokens, **{name: values[rows] for name, values in curve.items()})
        throughput = found.samples_per_second / slowness / self.reference_rate[rows]
        convergence = drop / self.reference_drop[rows]
        objective = Objective()
        out_of_memory = np.asarray(found.memory.out_of_memory)
        return Verdicts(
            throughput_ratio=throughput,
            convergence_ratio=convergence,
            score=objective.alpha * throughput + objective.beta * convergence,
            out_of_memory=out_of_memory,
            diverged=~out_of_memory & (found.convergence.divergence_probability > 0.5 + doubt),
        )

    def values(self, rows: Rows, encodings: Rows) -> Floats:
        """Return R without noise, 0 where a trial fails or might; in pieces, for many rows."""
        doubt = LIKELY_DIVERGENCE - 0.5
        pieces = [
            self.judge(rows[begin : begin + _CHUNK], encodings[begin : begin + _CHUNK], doubt=doubt).value
            for begin in range(0, len(rows), _CHUNK)
        ]
        return np.concatenate(pieces)

    def with_optimum(self, generator: np.random.Generator, *, climbs: int) -> Cases:
        """Return the cases with the best that coordinate ascents find, from the baseline and from random points."""
        sizes = np.array(policy_space().sizes)
        best, score = self._climbed(self.baseline)
        for _ in range(climbs - 1):
            other, value = self._climbed(canonical(generator.integers(sizes, size=self.baseline.shape)))
            better = value > score
            best[better], score[better] = other[better], value[better]
        return self._with(optimum=best, optimum_score=score)

    def _climbed(self, begin: Rows) -> tuple[Rows, Floats]:
        rows, best = np.arange(len(self)), begin.copy()
        score = self.values(rows, best)
        for _ in range(_SWEEPS):
            before = score.copy()
            for place, size in enumerate(policy_space().sizes):
                for level in range(size):
                    other = best.copy()
                    other[:, place] = level
                    other = canonical(other)
                    value = self.values(rows, other)
                    better = value > score
                    best[better], score[better] = other[better], value[better]
            if np.array_equal(before, score):
                break
        return best, score

    def _with(self, **changes: Any) -> Cases:
        return Cases(**{field.name: changes.get(field.name, getattr(self, field.name)) for field in fields(self)})


def _stacked(items: Sequence[_Struct]) -> _Struct:
    """Return structs of single numbers as one struct of arrays."""
    found: dict[str, Any] = {}
    for field in fields(items[0]):
        values = [getattr(item, field.name) for item in items]
        if isinstance(values[0], Device):
            found[field.name] = _stacked(values)
        elif not isinstance(values[0], str):
            found[field.name] = np.array([float(np.asarray(value)) for value in values])
    return type(items[0])(**found)


def _taken(value: Any, rows: Rows) -> Any:
    """Return the entries of an array, or of every array of a struct."""
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, str):
        return value
    return type(value)(**{field.name: _taken(getattr(value, field.name), rows) for field in fields(value)})
