"""What the memory filter refused in a study, as it is kept there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune import sizes
from autotune.trials import Point

ATTRIBUTE = "refusals"
KEPT = 200
"""So many of the last are kept with their points; of the others, how many there were and what they need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A point that was refused without a trial."""

    point: Point
    needed_bytes: float
    """Of a device, by the most hopeful view of the calibrated model; more is likely."""
    capacity_bytes: float

    @property
    def reason(self) -> str:
        """Return why, in a sentence."""
        needed, there = sizes.text(self.needed_bytes), sizes.text(self.capacity_bytes)
        return f"it needs {needed} or more of a device by the calibrated model, and there are {there}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """All of a study."""

    count: int
    least_bytes: float
    most_bytes: float
    """What the most modest and the greediest of them need, or more."""
    capacity_bytes: float
    last: tuple[Refusal, ...]

    @classmethod
    def of(cls, refusals: Sequence[Refusal]) -> Refusals:
        """Sum up one or more."""
        needs = [refusal.needed_bytes for refusal in refusals]
        return cls(
            count=len(refusals),
            least_bytes=min(needs),
            most_bytes=max(needs),
            capacity_bytes=refusals[-1].capacity_bytes,
            last=tuple(refusals[-KEPT:]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Refusals:
        """Read what `to_json` made."""
        return cls(**{**data, "last": tuple(Refusal(**each) for each in data["last"])})
