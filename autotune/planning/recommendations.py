"""A table of clusters by model size that is often met on the web, and what the model makes of it."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.planning.hardware import hardware
from autotune.planning.models import Model, model
from autotune.planning.plans import DATA_PER_PARAMETER, Offer, best, samples_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One end of a row of the table."""

    size: str
    devices: int
    device: str
    """The kind with the memory that the table asks for."""
    gbps: float
    """Of a node's network."""
    says: str


RECOMMENDED: tuple[Recommendation, ...] = (
    Recommendation(size="1B", devices=4, device="V100-32GB", gbps=25.0, says="1-10B: 4 to 32 GPUs of 32 GB, 25 Gb/s"),
    Recommendation(size="10B", devices=32, device="V100-32GB", gbps=25.0, says="1-10B: 4 to 32 GPUs of 32 GB, 25 Gb/s"),
    Recommendation(
        size="10B", devices=16, device="A100-40GB", gbps=100.0, says="10-100B: 16 to 64 GPUs of 40 GB, 100 Gb/s"
    ),
    Recommendation(
        size="100B", devices=64, device="A100-40GB", gbps=100.0, says="10-100B: 16 to 64 GPUs of 40 GB, 100 Gb/s"
    ),
    Recommendation(
        size="1T", devices=256, device="A100-80GB", gbps=400.0, says="1T: 256 GPUs of 80 GB and NVMe, 400 Gb/s"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A recommendation, with the fastest way to train there on 20 tokens per parameter."""

    recommendation: Recommendation
    model: Model
    offer: Offer | None
    """None where nothing fits."""
    offer_at_full_network: Offer | None
    """The same cluster with the network that is usual for it."""

    @property
    def in_words(self) -> str:
        """Return a sentence."""
        what = f"{self.recommendation.size} on {self.recommendation.devices} {self.recommendation.device}"
        if self.offer is None:
            return f"{what}: it doesn't fit"
        tokens = f"{DATA_PER_PARAMETER * self.model.parameters / 1e9:,.0f}B tokens"
        usual = self.offer_at_full_network
        gain = (
            f", {usual.days:,.0f} at {usual.hardware.gbps:,.0f} Gb/s"
            if usual is not None and usual.hardware.nodes > 1
            else ""
        )
        return f"{what}: {tokens} take {self.offer.days:,.0f} days{gain} ({self.offer.in_words})"


def judged() -> tuple[Judged, ...]:
    """Return every end of the table with what the model makes of it."""
    return tuple(_judged(one) for one in RECOMMENDED)


def _judged(one: Recommendation) -> Judged:
    asked = model(one.size)
    tokens = DATA_PER_PARAMETER * asked.parameters

    def offer(gbps: float | None) -> Offer | None:
        place = hardware(f"{one.devices} x {one.device}", network_gbps=gbps, devices_per_node=min(8, one.devices))
        return best(asked, place, tokens=tokens, samples=samples_per_step(asked))

    return Judged(recommendation=one, model=asked, offer=offer(one.gbps), offer_at_full_network=offer(None))
