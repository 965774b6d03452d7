"""Which clusters can train a model on so many tokens, how fast, and by which configuration: a search with the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.errors import ResourceError, WorkloadError
from autotune.performance import Coefficients, Configurations, estimate
from autotune.performance.arrays import Array
from autotune.performance.configurations import CHECKPOINTING, PRECISIONS
from autotune.performance.model import peak_flops
from autotune.planning import hardware as clusters
from autotune.planning.hardware import Hardware
from autotune.planning.models import Model
from autotune.planning.settings import usual_precision

DAY_S = 86_400.0
DEVICES = (
    "V100-SXM2/3-32GB", "A100-SXM-40GB", "A100-SXM-80GB", "L40S", "H100-SXM-80GB", "H200-SXM-141GB", "MI300X",
    "B200-SXM-180GB",
)  # fmt: skip
"""What is tried where no device is named: what is mostly rented."""
COUNTS = tuple(2**power for power in range(15))
"""Up to 16,384 devices: Llama 3's (Dubey et al. 2024, section 3.3.1)."""
SLOW_GBPS = 100.0
"""The second network that is tried: one 100 Gb/s adapter a node, as plain cloud machines have."""
GLOBAL_BATCH_TOKENS = ((1e9, 0.5e6), (5e9, 1e6), (50e9, 2e6), (float("inf"), 4e6))
"""Parameters below, tokens per step: GPT-3's (Brown et al. 2020, Table 2.1), to powers of two in samples."""
DATA_PER_PARAMETER = 20.0
"""Tokens per parameter of compute-optimal training (Hoffmann et al. 2022, section 3)."""
PLACEMENTS: tuple[tuple[int, str], ...] = (
    (0, "none"), (1, "none"), (1, "optimizer"), (2, "none"), (2, "optimizer"),
    (3, "none"), (3, "optimizer"), (3, "both"), (3, "NVMe"),
)  # fmt: skip
_OFFLOADS = {"none": (0.0, 0.0), "optimizer": (1.0, 0.0), "both": (1.0, 1.0), "NVMe": (2.0, 2.0)}
_TENSOR = (1, 2, 4, 8, 16)
_PIPELINE = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 16, 18, 20, 21, 24, 28, 32, 35, 40, 42, 48, 56, 64)
_MICRO = (1, 2, 4, 8, 16, 32, 64)
_SIMPLER = 0.005
"""Of the throughput: so much each further feature must gain, or the simpler configuration stays."""
WORTHWHILE = 1.5
"""How much faster a cluster of twice the devices must be; the list of one device's clusters ends where it isn't."""
SPARE = 0.1
"""Of the memory must stay free: nvidia-smi's readings are predicted with 9 % error (docs/performance_model.md)."""
MEMBERS = 64
"""Of the ensemble that the range of days comes from."""
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One cluster, or one way to train on it, with what it comes to."""

    hardware: Hardware
    stage: int
    offload: str
    tensor_parallel: int
    pipeline_parallel: int
    micro_batch: int
    accumulation: int
    checkpointing: str
    days: float
    """Of uninterrupted training."""
    days_low: float
    """10 and 90 % of an ensemble drawn from the coefficients' priors."""
    days_high: float
    utilization: float
    tokens_per_second: float
    batch_tokens: float
    needed_bytes: float
    capacity_bytes: float

    @property
    def device_days(self) -> float:
        return self.days * self.hardware.devices

    @property
    def in_words(self) -> str:
        """Return the configuration: 'ZeRO-1, TP 8, PP 4, batch 1 x 12, full checkpointing'."""
        offload = {"optimizer": "optimizer on the host", "both": "optimizer and parameters on the host",
                   "NVMe": "optimizer and parameters on NVMe"}  # fmt: skip
        parts = [f"ZeRO-{self.stage}" if self.stage else "no ZeRO"]
        if self.offload != "none":
            parts.append(offload[self.offload])
        if self.tensor_parallel > 1:
            parts.append(f"TP {self.tensor_parallel}")
        if self.pipeline_parallel > 1:
            parts.append(f"PP {self.pipeline_parallel}")
        parts.append(f"batch {self.micro_batch} x {self.accumulation}")
        if self.checkpointing != "none":
            parts.append(f"{self.checkpointing} checkpointing")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked, and what was found."""

    model: Model
    tokens: float
    days: float
    batch_tokens: float
    offers: tuple[Offer, ...]
    """Sorted: clusters by devices and days; ways to train on one cluster by days."""
    is_one_cluster: bool
    tried: tuple[str, ...]
    """Devices that were tried."""

    @property
    def pareto(self) -> tuple[Offer, ...]:
        """Return the offers that no other one beats in devices and days."""
        return tuple(
            one
            for one in self.offers
            if not any(
                other.hardware.devices <= one.hardware.devices and other.days < one.days for other in self.offers
            )
        )

    @property
    def flops(self) -> float:
        """Operations of the whole training, as MFU counts them."""
        return float(np.asarray(self.model.shape.model_flops)) / self.model.sequence * self.tokens


def plan(
    model: Model,
    *,
    tokens: float,
    hardware: str | None = None,
    days: float,
    batch_tokens: float | None = None,
    devices_per_node: int | None = None,
    network_gbps: float | None = None,
    host_memory_gib: float | None = None,
) -> Plan:
    """Search clusters and configurations.

    Args:
        model: what is trained.
        tokens: all of them.
        hardware: a device with a count: ways to train on that one cluster; a device alone: clusters of it; None:
            clusters of `DEVICES`.
        days: clusters that need longer are left out.
        batch_tokens: of one optimizer step; by default by the model's size.
        devices_per_node: by default the table's.
        network_gbps: of one node; by default the table's, and 100 too where nothing is named.
        host_memory_gib: of one node.

    Raises:
        WorkloadError: when a number is not above 0.
        ResourceError: when the hardware is not known, or is a CPU.
    """
    for name, value in (("tokens", tokens), ("days", days), ("global-batch", batch_tokens)):
        if value is not None and not 0 < value < float("inf"):
            raise WorkloadError(f"{name}: got {value:g}; it must be above 0")
    if hardware is not None and hardware.lower().partition(":")[0].strip() == clusters.CPU:
        raise ResourceError("hardware: got cpu; plan compares clusters of GPUs, and estimate takes this machine")
    samples = samples_per_step(model, batch_tokens)
    options = {"devices_per_node": devices_per_node, "host_memory_gib": host_memory_gib}
    if hardware is not None and clusters.has_count(hardware):
        place = clusters.hardware(hardware, network_gbps=network_gbps, **options)  # type: ignore[arg-type]
        found = ways(model, place, tokens=tokens, samples=samples)
        names: tuple[str, ...] = (place.cluster.device.name,)
    else:
        names = DEVICES if hardware is None else (clusters.device_name(hardware),)
        found = []
        for name in names:
            for gbps in _networks(name, network_gbps, is_named=hardware is not None):
                places = _clusters(name, gbps, options)
                found += _enough(model, places, tokens=tokens, days=days, samples=samples, only_first=hardware is None)
        found.sort(key=lambda offer: (offer.hardware.devices, offer.days))
    return Plan(
        model=model,
        tokens=tokens,
        days=days,
        batch_tokens=samples * model.sequence,
        offers=tuple(found),
        is_one_cluster=hardware is not None and clusters.has_count(hardware),
        tried=names,
    )


def samples_per_step(model: Model, batch_tokens: float | None = None) -> float:
    """Return the samples of one optimizer step, a power of two: of so many tokens, by default by the model's size."""
    batch = batch_tokens or next(amount for limit, amount in GLOBAL_BATCH_TOKENS if model.parameters < limit)
    return float(2.0 ** max(round(np.log2(max(batch / model.sequence, 1.0))), 0))


def ways(model: Model, hardware: Hardware, *, tokens: float, samples: float) -> list[Offer]:
    """Return ways to train on one cluster, the fastest first, each with less memory than all faster ones.

    Of each stage, offload and kind of parallelism the best is looked at; the fastest without model parallelism stays in
    any case, since it is the one that needs no change of the model.

    Args:
        model: what is trained.
        hardware: on what.
        tokens: all of them.
        samples: of one optimizer step, at most.
    """
    searched = candidates(model, hardware, samples=samples)
    if searched is None:
        return []
    scores = _scores(model, hardware, searched)
    kinds: dict[tuple[float, ...], int] = {}
    for row in np.argsort(-scores):
        if not np.isfinite(scores[row]):
            break
        kind = tuple(
            float(np.asarray(getattr(searched, name))[row])
            for name in ("stage", "offload_optimizer", "offload_parameters")
        )
        parallel = tuple(float(np.asarray(getattr(searched, f"{n}_parallel"))[row] > 1) for n in ("tensor", "pipeline"))
        kinds.setdefault((*kind, *parallel), int(row))
    offers = [_offer(model, hardware, searched, row, tokens) for row in kinds.values()]
    plain = next((offer for offer in offers if offer.tensor_parallel == offer.pipeline_parallel == 1), None)
    return [
        offer
        for place, offer in enumerate(offers)
        if offer is plain or all(offer.needed_bytes < faster.needed_bytes for faster in offers[:place])
    ]


def best(model: Model, hardware: Hardware, *, tokens: float, samples: float) -> Offer | None:
    """Return the fastest way to train on one cluster; None where nothing fits."""
    searched = candidates(model, hardware, samples=samples)
    if searched is None:
        return None
    scores = _scores(model, hardware, searched)
    row = int(np.argmax(scores))
    return _offer(model, hardware, searched, row, tokens) if np.isfinite(scores[row]) else None


def candidates(model: Model, hardware: Hardware, *, samples: float) -> Configurations | None:
    """Return what is tried on a cluster: stage, offload, tensor and pipeline parallelism, micro-batch, checkpointing.

    Tensor parallelism stays within a node and divides the heads, pipeline stages divide the layers, and stages above 1
    go without a pipeline (deepspeed/runtime/pipe/engine.py). Accumulation fills the global batch.
    """
    devices, per_node = hardware.devices, hardware.devices_per_node
    layers, heads = float(np.asarray(model.shape.layers)), float(np.asarray(model.shape.heads))
    rows = [
        (stage, offload, tensor, pipeline, micro, checkpointing, samples // (micro * devices // (tensor * pipeline)))
        for tensor, pipeline, micro, (stage, offload), checkpointing in itertools.product(
            (t for t in _TENSOR if per_node % t == 0 and heads % t == 0),
            (p for p in _PIPELINE if layers % p == 0),
            _MICRO,
            PLACEMENTS,
            range(len(CHECKPOINTING)),
        )
        if devices % (tensor * pipeline) == 0
        and micro * devices // (tensor * pipeline) <= samples
        and not (pipeline > 1 and (stage > 1 or offload != "none"))
        and not (stage > 0 and devices == tensor * pipeline and offload == "none")
    ]
    if not rows:
        return None
    stage, offload, tensor, pipeline, micro, checkpointing, accumulation = zip(*rows, strict=True)
    places = np.array([_OFFLOADS[word] for word in offload])
    single = np.asarray(pipeline) == 1
    return Configurations(
        stage=np.asarray(stage, dtype=float),
        offload_optimizer=places[:, 0],
        offload_parameters=places[:, 1],
        tensor_parallel=np.asarray(tensor, dtype=float),
        tensor_sequence_parallel=(np.asarray(tensor) > 1) * 1.0,
        pipeline_parallel=np.asarray(pipeline, dtype=float),
        micro_batch=np.asarray(micro, dtype=float),
        accumulation=np.asarray(accumulation, dtype=float),
        checkpointing=np.asarray(checkpointing, dtype=float),
        precision=float(PRECISIONS.index(usual_precision(hardware))),
        overlap_comm=single * 1.0,
        flash_attention=1.0,
    )


def _scores(model: Model, hardware: Hardware, searched: Configurations) -> Array:
    """Return samples per second, less a little for each feature; minus infinity where memory isn't enough."""
    found = estimate(model.shape, hardware.cluster, searched)
    memory = found.memory
    fits = (memory.margin_bytes >= SPARE * memory.capacity_bytes) & (memory.host_margin_bytes >= 0)
    features = (
        (np.asarray(searched.tensor_parallel) > 1) * 1.0
        + (np.asarray(searched.pipeline_parallel) > 1)
        + np.asarray(searched.offload_optimizer)
        + np.asarray(searched.offload_parameters)
        + (np.asarray(searched.checkpointing) > 0)
        + np.asarray(searched.stage) / 3.0
    )
    return np.where(fits, found.samples_per_second * (1.0 - _SIMPLER * features), -np.inf)


def _offer(model: Model, hardware: Hardware, searched: Configurations, row: int, tokens: float) -> Offer:
    one = searched[slice(row, row + 1)]

    def number(name: str) -> float:
        return float(np.asarray(getattr(one, name)).reshape(-1)[0])

    found = estimate(model.shape, hardware.cluster, one)
    ensemble = Coefficients.sample(np.random.default_rng(SEED), MEMBERS)
    rates = estimate(model.shape, hardware.cluster, one, ensemble).tokens_per_second
    slow, fast = np.quantile(rates, [0.1, 0.9])
    rate = float(found.tokens_per_second[0])
    offload = next(word for word, places in _OFFLOADS.items()
                   if places == (number("offload_optimizer"), number("offload_parameters")))  # fmt: skip
    return Offer(
        hardware=hardware,
        stage=int(number("stage")),
        offload=offload,
        tensor_parallel=int(number("tensor_parallel")),
        pipeline_parallel=int(number("pipeline_parallel")),
        micro_batch=int(number("micro_batch")),
        accumulation=int(number("accumulation")),
        checkpointing=CHECKPOINTING[int(number("checkpointing"))],
        days=tokens / rate / DAY_S,
        days_low=tokens / float(fast) / DAY_S,
        days_high=tokens / float(slow) / DAY_S,
        utilization=float(found.utilization[0]),
        tokens_per_second=rate,
        batch_tokens=float(np.asarray(found.convergence.batch_samples).reshape(-1)[0]) * model.sequence,
        needed_bytes=float((found.memory.capacity_bytes - found.memory.margin_bytes)[0]),
        capacity_bytes=float(found.memory.capacity_bytes[0]),
    )


def _enough(
    model: Model, places: Iterator[Hardware], *, tokens: float, days: float, samples: float, only_first: bool
) -> list[Offer]:
    """Return the clusters of one kind that make it in time; with `only_first` the smallest alone."""
    found: list[Offer] = []
    for place in places:
        if _bound_days(model, place, tokens) > days:
            continue
        offer = best(model, place, tokens=tokens, samples=samples)
        if offer is None or offer.days > days:
            continue
        if found and offer.days * WORTHWHILE > found[-1].days:
            break
        found.append(offer)
        if only_first:
            break
    return found


def _bound_days(model: Model, place: Hardware, tokens: float) -> float:
    """Return days at the full peak: what no configuration is faster than."""
    precision = Configurations(precision=float(PRECISIONS.index(usual_precision(place))))
    peak = float(peak_flops(place.cluster, precision)) * place.devices
    return float(np.asarray(model.shape.model_flops)) / model.sequence * tokens / peak / DAY_S


def _clusters(name: str, gbps: float | None, options: dict[str, float | int | None]) -> Iterator[Hardware]:
    for count in COUNTS:
        made = clusters.hardware(f"{count} x {name}", network_gbps=gbps, **options)  # type: ignore[arg-type]
        if gbps is None or made.nodes > 1:
            yield made


def _networks(name: str, wished: float | None, *, is_named: bool) -> Sequence[float | None]:
    usual = clusters.hardware(name).gbps
    return (wished,) if wished is not None or is_named or usual <= SLOW_GBPS else (None, SLOW_GBPS)
