"""Which configurations need not be tried: those that even the most hopeful coefficients see out of memory by far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune import dotted, sizes
from autotune.performance.arrays import Array, Numbers
from autotune.performance.calibration import Calibration, Parameters, calibration_priors, configurations_of
from autotune.performance.configurations import Configurations
from autotune.performance.devices import Cluster
from autotune.performance.model import estimate, in_chunks
from autotune.performance.shape import ModelShape
from autotune.trials import Trial

MEMBERS = 256
OPTIMISTIC = 0.025
"""Quantile of the memory that members of the ensemble see needed, noise included: below 1 in 40."""
MARGIN = 0.1
"""Of the capacity, by which even the optimistic need must be above it: what no calibration has seen yet, such as a
kernel that keeps less, is hidden by nothing but a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryVerdicts:
    """What is said of each configuration; arrays have shape (configurations,)."""

    optimistic_bytes: Array
    """On the fullest device, context included: the `OPTIMISTIC` quantile."""
    median_bytes: Array
    capacity_bytes: Array
    refused: Array
    """Boolean: not worth a trial."""
    probability: Array
    """Of running out of memory, on the device: to try the likely ones later, not never."""

    @property
    def order(self) -> Array:
        """Places of those that are not refused, the least likely to run out of memory first, else as they came."""
        return np.asarray([place for place in np.argsort(self.probability, kind="stable") if not self.refused[place]])

    def reason(self, place: int) -> str:
        """Return why one was refused, in a sentence."""
        needed, there = (sizes.text(float(each[place])) for each in (self.optimistic_bytes, self.capacity_bytes))
        return f"it needs {needed} or more of a device by the calibrated model, and there are {there}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFilter:
    """Refuses configurations beyond a margin only; what might fit is always left to a trial."""

    shape: ModelShape
    cluster: Cluster
    members: Parameters
    """An ensemble, fields of shape (members, 1)."""
    needed_noise: Array
    """Logarithms, shape (members, 1): what a trial's need may be off what a member says."""
    fixed: Mapping[str, Numbers]
    margin: float = MARGIN

    @classmethod
    def of(cls, shape: ModelShape, calibration: Calibration, *, seed: int = 0, **fixed: Numbers) -> MemoryFilter:
        """Return the filter of a calibrated study.

        Args:
            shape: of the model.
            calibration: of this study, or fitted with the prior of an earlier one.
            seed: of the draws.
            fixed: fields of `Configurations`, as the calibration was given them.
        """
        return cls(
            shape=shape,
            cluster=calibration.cluster,
            members=calibration.ensemble(MEMBERS, seed=seed),
            needed_noise=calibration.drawn_noise("memory", (MEMBERS, 1), seed=seed + 1),
            fixed=fixed,
        )

    @classmethod
    def uncalibrated(cls, shape: ModelShape, cluster: Cluster, *, seed: int = 0, **fixed: Numbers) -> MemoryFilter:
        """Return the filter before any trial: members drawn from the priors, which are wide."""
        known = calibration_priors(is_cpu=bool(np.all(np.asarray(cluster.device.is_cpu) > 0)))
        generator = np.random.default_rng(seed)
        drawn = generator.standard_normal((MEMBERS, len(known))) * [prior.spread for prior in known.values()]
        logarithms = np.log([prior.mean for prior in known.values()]) + drawn
        return cls(
            shape=shape,
            cluster=cluster,
            members=Parameters.from_logarithms(logarithms, names=list(known)),
            needed_noise=generator.standard_normal((MEMBERS, 1)) * 0.1,
            fixed=fixed,
        )

    def is_contradicted(self, trials: Sequence[Trial]) -> bool:
        """Whether a measured trial is among those it would have refused: the formulas don't suit the workload then."""
        ran = [trial for trial in trials if trial.measurement is not None]
        return bool(ran) and any(
            bool(self._judged(some).refused.any()) for some in in_chunks(configurations_of(ran, **self.fixed), rows=512)
        )

    def judge(self, points: Sequence[Mapping[str, Any]]) -> MemoryVerdicts:
        """Return what is to be said of points of the search space, or of DeepSpeed's configurations."""
        flat = [dotted.leaves(point) for point in points]
        return self._judged(Configurations.from_points(flat, **self.fixed))

    def _judged(self, configurations: Configurations) -> MemoryVerdicts:
        found = estimate(self.shape, self.members.on(self.cluster), configurations, self.members.coefficients).memory
        needed = self.members.needed_bytes(found, self.cluster) * np.exp(self.needed_noise)
        capacity = np.broadcast_to(found.capacity_bytes, needed.shape)[0]
        optimistic, median = np.quantile(needed, (OPTIMISTIC, 0.5), axis=0)
        return MemoryVerdicts(
            optimistic_bytes=optimistic,
            median_bytes=median,
            capacity_bytes=capacity,
            refused=optimistic > capacity * (1.0 + self.margin),
            probability=np.mean(needed > capacity, axis=0),
        )
