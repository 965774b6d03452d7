"""The coefficients of the formulas: one table of priors, and values drawn from or fitted to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import yaml

from autotune.errors import ConfigError
from autotune.performance.arrays import Array, Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is known of one coefficient before a machine was measured: log-normal."""

    name: str
    unit: str
    mean: float
    """Median: exp of the mean of the logarithm."""
    spread: float
    """Standard deviation of the logarithm."""
    initial: float
    """The median that the source gives, before the fit to published measurements."""
    fitted: bool
    part: str
    """'time', 'memory' or 'convergence'."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Values of all coefficients. Each field is one number, or has shape (members, 1) for an ensemble.

    `coefficients.yaml` says of each its unit, its source and its prior.
    """

    matmul_fraction_of_peak: Numbers
    fp32_fraction_of_peak: Numbers
    matmul_efficiency: Numbers
    matmul_half_width: Numbers
    matmul_half_area: Numbers
    attention_efficiency: Numbers
    flash_efficiency: Numbers
    elementwise_passes: Numbers
    score_passes: Numbers
    logit_passes: Numbers
    fused_passes: Numbers
    fused_launches: Numbers
    unaligned_slowdown: Numbers
    recomputation: Numbers
    host_layer_s: Numbers
    host_step_s: Numbers
    host_bucket_s: Numbers
    host_gather_s: Numbers
    host_zero_layer_s: Numbers
    host_persistent_s: Numbers
    launch_overlap: Numbers
    intra_efficiency: Numbers
    inter_efficiency: Numbers
    intra_latency_s: Numbers
    inter_latency_s: Numbers
    overlap_power: Numbers
    quantization_passes: Numbers
    optimizer_passes: Numbers
    pcie_efficiency: Numbers
    cpu_adam_efficiency: Numbers
    offload_overlap_power: Numbers
    activation_bytes: Numbers
    eager_activations: Numbers
    logit_bytes: Numbers
    live_parameters: Numbers
    optimizer_temporary: Numbers
    fragmentation: Numbers
    fragmentation_at_limit: Numbers
    context_bytes: Numbers
    host_buffer: Numbers
    critical_batch_tokens: Numbers
    learning_rate: Numbers
    divergence_ratio: Numbers

    @classmethod
    def prior(cls) -> Coefficients:
        """Return the median of every prior."""
        return cls(**{name: prior.mean for name, prior in priors().items()})

    @classmethod
    def initial(cls) -> Coefficients:
        """Return every coefficient as its source says, before any fit."""
        return cls(**{name: prior.initial for name, prior in priors().items()})

    @classmethod
    def sample(cls, generator: np.random.Generator, members: int) -> Coefficients:
        """Return an ensemble drawn from the priors: each field has shape (members, 1)."""
        known = list(priors().values())
        drawn = generator.standard_normal((members, len(known))) * [prior.spread for prior in known]
        return cls.from_logarithms(drawn + np.log([prior.mean for prior in known]), names=[p.name for p in known])

    @classmethod
    def from_logarithms(
        cls, logarithms: Array, *, names: Sequence[str], base: Coefficients | None = None
    ) -> Coefficients:
        """Return coefficients from natural logarithms.

        Args:
            logarithms: shape (names,) for one vector, or (members, names) for an ensemble.
            names: which coefficients the last axis holds, in order.
            base: the other coefficients' values; by default the priors' medians.
        """
        values = np.exp(np.asarray(logarithms, dtype=np.float64))
        ensemble = values.ndim == 2
        chosen: Mapping[str, Numbers] = {
            name: values[:, place, None] if ensemble else float(values[place]) for place, name in enumerate(names)
        }
        return replace(base or cls.prior(), **chosen)

    def logarithms(self, names: Sequence[str]) -> Array:
        """Return the natural logarithms, shape (names,) or (members, names): the inverse of `from_logarithms`."""
        columns = [np.log(np.asarray(getattr(self, name), dtype=np.float64)) for name in names]
        if any(column.ndim for column in columns):
            return np.stack([column[..., 0] if column.ndim else column for column in np.broadcast_arrays(*columns)], -1)
        return np.stack(columns)


@cache
def priors() -> Mapping[str, Prior]:
    """Return the table of priors by name, in the order of `Coefficients`.

    Raises:
        ConfigError: when the table and `Coefficients` don't name the same.
    """
    text = files("autotune.performance").joinpath("coefficients.yaml").read_text(encoding="utf-8")
    found = {entry["name"]: Prior(**entry) for entry in yaml.safe_load(text)["coefficients"]}
    names = [field.name for field in fields(Coefficients)]
    if sorted(found) != sorted(names):
        odd = sorted(set(found) ^ set(names))
        raise ConfigError(f"coefficients.yaml: got {', '.join(odd)}; it must name each field of Coefficients once")
    return {name: found[name] for name in names}


HEADING = """\
# The coefficients of the performance model: one entry each. All are log-normal.
#
#   mean     the median used: `initial` moved by the published measurements where `fitted` is true
#            (python -m autotune.performance.validation experiments/published --refit FILE), else `initial`
#   spread   standard deviation of the logarithm
#   initial  the median before the fit, as `source` says
coefficients:
"""


def write_table(path: Path, fitted: Coefficients) -> None:
    """Write the table of priors anew, with fitted medians for the parts 'time' and 'memory'."""
    lines = [HEADING]
    for name, prior in priors().items():
        moved = prior.part != "convergence"
        mean = float(getattr(fitted, name)) if moved else prior.initial
        lines += [
            f"  - name: {name}\n",
            f"    unit: {json.dumps(prior.unit)}\n",
            f"    mean: {mean:#.4g}\n" if 1e-2 < mean < 1e4 else f"    mean: {mean:.4e}\n",
            f"    spread: {prior.spread}\n",
            f"    initial: {prior.initial:#.4g}\n"
            if 1e-2 < prior.initial < 1e4
            else f"    initial: {prior.initial:.4e}\n",
            f"    fitted: {json.dumps(moved)}\n",
            f"    part: {prior.part}\n",
            f"    source: {json.dumps(prior.source)}\n",
        ]
    path.write_text("".join(lines), encoding="utf-8")
