"""Memory and step time of one model on one cluster, by ZeRO stage and offload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autotune.performance import Coefficients, Configurations, estimate
from autotune.performance.arrays import Array
from autotune.planning.hardware import Hardware
from autotune.planning.models import Model
from autotune.planning.settings import Settings

GIB = 2.0**30
GRID: tuple[tuple[int, str], ...] = (
    (0, "none"), (1, "none"), (1, "optimizer"), (2, "none"), (2, "optimizer"),
    (3, "none"), (3, "optimizer"), (3, "both"),
)  # fmt: skip
"""Stage and offload: the optimizer can leave from stage 1 on, parameters at stage 3.

See deepspeed/runtime/zero/config.py.
"""
MICRO_BATCHES = tuple(2.0**power for power in range(11))
BARELY, TIGHTLY = 0.05, 0.15
"""Shares of the device's memory that are left: less than the first is within the model's error."""
MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "other")
TIME_PARTS = ("computing", "recomputing", "communication", "optimizer", "offload", "bubble", "launching")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One stage with one kind of offload. Bytes are of the fullest device; seconds of one optimizer step."""

    stage: int
    offload: str
    is_own: bool
    """Whether it is what the user's file says."""
    memory_bytes: dict[str, float]
    """By part, as in `MEMORY_PARTS`; they add up to `needed_bytes`."""
    needed_bytes: float
    capacity_bytes: float
    host_bytes: float
    """Of one node."""
    host_capacity_bytes: float
    time_s: dict[str, float]
    """By part, as in `TIME_PARTS`, what others hide left out; they add up to `step_time_s`."""
    step_time_s: float
    samples_per_second: float
    tokens_per_second: float
    model_tflops: float
    """Per device."""
    utilization: float
    """MFU: the model's operations, without recomputation, over the device's peak."""
    largest_micro_batch: int
    """Of powers of two; 0 where none fits."""

    @property
    def margin_bytes(self) -> float:
        return self.capacity_bytes - self.needed_bytes

    @property
    def host_margin_bytes(self) -> float:
        return self.host_capacity_bytes - self.host_bytes

    @property
    def fits(self) -> bool:
        return self.margin_bytes >= 0 and self.host_margin_bytes >= 0

    def verdict(self, *, unit: float = GIB) -> str:
        """Say whether it fits, in words: 'yes, 41.2 left', 'barely, 1.3 left', 'no, 26.1 short', 'host 300 short'."""
        if self.margin_bytes < 0:
            return f"no, {_round(-self.margin_bytes / unit)} short"
        if self.host_margin_bytes < 0:
            return f"host {_round(-self.host_margin_bytes / unit)} short"
        share = self.margin_bytes / self.capacity_bytes
        word = "barely" if share < BARELY else "tightly" if share < TIGHTLY else "yes"
        return f"{word}, {_round(self.margin_bytes / unit)} left"

    @property
    def where_time_goes(self) -> list[tuple[str, float]]:
        """Return the parts that take at least a hundredth of a step, the longest first, as shares."""
        shares = [(name, seconds / self.step_time_s) for name, seconds in self.time_s.items()]
        return sorted((part for part in shares if part[1] >= 0.01), key=lambda part: -part[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What was asked, and the rows of `GRID` that apply."""

    model: Model
    hardware: Hardware
    settings: Settings
    rows: tuple[Row, ...]

    @property
    def fitting(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.fits)

    @property
    def fastest(self) -> Row | None:
        """Return the row with the highest throughput among those that fit."""
        return max(self.fitting, key=lambda row: row.samples_per_second, default=None)

    @property
    def own(self) -> Row | None:
        return next((row for row in self.rows if row.is_own), None)


def estimates(
    model: Model, hardware: Hardware, settings: Settings, coefficients: Coefficients | None = None
) -> Estimates:
    """Return memory and step time by stage and offload.

    With pipeline parallelism stages above 1 are left out: DeepSpeed's pipeline engine refuses them
    (deepspeed/runtime/pipe/engine.py).
    """
    staged = settings.number("pipeline_parallel") > 1
    grid = [cell for cell in GRID if not (staged and cell[0] > 1)]
    configurations = over_grid(settings, grid)
    found = estimate(model.shape, hardware.cluster, configurations, coefficients)
    fitting = [
        _fits(model, hardware, replace(configurations, micro_batch=micro), coefficients) for micro in MICRO_BATCHES
    ]
    largest = np.max(np.stack(fitting) * np.asarray(MICRO_BATCHES)[:, None], axis=0)
    count = len(grid)

    def column(values: Any) -> Array:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), (count,))

    memory, time = found.memory, found.time
    needed = column(memory.capacity_bytes - memory.margin_bytes)
    working = needed - column(memory.steady_bytes) - column(memory.context_bytes)
    activations = np.minimum(column(memory.activations_bytes) + column(memory.logits_bytes), working)
    parts = {
        "parameters": column(memory.parameters_bytes),
        "gradients": column(memory.gradients_bytes),
        "optimizer": column(memory.optimizer_bytes),
        "activations": activations,
        "other": working - activations + column(memory.context_bytes),
    }
    seconds = {
        "computing": column(time.forward_s + time.backward_s),
        "recomputing": column(time.recomputation_s),
        "communication": column(time.communication_s),
        "optimizer": column(time.optimizer_s),
        "offload": column(time.offload_s),
        "bubble": column(time.bubble_s),
        "launching": column(time.host_s),
    }
    rows = tuple(
        Row(
            stage=stage,
            offload=offload,
            is_own=(stage, offload) == settings.own,
            memory_bytes={name: float(values[place]) for name, values in parts.items()},
            needed_bytes=float(needed[place]),
            capacity_bytes=float(column(memory.capacity_bytes)[place]),
            host_bytes=float(column(memory.host_bytes)[place]),
            host_capacity_bytes=float(np.asarray(hardware.cluster.host_memory_bytes)),
            time_s={name: float(values[place]) for name, values in seconds.items()},
            step_time_s=float(column(time.step_time_s)[place]),
            samples_per_second=float(column(found.samples_per_second)[place]),
            tokens_per_second=float(column(found.tokens_per_second)[place]),
            model_tflops=float(column(found.model_tflops)[place]),
            utilization=float(column(found.utilization)[place]),
            largest_micro_batch=int(largest[place]),
        )
        for place, (stage, offload) in enumerate(grid)
    )
    return Estimates(model=model, hardware=hardware, settings=settings, rows=rows)


def over_grid(settings: Settings, grid: Sequence[tuple[int, str]]) -> Configurations:
    """Return one configuration for each stage and offload, the rest as the settings have it."""
    stage = np.array([float(stage) for stage, _ in grid])
    place = max(1.0, settings.number("offload_optimizer"))
    parameter_place = max(1.0, settings.number("offload_parameters"))
    changed = replace(
        settings.configuration,
        stage=stage,
        offload_optimizer=np.array([place * (offload != "none") for _, offload in grid]),
        offload_parameters=np.array([parameter_place * (offload == "both") for _, offload in grid]),
    )
    if settings.overlap_follows_stage:
        changed = replace(changed, overlap_comm=(stage == 3) * 1.0)
    return changed


def _fits(model: Model, hardware: Hardware, configurations: Configurations, coefficients: Coefficients | None) -> Array:
    found = estimate(model.shape, hardware.cluster, configurations, coefficients).memory
    return np.broadcast_to(~np.asarray(found.out_of_memory), np.shape(configurations.stage))


def _round(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 9.95 else f"{amount:.1f}"
