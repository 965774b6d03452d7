"""The time of one optimizer step by phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.performance.arrays import Array, smooth_maximum
from autotune.performance.coefficients import Coefficients
from autotune.performance.communication import Communication
from autotune.performance.configurations import Configurations
from autotune.performance.devices import Cluster, Device
from autotune.performance.placement import Placement
from autotune.performance.shape import ModelShape

CPU_TILES = 0.01
"""Tiles that keep one core busy over those of a GPU's hundred or so multiprocessors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step by phase, on the critical path: the phases add up to `step_time_s`.

    Each field broadcasts to (..., configurations).
    """

    forward_s: Array
    backward_s: Array
    """With the gradients' own forward, but without recomputation."""
    recomputation_s: Array
    bubble_s: Array
    """The pipeline's filling and draining."""
    host_s: Array
    """Launches, hooks and buckets that computing doesn't hide."""
    gradient_communication_s: Array
    """Exposed: what overlaps with computing is not in it. So for the next five."""
    parameter_communication_s: Array
    updated_communication_s: Array
    tensor_communication_s: Array
    pipeline_communication_s: Array
    sequence_communication_s: Array
    optimizer_s: Array
    offload_s: Array
    """Optimizer on the host or NVMe, and transfers over PCIe that computing doesn't hide."""
    step_time_s: Array

    @property
    def communication_s(self) -> Array:
        return (
            self.gradient_communication_s
            + self.parameter_communication_s
            + self.updated_communication_s
            + self.tensor_communication_s
            + self.pipeline_communication_s
            + self.sequence_communication_s
        )

    @property
    def compute_s(self) -> Array:
        return self.forward_s + self.backward_s + self.recomputation_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One layer and one micro-batch on one rank: device seconds of forward, backward, recomputation."""

    forward: Array
    backward: Array
    again: Array
    host_forward: Array
    host_backward: Array
    host_again: Array


def matmul_rate(device: Device, configurations: Configurations, c: Coefficients) -> Array:
    """Return the rate of large products of matrices in flops/s, by precision: measured where it was.

    fp8 where the device has it, else its half precision. A GPU's fp32 products run on ordinary cores, nearer to peak.
    """
    precision = np.asarray(configurations.precision)
    half = np.asarray(device.half_flops)
    eight = np.where(np.asarray(device.fp8_flops) > 0, device.fp8_flops, half)
    peak = np.where(precision == 0, device.fp32_flops, np.where(precision == 3, eight, half))
    measured = np.asarray(device.measured_fraction)
    fraction = np.where(np.isnan(measured), c.matmul_fraction_of_peak, measured) * c.matmul_efficiency
    ordinary = (precision == 0) & (np.asarray(device.is_cpu) == 0)
    return np.asarray(np.maximum(peak, 1.0) * np.where(ordinary, c.fp32_fraction_of_peak, fraction))


def step_time(
    shape: ModelShape,
    cluster: Cluster,
    configurations: Configurations,
    c: Coefficients,
    placement: Placement,
    traffic: Communication,
) -> StepTime:
    """Return the time of one step of each configuration."""
    accumulation = np.asarray(configurations.accumulation)
    stages = np.asarray(configurations.pipeline_parallel)
    layer = _layer(shape, cluster, configurations, c, traffic.gather_calls / shape.layers)
    head = _head(shape, cluster, configurations, c)
    power = np.where(np.asarray(cluster.device.is_cpu) > 0, 1.0, c.launch_overlap)
    device_layer = layer.forward + layer.backward + layer.again
    host_layer = layer.host_forward + layer.host_backward + layer.host_again
    full_layer = smooth_maximum(device_layer, host_layer, power)
    slowest = placement.stage_layers * full_layer + head
    whole = shape.layers * full_layer + head
    busy = accumulation * slowest
    bubble = np.where(stages > 1, (whole - slowest) / configurations.interleave, 0.0)

    repeats = accumulation * placement.stage_layers
    device_micro = placement.stage_layers * device_layer + head
    # Host time beyond what the device hides; computing keeps the device's own durations.
    host = busy - accumulation * device_micro
    host = host + c.host_step_s + traffic.buckets * c.host_bucket_s
    host = host + traffic.persistent_tensors * c.host_persistent_s * (np.asarray(configurations.stage) == 3)

    forward = repeats * layer.forward + accumulation * head / 3.0
    backward = repeats * layer.backward + accumulation * head * 2.0 / 3.0
    again = repeats * layer.again
    gradients, parameters, updated = _exposed(configurations, c, placement, traffic, backward + again, forward)
    optimizer, offload = _update(cluster, configurations, c, placement, backward)
    quantization = _quantization(cluster, configurations, c, placement)
    computing = forward + backward + again
    beside = smooth_maximum(computing, traffic.tensor.seconds, c.overlap_power) - computing
    tensor = np.where(np.asarray(configurations.overlap_tensor_comm) > 0, beside, traffic.tensor.seconds)
    passed = smooth_maximum(computing, traffic.pipeline.seconds, c.overlap_power) - computing
    pipeline = np.where(np.asarray(configurations.interleave) > 1, passed, traffic.pipeline.seconds)
    sent = gradients + parameters + quantization + updated
    total = (
        forward + backward + again + bubble + host + sent
        + tensor + pipeline + traffic.sequence.seconds
        + optimizer + offload
    )  # fmt: skip
    zero = np.zeros_like(total)
    return StepTime(
        forward_s=forward + zero,
        backward_s=backward + zero,
        recomputation_s=again + zero,
        bubble_s=bubble + zero,
        host_s=host + zero,
        gradient_communication_s=gradients + zero,
        parameter_communication_s=parameters + quantization + zero,
        updated_communication_s=updated + zero,
        tensor_communication_s=tensor + zero,
        pipeline_communication_s=pipeline + zero,
        sequence_communication_s=traffic.sequence.seconds + zero,
        optimizer_s=optimizer + zero,
        offload_s=offload + zero,
        step_time_s=total,
    )


def _layer(
    shape: ModelShape, cluster: Cluster, configurations: Configurations, c: Coefficients, gather_calls: Array
) -> _Pass:
    """Return one layer's passes: products of matrices at their rate, everything else at the memory's bandwidth.

    A roofline in two additive parts (Williams et al. 2009), since the kernels run one after the other. Products lose
    rate where they are narrow (h/t) or have few tiles (tokens x h/t), as NVIDIA's "Matrix Multiplication Background"
    describes by tiles and waves: x / (x + half). Backward does each product twice, but for frozen weights.
    """
    tensor = np.asarray(configurations.tensor_parallel)
    micro = np.asarray(configurations.micro_batch)
    sequence = np.asarray(configurations.sequence_parallel)
    value = configurations.value_bytes
    bandwidth = np.asarray(cluster.device.memory_bandwidth)
    tokens = shape.sequence * micro / sequence
    width = shape.hidden / tensor
    rate = matmul_rate(cluster.device, configurations, c) * _saturation(cluster.device, width, tokens, c)
    matrices = shape.layer_matrix_flops * micro / (tensor * sequence) / rate
    flash = np.asarray(configurations.flash_attention) > 0
    head_width = np.asarray(shape.hidden) / shape.heads
    half_rate = matmul_rate(cluster.device, _without_fp8(configurations), c)
    slowdown = np.where((head_width % 8.0 != 0) & ~flash, c.unaligned_slowdown, 1.0)
    products = np.where(flash, 0.5, 1.0) * shape.layer_attention_flops * micro / (tensor * sequence)
    attention = products / (half_rate * np.where(flash, c.flash_efficiency, c.attention_efficiency)) * slowdown
    shared = np.where(np.asarray(configurations.tensor_sequence_parallel) > 0, 1.0 / tensor, 1.0)
    passes = c.elementwise_passes * np.where(np.asarray(configurations.fused_kernels) > 0, c.fused_passes, 1.0)
    elementwise = passes * value * tokens * shape.hidden * (10.0 * shared + 24.0 / tensor) / 34.0 / bandwidth
    scores = np.where(flash, 0.0, c.score_passes * value * tokens * shape.sequence * shape.heads / tensor / bandwidth)
    scores = scores * slowdown * np.where(np.asarray(configurations.fused_kernels) > 0, c.fused_passes, 1.0)
    weights = value * shape.layer_parameters / tensor / bandwidth
    forward = matrices + attention + elementwise + scores + weights
    backward = matrices * (1.0 + shape.trainable_fraction) + 2.0 * (attention + elementwise + scores + weights)
    checkpointing = np.asarray(configurations.checkpointing)
    again = (
        np.where(checkpointing == 1, forward, np.where(checkpointing == 2, attention + scores, 0.0)) * c.recomputation
    )
    launch = c.host_layer_s * np.where(np.asarray(configurations.fused_kernels) > 0, c.fused_launches, 1.0)
    hooks = c.host_zero_layer_s * (np.asarray(configurations.stage) >= 1)
    fetches = 0.5 * gather_calls * c.host_gather_s * (np.asarray(configurations.stage) == 3)
    return _Pass(
        forward=forward,
        backward=backward,
        again=again,
        host_forward=launch + fetches,
        host_backward=launch + hooks + fetches,
        host_again=launch * (checkpointing == 1),
    )


def _saturation(device: Device, width: Array, tokens: Array, c: Coefficients) -> Array:
    """Return the share of its rate that a product reaches; a CPU's core needs one tile where a GPU needs a hundred."""
    area = tokens * width
    half_area = c.matmul_half_area * np.where(np.asarray(device.is_cpu) > 0, CPU_TILES, 1.0)
    return np.asarray(width / (width + c.matmul_half_width) * area / (area + half_area))


def _without_fp8(configurations: Configurations) -> Configurations:
    """Attention's products stay in 16 bits where layers compute in fp8."""
    if not np.any(np.asarray(configurations.precision) == 3):
        return configurations
    precision = np.where(np.asarray(configurations.precision) == 3, 2.0, configurations.precision)
    return Configurations(precision=precision)


def _head(shape: ModelShape, cluster: Cluster, configurations: Configurations, c: Coefficients) -> Array:
    """Return forward and backward of logits and loss for one micro-batch; never recomputed."""
    tensor = np.asarray(configurations.tensor_parallel)
    micro = np.asarray(configurations.micro_batch)
    sequence = np.asarray(configurations.sequence_parallel)
    tokens = shape.sequence * micro / sequence
    rate = matmul_rate(cluster.device, _without_fp8(configurations), c)
    rate = rate * _saturation(cluster.device, np.asarray(shape.hidden), tokens, c)
    products = 3.0 * shape.logit_flops * micro / (tensor * sequence) / rate
    elementwise = (
        c.logit_passes
        * 4.0
        * tokens
        * shape.predicted_fraction
        * shape.vocabulary
        / tensor
        / cluster.device.memory_bandwidth
    )
    return np.asarray(products + elementwise)


def _exposed(
    configurations: Configurations,
    c: Coefficients,
    placement: Placement,
    traffic: Communication,
    backward: Array,
    forward: Array,
) -> tuple[Array, Array, Array]:
    """Return the exposed seconds of gradients, stage 3's gathers, and the gather after the step.

    Gradients overlap with backward where `overlap_comm` says so, stage 1's with the last micro-step's alone; gathers
    overlap as far as modules are prefetched; the gather after the step overlaps with nothing, but with the next
    forward in Megatron's distributed optimizer (`overlap_param_gather`).
    """
    stage = np.asarray(configurations.stage)
    with_backward = backward / np.where(stage >= 2, 1.0, configurations.accumulation)
    overlaps = np.asarray(configurations.overlap_comm) > 0
    gradients = traffic.gradients.seconds
    hidden = smooth_maximum(with_backward, gradients, c.overlap_power) - with_backward
    gradients = np.where(overlaps, hidden, gradients)
    parameters = traffic.parameters.seconds
    prefetch = np.minimum(configurations.prefetch_bucket_size, configurations.max_live_parameters)
    ahead = prefetch / (prefetch + placement.local_layer_parameters / 4.0)
    computing = forward + backward
    behind = smooth_maximum(computing, parameters, c.overlap_power) - computing
    parameters = np.where(stage == 3, ahead * behind + (1.0 - ahead) * parameters, 0.0)
    updated = traffic.updated.seconds
    first = forward / configurations.accumulation
    beside = smooth_maximum(first, updated, c.overlap_power) - first
    updated = np.where(overlaps & (np.asarray(configurations.multi_rank_bucket_allreduce) == 0), beside, updated)
    return np.asarray(gradients), np.asarray(parameters), np.asarray(updated)


def _update(
    cluster: Cluster, configurations: Configurations, c: Coefficients, placement: Placement, backward: Array
) -> tuple[Array, Array]:
    """Return seconds of the optimizer on the device, and of offloading.

    On the device Adam is bound by memory: it reads and writes master weight, both states and gradient, so `passes` of
    4 bytes. On the host a node's ranks share the CPU's rate and gradients go down, parameters come up over PCIe, 2 P/N
    each (ZeRO-Offload, Ren et al. 2021, section 4); NVMe reads and writes 12 P/N (ZeRO-Infinity, Rajbhandari et al.
    2021, section 4).
    """
    stage = np.asarray(configurations.stage)
    value = configurations.value_bytes
    shards = placement.shards
    updated = placement.local_trainable / np.where(stage >= 1, shards, 1.0)
    away = np.asarray(configurations.offload_optimizer) > 0
    on_device = c.optimizer_passes * 4.0 * updated / cluster.device.memory_bandwidth
    optimizer = np.where(away, 0.0, on_device)

    pcie = np.asarray(cluster.device.pcie_bandwidth) * c.pcie_efficiency
    on_host = updated * placement.per_node / (cluster.cpu_adam_per_second * np.asarray(c.cpu_adam_efficiency))
    nvme_optimizer = np.asarray(configurations.offload_optimizer) == 2
    drive = cluster.nvme_bandwidth / placement.per_node
    swapped = np.where(nvme_optimizer, 2.0 * 12.0 * updated / drive, 0.0)
    down = value * updated * np.where(stage >= 2, configurations.accumulation, 1.0) / pcie
    down = smooth_maximum(backward, down, c.offload_overlap_power) - backward
    up = value * updated / pcie
    states = np.where(away, on_host + swapped + down + up, 0.0)

    parameters_away = (np.asarray(configurations.offload_parameters) > 0) & (stage == 3)
    fetched = 2.0 * value * placement.local_parameters / shards * configurations.accumulation
    from_drive = np.asarray(configurations.offload_parameters) == 2
    fetch = fetched / np.where(from_drive, np.minimum(drive, pcie), pcie)
    fetch = smooth_maximum(backward, fetch, c.offload_overlap_power) - backward
    return np.asarray(optimizer), np.asarray(states + np.where(parameters_away, fetch, 0.0))


def _quantization(cluster: Cluster, configurations: Configurations, c: Coefficients, placement: Placement) -> Array:
    """Return the time ZeRO++'s kernels take to quantize and dequantize, bound by memory."""
    stage3 = np.asarray(configurations.stage) == 3
    kinds = (np.asarray(configurations.quantized_weights) > 0) * 2.0 + (
        np.asarray(configurations.quantized_gradients) > 0
    ) * 1.0
    each = c.quantization_passes * configurations.value_bytes * placement.local_parameters
    seconds = each * kinds * configurations.accumulation / cluster.device.memory_bandwidth
    return np.asarray(np.where(stage3 & (placement.shards > 1), seconds, 0.0))
