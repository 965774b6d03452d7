"""The whole model: (shape, cluster, configurations, coefficients) -> memory, step time, communication, convergence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autotune.performance.arrays import Array
from autotune.performance.coefficients import Coefficients
from autotune.performance.communication import Communication, communication
from autotune.performance.configurations import Configurations
from autotune.performance.convergence import Convergence, convergence
from autotune.performance.devices import Cluster
from autotune.performance.memory import Memory, memory
from autotune.performance.placement import Placement
from autotune.performance.shape import ModelShape
from autotune.performance.step_time import StepTime, step_time

TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the model says of each configuration; arrays broadcast to (..., configurations)."""

    memory: Memory
    time: StepTime
    communication: Communication
    convergence: Convergence
    samples_per_second: Array
    tokens_per_second: Array
    model_tflops: Array
    """Per device, by the model's own operations (as MFU counts)."""
    hardware_tflops: Array
    """Per device, with recomputation (as HFU counts)."""
    utilization: Array
    """Model operations over the device's peak in the precision of the matrices (MFU)."""
    progress_per_second: Array
    """Samples per second x progress per sample: Pollux's goodput, relative to very small batches."""


def estimate(
    shape: ModelShape,
    cluster: Cluster,
    configurations: Configurations,
    coefficients: Coefficients | None = None,
) -> Estimate:
    """Return memory, step time, communication and convergence of each configuration.

    One configuration, a million, or an ensemble of coefficients: the same formulas, broadcast. Shape and cluster may
    differ by configuration too (fields with one entry each). For many rows at once see `in_chunks`.

    Args:
        shape: of the model.
        cluster: what it trains on.
        configurations: one or many.
        coefficients: by default the priors' medians; with fields of shape (members, 1) results have shape
            (members, configurations).
    """
    c = coefficients or Coefficients.prior()
    placement = Placement.of(shape, cluster, configurations)
    needs = memory(shape, cluster, configurations, c, placement)
    traffic = communication(shape, cluster, configurations, c, placement)
    time = step_time(shape, cluster, configurations, c, placement, traffic)
    progress = convergence(shape, configurations, c, placement)
    rate = progress.batch_samples / time.step_time_s
    per_device = rate / cluster.devices
    model_tflops = per_device * shape.model_flops / TERA
    again = per_device * shape.recomputed_flops(configurations.checkpointing) / TERA
    return Estimate(
        memory=needs,
        time=time,
        communication=traffic,
        convergence=progress,
        samples_per_second=rate,
        tokens_per_second=rate * shape.sequence,
        model_tflops=model_tflops,
        hardware_tflops=model_tflops + again,
        utilization=model_tflops * TERA / peak_flops(cluster, configurations),
        progress_per_second=rate * progress.progress_per_sample,
    )


def peak_flops(cluster: Cluster, configurations: Configurations) -> Array:
    """Return the published peak of one device in each configuration's precision, flops/s."""
    device = cluster.device
    precision = np.asarray(configurations.precision)
    eight = np.where(np.asarray(device.fp8_flops) > 0, device.fp8_flops, device.half_flops)
    return np.where(precision == 0, device.fp32_flops, np.where(precision == 3, eight, device.half_flops))


def in_chunks(configurations: Configurations, rows: int = 8192) -> Iterator[Configurations]:
    """Yield configurations in pieces whose arrays stay in the processor's cache."""
    count = len(configurations)
    for begin in range(0, count, rows):
        yield configurations[begin : begin + rows]
