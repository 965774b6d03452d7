"""Workload features: what is known before the first trial of the workload and of the hardware it trains on."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from autotune.hardware import Hardware

_FULL_SCALE: dict[str, float] = {
    "cuda": 1,
    "ranks": 2**12,
    "device_count": 2**4,
    "device_memory_bytes": 2**40,
    "host_memory_bytes": 2**44,
    "cpu_count": 2**10,
    "compute_capability": 2**4,
    "parameter_count": 2**40,
    "layer_count": 2**8,
    "hidden_size": 2**16,
    "tokens_per_sample": 2**20,
}
"""The amount that reads 1.0; chosen above today's largest (a trillion parameters, 4,096 ranks, a node of 16 TiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFeatures:
    """Amounts that a policy may go by when it has seen no trial; None is 'not known', and says so in the vector."""

    cuda: bool | None = None
    """Whether ranks train on NVIDIA GPUs."""
    ranks: int | None = None
    device_count: int | None = None
    """Devices of one node."""
    device_memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    cpu_count: int | None = None
    compute_capability: float | None = None
    """NVIDIA's, such as 8.0 for an A100."""
    parameter_count: int | None = None
    layer_count: int | None = None
    hidden_size: int | None = None
    tokens_per_sample: int | None = None

    @classmethod
    def of(
        cls,
        hardware: Hardware,
        *,
        parameter_count: int | None = None,
        layer_count: int | None = None,
        hidden_size: int | None = None,
        tokens_per_sample: int | None = None,
    ) -> WorkloadFeatures:
        """Take from the hardware what it says, and of the workload what the caller knows."""
        return cls(
            cuda=hardware.accelerator == "cuda",
            ranks=hardware.ranks,
            device_count=hardware.device_count,
            device_memory_bytes=hardware.device_memory_bytes,
            host_memory_bytes=hardware.host_memory_bytes,
            cpu_count=hardware.cpu_count,
            compute_capability=hardware.compute_capability,
            parameter_count=parameter_count,
            layer_count=layer_count,
            hidden_size=hidden_size,
            tokens_per_sample=tokens_per_sample,
        )

    def vector(self) -> NDArray[np.float32]:
        """Return the amounts, then whether each is known; shape (2 * FEATURE_COUNT,), float32, in [0, 1].

        An amount x reads log2(1 + x) / log2(1 + full scale), capped at 1, and 0 where it is not known.
        """
        amounts = np.zeros((2, FEATURE_COUNT), dtype=np.float32)
        for position, (name, full_scale) in enumerate(_FULL_SCALE.items()):
            amount = getattr(self, name)
            if amount is not None:
                amounts[0, position] = min(1.0, math.log2(1 + max(0.0, amount)) / math.log2(1 + full_scale))
                amounts[1, position] = 1.0
        return amounts.reshape(-1)


FEATURE_NAMES: tuple[str, ...] = tuple(field.name for field in fields(WorkloadFeatures))
"""The order of `WorkloadFeatures.vector`."""
FEATURE_COUNT = len(FEATURE_NAMES)
