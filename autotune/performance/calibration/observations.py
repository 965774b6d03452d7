"""What trials tell of the coefficients: one table of numbers per kind of observation, and the model's word on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune import dotted
from autotune.performance.arrays import Array, Numbers
from autotune.performance.calibration.parameters import Parameters
from autotune.performance.configurations import Configurations
from autotune.performance.devices import Cluster
from autotune.performance.model import Estimate, estimate
from autotune.performance.shape import ModelShape
from autotune.trials import FailureKind, Measurement, Trial

LEVELS: Mapping[str, float] = {
    "step_time": 0.15,
    "forward": 0.15,
    "backward": 0.15,
    "optimizer": 0.3,
    "communication": 0.7,
    "memory": 0.05,
    "loss": 0.25,
}
"""Kinds that are measured, all as logarithms, and the noise expected of each before trials tell.

A median step time differs by 2 to 5 % between runs of one configuration; the formulas are no better than 10 %.
Phases are observed over the step time (rank 0's means over the medians of the slowest), so that a machine that is slow
for a while isn't counted twice. A collective's time holds the wait for the slower rank, so it tells little.
"""
SMALLEST_DROP = 0.01
"""Of the held-out loss before: what training changed less isn't told from noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Trials as the fit reads them; arrays have shape (trials,), NaN where a trial doesn't tell."""

    configurations: Configurations
    measured: Mapping[str, Array]
    """Natural logarithms by kind of `LEVELS`: of s, of a phase's share of the step, of bytes, of the share of the
    loss before that training took away."""
    allocated: Array
    """Boolean: the memory measured is that of torch's allocator; else it is the process's, context included."""
    optimizer_steps: Array
    """Steps until the held-out loss was taken."""
    ran_out_of_memory: Array
    """1: more was needed than the device has; 0: less; NaN: not known."""
    diverged: Array
    """1, 0 or NaN likewise."""

    def __len__(self) -> int:
        """How many trials there are."""
        return len(self.diverged)

    @classmethod
    def of(cls, trials: Sequence[Trial], **fixed: Numbers) -> Observations:
        """Return what finished trials tell; of failures, only out of memory and divergence do.

        Args:
            trials: of one workload on one kind of hardware.
            fixed: fields of `Configurations` that trials don't say, such as `flash_attention=1.0`.
        """
        told = [trial for trial in trials if _tells(trial)]
        rows = [_row(trial.measurement) for trial in told]
        kinds = [trial.failure.kind if trial.failure else None for trial in told]
        out = [kind is FailureKind.OUT_OF_MEMORY for kind in kinds]
        return cls(
            configurations=configurations_of(told, **fixed),
            measured={kind: np.array([row.get(kind, np.nan) for row in rows]) for kind in LEVELS},
            allocated=np.array([bool(t.measurement and t.measurement.memory_kind != "resident") for t in told]),
            optimizer_steps=np.array([row.get("optimizer_steps", np.nan) for row in rows]),
            ran_out_of_memory=np.array(out, dtype=np.float64),
            diverged=np.where(out, np.nan, [float(kind is FailureKind.DIVERGED) for kind in kinds]),
        )


def configurations_of(trials: Sequence[Trial], **fixed: Numbers) -> Configurations:
    """Return trials' configurations: the whole of each, and its point where that is all that was kept."""
    points = []
    for trial in trials:
        flat = dotted.leaves(trial.ds_config) if trial.ds_config else dict(trial.point)
        points.append({"activation_checkpointing": trial.activation_checkpointing, **flat})
    return Configurations.from_points(points, **fixed)


def _tells(trial: Trial) -> bool:
    told = (FailureKind.OUT_OF_MEMORY, FailureKind.DIVERGED)
    return trial.measurement is not None or (trial.failure is not None and trial.failure.kind in told)


def _row(measurement: Measurement | None) -> dict[str, float]:
    if measurement is None:
        return {}
    step_s = measurement.step_time_s
    before, after = measurement.held_out_loss_before, measurement.held_out_loss_after
    found: dict[str, float | None] = {
        "step_time": step_s,
        "forward": _over(measurement.forward_s, step_s),
        "backward": _over(measurement.backward_s, step_s),
        "optimizer": _over(measurement.optimizer_s, step_s),
        "communication": _over(measurement.communication_s, step_s),
        "memory": float(max(measurement.peak_memory_bytes, default=0)),
        "loss": max((before - after) / before, SMALLEST_DROP) if before > 0 else None,
    }
    row = {kind: float(np.log(value)) for kind, value in found.items() if value is not None and value > 0}
    return row | {"optimizer_steps": max(measurement.convergence_time_s / step_s, 1.0)}


def _over(phase_s: float | None, step_s: float) -> float | None:
    return None if phase_s is None else phase_s / step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The model's word on observations; arrays have shape (members, trials), or (trials,)."""

    measured: Mapping[str, Array]
    needed_bytes: Array
    """On one device, context included."""
    capacity_bytes: Array
    divergence_probability: Array


def predict(shape: ModelShape, cluster: Cluster, observations: Observations, parameters: Parameters) -> Predictions:
    """Return what the model expects of each trial, in the units of `Observations`."""
    found = estimate(shape, parameters.on(cluster), observations.configurations, parameters.coefficients)
    memory = found.memory
    needed = parameters.needed_bytes(memory, cluster)
    seen = np.where(observations.allocated, memory.peak_allocated_bytes, needed)
    return Predictions(
        measured={
            **_log_phases(shape, observations.configurations, found, parameters),
            "memory": np.log(seen),
            "loss": np.log(parameters.loss_drop(shape, found.convergence, observations.optimizer_steps)),
        },
        needed_bytes=needed,
        capacity_bytes=memory.capacity_bytes,
        divergence_probability=found.convergence.divergence_probability,
    )


def _log_phases(
    shape: ModelShape, configurations: Configurations, found: Estimate, parameters: Parameters
) -> dict[str, Array]:
    """Return step time and phases as DeepSpeed's timers cut them.

    The host's time is split over them by where it is spent: backward does twice a layer's launches and the gradients'
    buckets and hooks, the step its own, stage 3's hooks half in each pass.
    """
    c, time, traffic = parameters.coefficients, found.time, found.communication
    stage3 = np.asarray(configurations.stage) == 3
    at_step = c.host_step_s + np.where(stage3, traffic.persistent_tensors * c.host_persistent_s, 0.0)
    at_step = np.minimum(at_step, time.host_s)
    launches = np.asarray(configurations.accumulation) * shape.layers * c.host_layer_s
    hooks = np.where(stage3, configurations.accumulation * traffic.gather_calls * c.host_gather_s, 0.0) / 2.0
    at_forward = np.minimum(launches + hooks, time.host_s - at_step)
    gathers = time.parameter_communication_s / 2.0
    forward = time.forward_s + at_forward + gathers
    optimizer = time.optimizer_s + time.offload_s + time.updated_communication_s + at_step
    raw = sum(np.asarray(part.seconds) for part in traffic.parts)
    phases = {
        "forward": forward,
        "backward": np.maximum(time.step_time_s - forward - optimizer, 1e-9),
        "optimizer": optimizer,
        "communication": np.maximum(raw, 1e-9),
    }
    shares = {kind: np.log(phase / time.step_time_s) for kind, phase in phases.items()}
    return {"step_time": np.log(time.step_time_s), **shares}
