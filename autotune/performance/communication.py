"""What ranks send each other in one optimizer step: bytes by kind and link, messages, and the time it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.performance.arrays import Array, Numbers
from autotune.performance.coefficients import Coefficients
from autotune.performance.configurations import Configurations
from autotune.performance.devices import Cluster
from autotune.performance.placement import Placement
from autotune.performance.shape import ModelShape

LARGE_MATRICES = 4.0
"""Of a layer: query-key-value, attention's output, and two of the feed-forward part."""
SMALL_MODULES = 2.0
"""Of a layer: its norms, gathered on their own (biases come with their matrix)."""
SMALL_TENSORS = 8.0
"""Of a GPT layer: weight and bias of two norms, bias of four matrices; Llama's has two, without biases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of communication of one rank in one step. `seconds` is its duration when nothing else runs."""

    inside_bytes: Array
    """Sent to ranks of the same node."""
    between_bytes: Array
    """Sent to other nodes."""
    messages: Array
    seconds: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """All kinds; each field broadcasts to (..., configurations)."""

    gradients: Traffic
    """All-reduce or reduce-scatter over the data-parallel ranks, by optimizer step."""
    parameters: Traffic
    """Stage 3's gathers in forward and backward."""
    updated: Traffic
    """All-gather of updated parameters at the step: stages 1 and 2, and stage 3's persistent ones."""
    tensor: Traffic
    pipeline: Traffic
    sequence: Traffic
    gather_calls: Array
    """Stage 3: modules that the host looks after per micro-step, forward and backward; on one rank too."""
    persistent_tensors: Array
    buckets: Array
    """Gradient buckets per step; from stage 1 on one rank fills them too."""

    @property
    def inside_bytes(self) -> Array:
        return np.asarray(sum(np.asarray(part.inside_bytes) for part in self.parts))

    @property
    def between_bytes(self) -> Array:
        return np.asarray(sum(np.asarray(part.between_bytes) for part in self.parts))

    @property
    def parts(self) -> tuple[Traffic, ...]:
        return (self.gradients, self.parameters, self.updated, self.tensor, self.pipeline, self.sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Ranks that talk in a ring, and the rates they see."""

    size: Array
    inside: Array
    """Ranks of the group in one node."""
    bandwidth: Array
    intra_latency: Numbers
    inter_latency: Numbers

    @property
    def crosses(self) -> Array:
        """1 where the group spans nodes."""
        return (self.size > self.inside) * 1.0

    @property
    def scatter_latency(self) -> Array:
        """Seconds of a reduce-scatter's or all-gather's n-1 hops, of which one per node crosses to the next."""
        crossing = np.where(self.size > self.inside, self.size / self.inside, 0.0)
        return np.asarray(
            np.maximum(self.size - 1.0 - crossing, 0.0) * self.intra_latency + crossing * self.inter_latency
        )

    @property
    def reduce_latency(self) -> Array:
        """Seconds of an all-reduce's hops up and down a tree, as NCCL chooses for short messages: 2 log2 n."""
        inner = np.log2(np.maximum(self.inside, 1.0)) * self.intra_latency
        return np.asarray(2.0 * (inner + np.log2(np.maximum(self.size / self.inside, 1.0)) * self.inter_latency))

    def ring(self, sent_bytes: Numbers, messages: Numbers, latency: Numbers) -> Traffic:
        """Return the traffic of `messages` collectives in which each rank sends `sent_bytes` altogether.

        Of the ring's links one per node crosses, so of what is sent 1/inside leaves the node.
        """
        there = (self.size > 1) * 1.0
        sent = sent_bytes * there
        between = sent * self.crosses / self.inside
        count = messages * there
        return Traffic(
            inside_bytes=sent - between,
            between_bytes=between,
            messages=count,
            seconds=sent / self.bandwidth + count * latency,
        )


def ring_share(size: Numbers) -> Array:
    """Return (n-1)/n: what one rank sends of a buffer in a ring reduce-scatter or all-gather.

    An all-reduce is both, 2 (n-1)/n (Patarasuk and Yuan 2009; Thakur et al. 2005, section 4).
    """
    return 1.0 - 1.0 / np.asarray(size)


def communication(
    shape: ModelShape, cluster: Cluster, configurations: Configurations, c: Coefficients, placement: Placement
) -> Communication:
    """Return the traffic of each configuration.

    Volumes of ZeRO are DeepSpeed's code's, not only the paper's: with `use_multi_rank_bucket_allreduce` stages 1 and 2
    all-reduce and then gather, so stage 1 moves 3 P at the boundary and stage 2 2 P per micro-step and P at the
    boundary (deepspeed/runtime/zero/stage_1_and_2.py); stage 3 moves 3 P per micro-step (ZeRO paper, section 7).
    """
    ring = _ring(cluster, c, placement.shards, placement.shards_per_node, placement.per_node)
    gathers = _gathers(shape, configurations, placement)
    return Communication(
        gradients=_gradients(configurations, placement, ring),
        parameters=_parameters(cluster, configurations, c, placement, ring, gathers),
        updated=_updated(configurations, placement, ring, gathers),
        tensor=_tensor(shape, cluster, configurations, c, placement),
        pipeline=_pipeline(shape, cluster, configurations, c, placement),
        sequence=_sequence(shape, cluster, configurations, c, placement),
        gather_calls=gathers.calls,
        persistent_tensors=gathers.persistent_tensors * (placement.shards > 1),
        buckets=_bucket_count(configurations, placement)
        * ((placement.shards > 1) | (np.asarray(configurations.stage) >= 1)),
    )


def _ring(cluster: Cluster, c: Coefficients, size: Array, inside: Array, per_node: Array) -> _Group:
    """Return a group whose ring is as fast as its slowest link: a node's network is shared by the rings through it.

    `inside` of a node's ranks are of this group, so its share of the node's bandwidth is inside/per_node.
    """
    crosses = size > inside
    intra = cluster.intra_bandwidth * np.asarray(c.intra_efficiency)
    inter = cluster.inter_bandwidth * np.asarray(c.inter_efficiency) * inside / per_node
    return _Group(
        size=size,
        inside=inside,
        bandwidth=np.where(crosses, np.minimum(intra, np.maximum(inter, 1.0)), intra),
        intra_latency=c.intra_latency_s,
        inter_latency=c.inter_latency_s,
    )


def _inside(cluster: Cluster, c: Coefficients, size: Array, is_inside: Array, per_node: Array) -> _Group:
    return _ring(cluster, c, size, np.where(is_inside > 0, size, np.minimum(size, per_node)), per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathers:
    """Stage 3: what of one rank's model is gathered, and what stays."""

    elements: Array
    persistent: Array
    persistent_tensors: Array
    passes: Array
    """Of forward and backward, how often the gathered elements move: 2, or less where they are kept for backward."""
    calls: Array
    """Modules whose hooks run per micro-step, forward and backward, gathered or persistent."""
    messages: Array
    """Collectives per micro-step: modules that are prefetched together share one."""


def _gathers(shape: ModelShape, configurations: Configurations, placement: Placement) -> _Gathers:
    """Return what stage 3 fetches.

    A module's parameters are gathered when it runs, and the next ones with them up to `stage3_prefetch_bucket_size`;
    those below `stage3_param_persistence_threshold` never leave; those reused within `stage3_max_reuse_distance` are
    kept as long as `stage3_max_live_parameters` allows (deepspeed/runtime/zero/partitioned_param_coordinator.py).
    """
    layers = placement.stage_layers
    matrix = placement.local_layer_parameters / LARGE_MATRICES
    threshold = np.asarray(configurations.persistence_threshold)
    matrices_gathered = (matrix >= threshold) * 1.0
    small_gathered = (np.asarray(shape.hidden) >= threshold) * 1.0
    embedding = shape.embedding_parameters / configurations.tensor_parallel
    embedding_gathered = (embedding >= threshold) * 1.0
    total = placement.local_parameters
    large = layers * placement.local_layer_parameters
    gathered = matrices_gathered * large + embedding_gathered * np.maximum(total - large, 0.0)
    modules = layers * (LARGE_MATRICES * matrices_gathered + SMALL_MODULES * small_gathered) + embedding_gathered
    tensors = layers * (LARGE_MATRICES * (1.0 - matrices_gathered) + SMALL_TENSORS * (1.0 - small_gathered))
    kept = np.minimum(configurations.max_live_parameters, configurations.max_reuse_distance) / np.maximum(gathered, 1.0)
    passes = 2.0 - np.minimum(kept, 1.0)
    together = 1.0 + np.minimum(configurations.prefetch_bucket_size, configurations.max_live_parameters) / np.maximum(
        matrix, 1.0
    )
    return _Gathers(
        elements=gathered,
        persistent=total - gathered,
        persistent_tensors=tensors,
        passes=passes,
        calls=2.0 * (layers * (LARGE_MATRICES + SMALL_MODULES) + 1.0),
        messages=passes * np.maximum(modules / together, np.minimum(modules, 1.0)),
    )


def _bucket_count(configurations: Configurations, placement: Placement) -> Array:
    """Return gradient buckets per optimizer step: every micro-step's at stages 2 and 3, else the boundary's."""
    each = np.ceil(placement.local_trainable / np.maximum(configurations.reduce_bucket_size, 1.0))
    return np.asarray(each * np.where(np.asarray(configurations.stage) >= 2, configurations.accumulation, 1.0))


def _gradients(configurations: Configurations, placement: Placement, ring: _Group) -> Traffic:
    stage = np.asarray(configurations.stage)
    value = configurations.gradient_bytes
    share = ring_share(placement.shards)
    scatters = (stage == 3) | ((stage >= 1) & (np.asarray(configurations.multi_rank_bucket_allreduce) == 0))
    buffers = np.where(scatters, 1.0, 2.0) * np.where(stage >= 2, configurations.accumulation, 1.0)
    latency = np.where(scatters, ring.scatter_latency, ring.reduce_latency)
    traffic = ring.ring(
        value * placement.local_trainable * share * buffers, _bucket_count(configurations, placement), latency
    )
    quantized = (np.asarray(configurations.quantized_gradients) > 0) & (stage == 3)
    factor = np.where(quantized, 0.25, 1.0)
    return _scaled(traffic, factor)


def _parameters(
    cluster: Cluster,
    configurations: Configurations,
    c: Coefficients,
    placement: Placement,
    ring: _Group,
    gathers: _Gathers,
) -> Traffic:
    """Return stage 3's gathers: all of the parameters in forward and, where they were not kept, in backward.

    With hpZ backward gathers inside the group of the secondary partition; qwZ sends 8 bits instead of 16 (ZeRO++, Wang
    et al. 2023, section 3; quantized in both passes by deepspeed/runtime/zero/partition_parameters.py).
    """
    stage3 = (np.asarray(configurations.stage) == 3) * 1.0
    value = configurations.value_bytes * np.where(np.asarray(configurations.quantized_weights) > 0, 0.5, 1.0)
    accumulation = np.asarray(configurations.accumulation)
    moved = value * gathers.elements * accumulation * stage3
    secondary = np.clip(configurations.secondary_partition, 1.0, placement.shards)
    has_secondary = (secondary > 1) * 1.0
    near = _ring(cluster, c, secondary, np.minimum(secondary, placement.shards_per_node), placement.per_node)
    backward = gathers.passes - 1.0
    first = 1.0 + backward * (1.0 - has_secondary)
    messages = gathers.messages * accumulation * stage3
    share_first = first / gathers.passes
    far_traffic = ring.ring(moved * first * ring_share(placement.shards), messages * share_first, ring.scatter_latency)
    near_traffic = near.ring(
        moved * backward * has_secondary * ring_share(secondary),
        messages * (1.0 - share_first),
        near.scatter_latency,
    )
    return Traffic(
        inside_bytes=far_traffic.inside_bytes + near_traffic.inside_bytes,
        between_bytes=far_traffic.between_bytes + near_traffic.between_bytes,
        messages=far_traffic.messages + near_traffic.messages,
        seconds=far_traffic.seconds + near_traffic.seconds,
    )


def _updated(configurations: Configurations, placement: Placement, ring: _Group, gathers: _Gathers) -> Traffic:
    stage = np.asarray(configurations.stage)
    value = configurations.value_bytes
    gathered = np.where(stage == 3, gathers.persistent, np.where(stage >= 1, placement.local_trainable, 0.0))
    buckets = np.ceil(placement.local_trainable / np.maximum(configurations.allgather_bucket_size, 1.0))
    messages = np.where(stage == 3, (gathers.persistent > 0) * 1.0, np.where(stage >= 1, buckets, 0.0))
    return ring.ring(value * gathered * ring_share(placement.shards), messages, ring.scatter_latency)


def _tensor(
    shape: ModelShape, cluster: Cluster, configurations: Configurations, c: Coefficients, placement: Placement
) -> Traffic:
    """Return 4 all-reduces of s b h per layer, 6 with full recomputation (Narayanan et al. 2021, section 2.3)."""
    tensor = np.asarray(configurations.tensor_parallel)
    group = _inside(cluster, c, tensor, placement.tensor_inside, placement.per_node)
    times = np.where(np.asarray(configurations.checkpointing) == 1, 6.0, 4.0)
    count = times * placement.stage_layers * configurations.accumulation
    width = _width_bytes(shape, configurations)
    return group.ring(count * width * 2.0 * ring_share(tensor), count, group.reduce_latency)


def _pipeline(
    shape: ModelShape, cluster: Cluster, configurations: Configurations, c: Coefficients, placement: Placement
) -> Traffic:
    """Return activations sent forward and their gradients sent back, per micro-batch and model chunk.

    Each tensor-parallel rank sends its part and the receivers gather (Narayanan et al. 2021, section 4.1; DeepSpeed's
    `is_pipe_partitioned`, deepspeed/runtime/pipe/engine.py).
    """
    pipeline = np.asarray(configurations.pipeline_parallel)
    there = (pipeline > 1) * 1.0
    count = 2.0 * np.asarray(configurations.accumulation) * configurations.interleave * there
    sent = count * _width_bytes(shape, configurations) / configurations.tensor_parallel
    inside = placement.pipeline_inside
    inter = cluster.inter_bandwidth * np.asarray(c.inter_efficiency) / placement.per_node
    intra = cluster.intra_bandwidth * np.asarray(c.intra_efficiency)
    bandwidth = np.where(inside > 0, intra, np.maximum(inter, 1.0))
    latency = np.where(inside > 0, c.intra_latency_s, c.inter_latency_s)
    return Traffic(
        inside_bytes=sent * inside,
        between_bytes=sent * (1.0 - inside),
        messages=count,
        seconds=sent / bandwidth + count * latency,
    )


def _sequence(
    shape: ModelShape, cluster: Cluster, configurations: Configurations, c: Coefficients, placement: Placement
) -> Traffic:
    """Return Ulysses' all-to-alls: 4 of s b h / sp per layer and pass (Jacobs et al. 2023, section 3.2)."""
    sequence = np.asarray(configurations.sequence_parallel)
    group = _inside(cluster, c, sequence, placement.sequence_inside, placement.per_node)
    passes = np.where(np.asarray(configurations.checkpointing) == 1, 3.0, 2.0)
    count = 4.0 * passes * placement.stage_layers * configurations.accumulation
    return group.ring(
        count * _width_bytes(shape, configurations) * ring_share(sequence), count, group.reduce_latency / 2.0
    )


def _width_bytes(shape: ModelShape, configurations: Configurations) -> Array:
    """Bytes of one rank's activations between two layers, per micro-batch: s b h / sp."""
    tokens = shape.sequence * np.asarray(configurations.micro_batch) / configurations.sequence_parallel
    return np.asarray(tokens * shape.hidden * configurations.value_bytes)


def _scaled(traffic: Traffic, factor: Array) -> Traffic:
    """Return a kind of traffic with other bytes per value (qgZ: 4 bits for 16, ZeRO++ section 3.3)."""
    return Traffic(
        inside_bytes=traffic.inside_bytes * factor,
        between_bytes=traffic.between_bytes * factor,
        messages=traffic.messages,
        seconds=traffic.seconds * factor,
    )
