"""One claim with its verdict, and what the claims are worked out with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from autotune.performance import Configurations, Estimate, ModelShape, estimate
from autotune.performance.arrays import Array, Numbers
from autotune.performance.communication import Traffic
from autotune.planning.hardware import Hardware

GIGA = 1e9


class Verdict(StrEnum):
    """What is to be made of a claim."""

    HOLDS = "holds"
    LIMIT = "a limit, not what one gets"
    DEPENDS = "possible, but no constant"
    WRONG = "wrong"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim, judged."""

    said: str
    found: str
    """What the model says, with its figures."""
    verdict: Verdict
    why: str
    figures: Mapping[str, float]
    """What `found` is made of, by name."""


def estimated(shape: ModelShape, place: Hardware, **fields: Numbers | Sequence[float]) -> Estimate:
    """Return estimates in bf16 with flash attention, unless fields say otherwise."""
    usual: dict[str, Numbers | Sequence[float]] = {"precision": 2.0, "flash_attention": 1.0}
    values = {name: np.atleast_1d(np.asarray(value, dtype=float)) for name, value in (usual | fields).items()}
    return estimate(shape, place.cluster, Configurations(**values))


def needed_bytes(found: Estimate) -> Array:
    """Return what a device needs at the peak, everything counted."""
    return np.asarray(found.memory.capacity_bytes - found.memory.margin_bytes)


def sent_bytes(traffic: Traffic) -> Array:
    """Return what one rank sends in a step, inside the node and out of it."""
    return np.asarray(traffic.inside_bytes + traffic.between_bytes)
