"""Memory of one rank by part, on the device and on the host, and the verdict whether it is enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.performance.arrays import Array
from autotune.performance.coefficients import Coefficients
from autotune.performance.configurations import Configurations
from autotune.performance.devices import Cluster
from autotune.performance.placement import Placement
from autotune.performance.shape import ModelShape

CPU_PROCESS_BYTES = 4.5e8
"""Resident size of a rank on a CPU that has torch and DeepSpeed loaded, before the model (measured, torch 2.13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of the fullest rank; each field broadcasts to (..., configurations).

    Three readings of one training differ (the second and third hold the first): what tensors took at the peak
    (`peak_allocated_bytes`, torch.cuda.max_memory_allocated), what the allocator had reserved
    (`peak_reserved_bytes`), and what nvidia-smi shows, with CUDA's context (`device_used_bytes`, at most the card: an
    allocator that meets the limit gives back what it had reserved).
    """

    parameters_bytes: Array
    gradients_bytes: Array
    optimizer_bytes: Array
    activations_bytes: Array
    logits_bytes: Array
    buckets_bytes: Array
    live_parameters_bytes: Array
    """Stage 3: gathered and prefetched parameters; with hpZ also the secondary partition."""
    optimizer_temporary_bytes: Array
    """At the optimizer step only, when activations are gone."""
    context_bytes: Array
    steady_bytes: Array
    """After a step: parameters, gradients and optimizer states."""
    peak_allocated_bytes: Array
    peak_reserved_bytes: Array
    device_used_bytes: Array
    capacity_bytes: Array
    margin_bytes: Array
    """Capacity minus what the training needs; below 0 it runs out of memory."""
    out_of_memory: Array
    """Boolean: on the device or on the host."""
    host_bytes: Array
    """Of one node: offloaded states and checkpoints."""
    host_margin_bytes: Array


def activation_bytes_per_layer(shape: ModelShape, configurations: Configurations) -> Array:
    """Return the bytes that one layer keeps of a micro-batch for backward, without checkpointing.

    Korthikanti et al. 2022, equations 1, 2 and 4: s b h (10 + 24/t + 5 a s/(h t)), with sequence parallelism the
    first term over t too; the last term falls away with flash attention (Dao et al. 2022) or selective recomputation
    (section 5). Generalised over the feed-forward width (19 s b h = 3 + 4 f/h, gated 3 + 8 f/h: gate, up, their
    product and the activation) and grouped keys and values. Masks of dropout stay one byte in fp32: 2 of the 10, 1 of
    the 5.
    """
    tensor = np.asarray(configurations.tensor_parallel)
    tokens = shape.sequence * np.asarray(configurations.micro_batch) / configurations.sequence_parallel
    width = tokens * shape.hidden
    value = configurations.value_bytes
    split = 8.0 / 2.0 * (1.0 + np.asarray(shape.kv_heads) / shape.heads)  # q, output; k, v of attention
    split = split + (4.0 + 4.0 * np.asarray(shape.gated)) * shape.ffn_hidden / shape.hidden
    split = split * value / 2.0
    whole = (2.0 + 4.0 * value) / np.where(np.asarray(configurations.tensor_sequence_parallel) > 0, tensor, 1.0)
    scores = (1.0 + 2.0 * value) * np.asarray(shape.heads) * shape.sequence / shape.hidden / tensor
    keeps_scores = (np.asarray(configurations.flash_attention) == 0) & (np.asarray(configurations.checkpointing) != 2)
    return np.asarray(width * (whole + split / tensor + np.where(keeps_scores, scores, 0.0)))


def memory(
    shape: ModelShape,
    cluster: Cluster,
    configurations: Configurations,
    coefficients: Coefficients,
    placement: Placement,
) -> Memory:
    """Return the memory of each configuration.

    Model states in mixed precision with Adam are the ZeRO paper's (Rajbhandari et al. 2020, section 3 and figure 1):
    16 P at stage 0; 4 P + 12 P/N; 2 P + 14 P/N; 16 P/N. A frozen parameter has neither gradient nor states. In fp32
    there is no second copy: 4 P of parameters, 4 P of gradients, 8 P of Adam's states. At the optimizer step a rank's
    gradients are copied to fp32 (measured: 20 bytes per parameter for 16, DeepSpeedExamples bf16_master_weight), at
    stages 1 and 2 by way of a flat 16-bit copy (deepspeed/runtime/zero/stage_1_and_2.py, `averaged_gradients`).
    """
    c = coefficients
    stage = np.asarray(configurations.stage)
    value = configurations.value_bytes
    full_precision = np.asarray(configurations.precision) == 0
    local, trainable, shards = placement.local_parameters, placement.local_trainable, placement.shards
    optimizer_away = np.asarray(configurations.offload_optimizer) > 0
    parameters_away = (np.asarray(configurations.offload_parameters) > 0) & (stage == 3)

    parameters = np.where(parameters_away, 0.0, value * local / np.where(stage == 3, shards, 1.0))
    gradients_away = optimizer_away & (stage >= 2)
    gradients = np.where(
        gradients_away, 0.0, configurations.gradient_bytes * trainable / np.where(stage >= 2, shards, 1.0)
    )
    state = np.where(np.asarray(configurations.low_precision_states) > 0, 2.0, 4.0)
    states_each = state * (configurations.optimizer_states + np.where(full_precision, 0.0, 1.0))
    updated = trainable / np.where(stage >= 1, shards, 1.0)
    optimizer = np.where(optimizer_away, 0.0, states_each * updated)

    kept, working = _activations(shape, configurations, c, placement)
    activations = kept + working
    tokens = shape.sequence * np.asarray(configurations.micro_batch) / configurations.sequence_parallel
    logits = (
        c.logit_bytes
        * tokens
        * shape.predicted_fraction
        * shape.vocabulary
        / configurations.tensor_parallel
        * value
        / 2.0
    )
    buckets = _buckets(configurations, trainable, shards, stage, value)
    live = _live_parameters(shape, configurations, c, placement)
    copied = np.where(np.asarray(configurations.low_precision_states) > 0, 2.0, np.where(stage == 3, 4.0, 4.0 + value))
    copies = np.where(full_precision | optimizer_away, 0.0, copied * updated * c.optimizer_temporary)
    gathered = np.where(
        ((stage == 1) | (stage == 2)) & (shards > 1),
        value * np.minimum(configurations.allgather_bucket_size, trainable),
        0.0,
    )

    steady = parameters + gradients + optimizer
    last_stage = kept / placement.in_flight
    backward = np.maximum(activations, last_stage + logits) + buckets + live
    peak = steady + np.maximum(backward, np.maximum(copies, gathered))
    context = np.where(np.asarray(cluster.device.is_cpu) > 0, CPU_PROCESS_BYTES, c.context_bytes) + np.zeros_like(peak)
    reserved = peak + (peak - steady) * c.fragmentation
    capacity = np.asarray(cluster.device.memory_bytes) + np.zeros_like(peak)
    host = _host(shape, configurations, c, placement, trainable, local)
    host_margin = cluster.host_memory_bytes - host
    margin = capacity - peak - (peak - steady) * c.fragmentation_at_limit - context
    return Memory(
        parameters_bytes=parameters,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=activations,
        logits_bytes=logits,
        buckets_bytes=buckets,
        live_parameters_bytes=live,
        optimizer_temporary_bytes=copies,
        context_bytes=context,
        steady_bytes=steady,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=reserved,
        device_used_bytes=np.minimum(reserved + context, capacity),
        capacity_bytes=capacity,
        margin_bytes=margin,
        out_of_memory=(margin < 0) | (host_margin < 0),
        host_bytes=host,
        host_margin_bytes=host_margin,
    )


def _activations(
    shape: ModelShape, configurations: Configurations, c: Coefficients, placement: Placement
) -> tuple[Array, Array]:
    """Return bytes that the fullest pipeline stage keeps, and the working set of one layer.

    Full recomputation keeps a layer's input, 2 s b h, and while it recomputes one layer's working set (Korthikanti et
    al. 2022, section 5). The first pipeline stage keeps as many micro-batches as there are stages (section 4.2.3).
    """
    eager = np.where(np.asarray(configurations.fused_kernels) > 0, 1.0, c.eager_activations)
    each = activation_bytes_per_layer(shape, configurations) * c.activation_bytes * eager
    tokens = shape.sequence * np.asarray(configurations.micro_batch) / configurations.sequence_parallel
    split = (np.asarray(configurations.tensor_sequence_parallel) > 0) | (
        np.asarray(configurations.partition_activations) > 0
    )
    input_share = np.where(split, configurations.tensor_parallel, 1.0)
    inputs = configurations.value_bytes * tokens * shape.hidden / input_share
    layers = placement.stage_layers * placement.in_flight
    on_device = np.where(np.asarray(configurations.checkpoint_offload) > 0, 0.0, inputs * layers)
    full = np.asarray(configurations.checkpointing) == 1
    return np.where(full, on_device, each * layers), np.where(full, each, 0.0)


def _buckets(configurations: Configurations, trainable: Array, shards: Array, stage: Array, value: Array) -> Array:
    """Return the reduce buckets: two of them where reducing overlaps (deepspeed/runtime/zero/stage_1_and_2.py)."""
    bucket = np.minimum(configurations.reduce_bucket_size, trainable)
    copies = 1.0 + np.where(np.asarray(configurations.overlap_comm) > 0, 1.0, 0.0) * (stage != 3)
    return np.where((stage >= 1) & (shards > 1), value * bucket * copies, 0.0)


def _live_parameters(shape: ModelShape, configurations: Configurations, c: Coefficients, placement: Placement) -> Array:
    """Return what stage 3 holds gathered: a layer, the prefetched, and what is kept for reuse.

    At most `stage3_max_live_parameters`, at least the largest layer (deepspeed/runtime/zero/
    partitioned_param_coordinator.py); and hpZ's secondary partition 2 P/(ranks that share it) (ZeRO++, Wang et al.
    2023, section 3.2).
    """
    value = configurations.value_bytes
    stage3 = (np.asarray(configurations.stage) == 3) & (placement.shards > 1)
    stage3 = stage3 | ((np.asarray(configurations.offload_parameters) > 0) & (np.asarray(configurations.stage) == 3))
    embedding = shape.embedding_parameters / configurations.tensor_parallel
    largest = np.maximum(placement.local_layer_parameters, embedding)
    wanted = np.minimum(configurations.max_live_parameters, placement.local_parameters)
    held = np.maximum(
        np.minimum(largest + configurations.prefetch_bucket_size, placement.local_parameters),
        wanted * c.live_parameters,
    )
    secondary = np.asarray(configurations.secondary_partition)
    second_copy = np.where(secondary > 1, placement.local_parameters / np.maximum(secondary, 1.0), 0.0)
    return np.asarray(np.where(stage3, value * (held + second_copy), 0.0))


def _host(
    shape: ModelShape,
    configurations: Configurations,
    c: Coefficients,
    placement: Placement,
    trainable: Array,
    local: Array,
) -> Array:
    """Return bytes of one node's host memory: 4 bytes of gradient and 12 of states per offloaded parameter, x 1.5.

    DeepSpeed's estimators (deepspeed/runtime/zero/stage_1_and_2.py, estimate_zero2_model_states_mem_needs) keep half
    as much again as buffer; what goes to NVMe leaves only that.
    """
    stage = np.asarray(configurations.stage)
    ranks = placement.per_node
    share = np.where(stage >= 1, placement.shards, 1.0)
    optimizer_in_host = np.asarray(configurations.offload_optimizer) == 1
    parameters_in_host = (np.asarray(configurations.offload_parameters) == 1) & (stage == 3)
    states = np.where(optimizer_in_host, 16.0 * trainable / share * ranks * c.host_buffer, 0.0)
    weights = np.where(
        parameters_in_host, configurations.value_bytes * local / placement.shards * ranks * c.host_buffer, 0.0
    )
    tokens = shape.sequence * np.asarray(configurations.micro_batch) / configurations.sequence_parallel
    checkpoints = (
        configurations.value_bytes * tokens * shape.hidden * placement.stage_layers * placement.in_flight * ranks
    )
    kept = (np.asarray(configurations.checkpoint_offload) > 0) & (np.asarray(configurations.checkpointing) == 1)
    return np.asarray(states + weights + np.where(kept, checkpoints, 0.0))
