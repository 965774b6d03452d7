"""A calibration: the posterior of what was fitted, as a frozen value that serialises to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from autotune.performance.arrays import Array
from autotune.performance.calibration.parameters import WORKLOAD, Parameters, calibration_priors
from autotune.performance.coefficients import Coefficients, Prior
from autotune.performance.devices import Cluster, Device

TAILS = 4.0
"""Degrees of freedom of the noise's t distribution: a trial at 5 scales off weighs a sixth (Lange, Little and Taylor
1989)."""
LEAST_CARRIED_SPREAD = 0.1
"""A coefficient carried over to another workload is never taken for known better than the formulas are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What a calibration was fitted to."""

    trials: int
    observations: Mapping[str, int]
    """How many by kind: those of `LEVELS`, and 'out_of_memory' and 'diverged' failures."""
    device_name: str
    ranks: int
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the libraries, as the last measured trial reports them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Where a fit ended, and a later one of more trials can begin."""

    mean: tuple[float, ...]
    """Most probable natural logarithms."""
    noise: Mapping[str, float]
    """By kind of observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Normal in the logarithms of what was fitted (Laplace's approximation at the most probable values)."""

    names: tuple[str, ...]
    mean: tuple[float, ...]
    """Most probable natural logarithms."""
    covariance: tuple[tuple[float, ...], ...]
    noise: Mapping[str, float]
    """By kind of observation: scale of the logarithm's residuals, the formulas' own error included; they are
    t-distributed with `TAILS` degrees of freedom."""
    cluster: Cluster
    """As it was given; `parameters().on(cluster)` has the rates found."""
    fitted: Fitted

    @property
    def solution(self) -> Solution:
        """Where the fit ended."""
        return Solution(mean=self.mean, noise=self.noise)

    def parameters(self) -> Parameters:
        """Return the most probable values."""
        return Parameters.from_logarithms(np.array(self.mean), names=self.names)

    def coefficients(self) -> Coefficients:
        """Return the most probable coefficients, for `estimate`; its cluster is `on_cluster()`."""
        return self.parameters().coefficients

    def on_cluster(self) -> Cluster:
        """Return the cluster with the most probable rates."""
        return self.parameters().on(self.cluster)

    def ensemble(self, members: int, *, seed: int = 0) -> Parameters:
        """Return draws of the posterior: each field has shape (members, 1), and a seed gives the same again."""
        values, vectors = np.linalg.eigh(np.array(self.covariance))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn = np.random.default_rng(seed).standard_normal((members, len(self.names)))
        return Parameters.from_logarithms(np.array(self.mean) + drawn @ root.T, names=self.names)

    def drawn_noise(self, kind: str, size: tuple[int, ...], *, seed: int = 0) -> Array:
        """Return what a measurement's logarithm may be off, beside what `ensemble` draws; of that shape."""
        return np.asarray(self.noise[kind] * np.random.default_rng(seed).standard_t(TAILS, size))

    def spreads(self) -> Array:
        """Return the standard deviation of each logarithm, shape (names,)."""
        return np.asarray(np.sqrt(np.diag(np.array(self.covariance))))

    def as_prior(self) -> Mapping[str, Prior]:
        """Return priors for another study on the same hardware.

        What is the machine's carries over, as single numbers without their correlations and with at least
        `LEAST_CARRIED_SPREAD`; what is the workload's (`WORKLOAD`) starts from the table again.
        """
        found = dict(calibration_priors(is_cpu=bool(np.all(np.asarray(self.cluster.device.is_cpu) > 0))))
        source = f"calibrated to {self.fitted.trials} trials on {self.fitted.device_name}"
        for name, mean, spread in zip(self.names, self.mean, self.spreads(), strict=True):
            if name not in WORKLOAD:
                kept = max(float(spread), min(LEAST_CARRIED_SPREAD, found[name].spread))
                found[name] = replace(found[name], mean=math.exp(mean), spread=kept, source=source)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; `Calibration.from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """Read what `to_json` wrote; keys of a newer version are passed over."""
        cluster = _known(Cluster, data["cluster"])
        return cls(
            names=tuple(data["names"]),
            mean=tuple(data["mean"]),
            covariance=tuple(tuple(row) for row in data["covariance"]),
            noise=dict(data["noise"]),
            cluster=Cluster(**{**cluster, "device": Device(**_known(Device, cluster["device"]))}),
            fitted=Fitted(**_known(Fitted, data["fitted"])),
        )


def _known(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(cls)}
    return {name: value for name, value in data.items() if name in names}
