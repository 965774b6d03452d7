"""What is fitted: the model's coefficients, factors of the cluster's rates, and the learning curve of one workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from autotune.performance.arrays import Array, Numbers
from autotune.performance.coefficients import Coefficients, Prior, priors
from autotune.performance.convergence import Convergence
from autotune.performance.devices import Cluster
from autotune.performance.learning_curve import loss_drop, useful_tokens
from autotune.performance.memory import Memory
from autotune.performance.shape import ModelShape

WORKLOAD = frozenset(
    {
        "elementwise_passes", "score_passes", "logit_passes", "fused_passes", "fused_launches", "unaligned_slowdown",
        "recomputation", "attention_efficiency", "flash_efficiency", "host_layer_s", "host_step_s", "activation_bytes",
        "eager_activations", "logit_bytes", "live_parameters", "critical_batch_tokens", "learning_rate",
        "divergence_ratio", "curve_reach", "curve_tokens", "curve_power",
    }
)  # fmt: skip
"""What another model or another loss would change: its own layers, activations and learning. All others are the
machine's, its libraries' and DeepSpeed's, and carry over to the next workload on the same hardware."""

_CPU: Mapping[str, tuple[float, float, str]] = {
    "matmul_efficiency": (0.85, 0.8, "the rate is a table's, per core, not this machine's"),
    "matmul_half_width": (30.0, 1.0, "no tiles of 128 columns to fill: vectors of 8 or 16 values"),
    "intra_efficiency": (0.75, 1.0, "gloo through loopback, and the cores compute too"),
    "intra_latency_s": (2e-4, 1.2, "a gloo collective wakes a thread of each rank"),
    "host_bucket_s": (1e-3, 1.2, "as on a GPU's host, but that the same core computes"),
    "host_persistent_s": (2e-4, 1.2, "a blocking gather for each tensor"),
    "activation_bytes": (1.0, 0.5, "CPU kernels keep other intermediates than Megatron's"),
    "optimizer_temporary": (0.9, 0.4, "torch's own Adam"),
    "overlap_power": (1.2, 0.35, "what overlaps shares the cores"),
}  # fmt: skip
"""Median, spread, reason: where a CPU machine with gloo differs from what the table's priors were read from."""


@cache
def calibration_priors(*, is_cpu: bool) -> Mapping[str, Prior]:
    """Return the priors of all that is fitted, by name.

    Beside the model's coefficients there are factors of two of the cluster's rates (`half_rate`, `memory_rate`) and of
    what a CPU rank takes before it has a model (`process_memory`), since a device of a crude table is as uncertain as a
    coefficient, and three numbers of the learning curve.
    """
    found = dict(priors())
    # Trials see the first seconds of a training, where the critical batch is far below that of its middle.
    found["critical_batch_tokens"] = replace(found["critical_batch_tokens"], spread=3.0)
    if is_cpu:
        for name, (mean, spread, source) in _CPU.items():
            found[name] = replace(found[name], mean=mean, spread=spread, source=source)
    rates = "of the device table or Hardware"
    more = (
        ("half_rate", "1", 1.0, 0.5 if is_cpu else 0.1, "time", f"over the 16-bit matmul rate {rates}"),
        ("memory_rate", "1", 1.0, 0.8 if is_cpu else 0.1, "time", f"over the memory bandwidth {rates}"),
        ("process_memory", "1", 1.0, 0.4 if is_cpu else 1e-3, "memory", "over a CPU rank's memory before the model"),
        ("curve_reach", "1", 0.6, 0.4, "convergence", "share of the first loss that training can take away"),
        ("curve_tokens", "tokens", 1e5, 3.0, "convergence", "after so many a good share of that is gone"),
        ("curve_power", "1", 0.5, 0.5, "convergence", "Hoffmann et al. 2022, equation 2: D^-0.28; steeper at first"),
    )
    for name, unit, mean, spread, part, source in more:
        found[name] = Prior(
            name=name, unit=unit, mean=mean, spread=spread, initial=mean, fitted=False, part=part, source=source
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """One vector of what is fitted, or an ensemble with fields of shape (members, 1)."""

    coefficients: Coefficients
    half_rate: Numbers
    memory_rate: Numbers
    process_memory: Numbers
    curve_reach: Numbers
    curve_tokens: Numbers
    curve_power: Numbers

    @classmethod
    def from_logarithms(cls, logarithms: Array, *, names: Sequence[str]) -> Parameters:
        """Return parameters from natural logarithms of shape (names,) or (members, names), every one named."""
        values = np.exp(np.asarray(logarithms, dtype=np.float64))
        own = {name: values[..., place, None] if values.ndim == 2 else float(values[place])
               for place, name in enumerate(names) if name not in priors()}  # fmt: skip
        inner = [place for place, name in enumerate(names) if name in priors()]
        coefficients = Coefficients.from_logarithms(
            np.asarray(logarithms)[..., inner], names=[names[place] for place in inner]
        )
        return cls(coefficients=coefficients, **own)

    @classmethod
    def sample(cls, known: Mapping[str, Prior], members: int, *, seed: int = 0) -> Parameters:
        """Return an ensemble drawn from priors: each field has shape (members, 1), and a seed gives the same again."""
        drawn = np.random.default_rng(seed).standard_normal((members, len(known)))
        spread = np.array([prior.spread for prior in known.values()])
        logarithms = np.log([prior.mean for prior in known.values()]) + drawn * spread
        return cls.from_logarithms(logarithms, names=list(known))

    def on(self, cluster: Cluster) -> Cluster:
        """Return the cluster with its rates as they were found to be."""
        device = replace(
            cluster.device,
            half_flops=cluster.device.half_flops * np.asarray(self.half_rate),
            memory_bandwidth=cluster.device.memory_bandwidth * np.asarray(self.memory_rate),
        )
        return replace(cluster, device=device)

    def needed_bytes(self, memory: Memory, cluster: Cluster) -> Array:
        """Return what a device must have, with CUDA's context, or what a CPU rank's process takes altogether."""
        process = np.where(np.asarray(cluster.device.is_cpu) > 0, self.process_memory, 1.0)
        return np.asarray(memory.capacity_bytes - memory.margin_bytes + (process - 1.0) * memory.context_bytes)

    def loss_drop(self, shape: ModelShape, convergence: Convergence, optimizer_steps: Numbers) -> Array:
        """Return the share of the first held-out loss that so many steps take away, above 0 and below 1."""
        tokens = useful_tokens(shape, convergence, optimizer_steps)
        drop = loss_drop(tokens, reach=self.curve_reach, scale=self.curve_tokens, power=self.curve_power)
        return np.asarray(np.maximum(drop, 1e-12))
