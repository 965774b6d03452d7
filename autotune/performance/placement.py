"""Where ranks lie: sizes of the parallel groups, how much of each is inside a node, and what one rank holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.performance.arrays import Array
from autotune.performance.configurations import Configurations
from autotune.performance.devices import Cluster
from autotune.performance.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Groups of ranks, tensor-parallel ranks next to each other, then sequence, data, pipeline.

    That is the order of Megatron (Narayanan et al. 2021, section 3) and of DeepSpeed's PipeModelDataParallelTopology
    (deepspeed/runtime/pipe/topology.py). Fields broadcast to (configurations,).
    """

    per_node: Array
    """Ranks of one node."""
    data: Array
    """Ranks that see different samples."""
    shards: Array
    """Ranks that ZeRO partitions over: data x sequence."""
    shards_per_node: Array
    """Of those, how many lie in one node."""
    tensor_inside: Array
    """1 where the tensor-parallel group lies in one node."""
    sequence_inside: Array
    pipeline_inside: Array
    """1 where neighbours of the pipeline lie in one node."""
    stage_layers: Array
    """Layers of the fullest pipeline stage."""
    in_flight: Array
    """Activations the first stage keeps, in micro-batches times its share of layers (1F1B)."""
    local_parameters: Array
    """Of the fullest stage's rank, before ZeRO."""
    local_trainable: Array
    local_layer_parameters: Array
    """One layer's, on one rank."""

    @classmethod
    def of(cls, shape: ModelShape, cluster: Cluster, configurations: Configurations) -> Placement:
        """Return where the ranks of each configuration lie."""
        tensor = np.asarray(configurations.tensor_parallel)
        pipeline = np.asarray(configurations.pipeline_parallel)
        sequence = np.asarray(configurations.sequence_parallel)
        per_node = np.minimum(np.asarray(cluster.devices_per_node), cluster.devices)
        data = np.maximum(np.asarray(cluster.devices) / (tensor * pipeline * sequence), 1.0)
        shards = data * sequence
        stage_layers = np.ceil(np.asarray(shape.layers) / pipeline)
        layer = shape.layer_parameters / tensor
        embeddings = shape.embedding_parameters / tensor * np.where(pipeline > 1, 1.0, 2.0 - np.asarray(shape.tied))
        local = stage_layers * layer + embeddings
        chunks = np.asarray(configurations.interleave)
        kept = np.where(pipeline > 1, np.minimum(configurations.accumulation, pipeline), 1.0)
        return cls(
            per_node=per_node,
            data=data,
            shards=shards,
            shards_per_node=np.clip(per_node / tensor, 1.0, shards),
            tensor_inside=(tensor <= per_node) * 1.0,
            sequence_inside=(tensor * sequence <= per_node) * 1.0,
            pipeline_inside=(tensor * shards * pipeline <= per_node) * 1.0,
            stage_layers=stage_layers,
            in_flight=kept * (1.0 + np.where(chunks > 1, (pipeline - 1.0) / (pipeline * chunks), 0.0)),
            local_parameters=local,
            local_trainable=local * shape.trainable_fraction,
            local_layer_parameters=layer,
        )
