"""What is tuned, as far as it is known before a trial: the model, the machines, and what trials don't say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.performance.arrays import Numbers
from autotune.performance.devices import Cluster
from autotune.performance.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A workload on its hardware."""

    shape: ModelShape
    cluster: Cluster
    fixed: Mapping[str, Numbers] = field(default_factory=dict)
    """Fields of `Configurations` that no point of the search space says, such as `flash_attention`."""
