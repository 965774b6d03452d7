"""Many DeepSpeed configurations as one struct of arrays, read from points of a search space or DeepSpeed files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from autotune import dotted
from autotune.errors import ConfigError
from autotune.performance.arrays import Array, Numbers

PRECISIONS: tuple[str, ...] = ("fp32", "fp16", "bf16", "fp8")
"""Codes of `Configurations.precision`, by place."""
CHECKPOINTING: tuple[str, ...] = ("none", "full", "selective")
"""Codes of `Configurations.checkpointing`, by place."""
PLACES: tuple[str, ...] = ("none", "cpu", "nvme")
"""Codes of `Configurations.offload_optimizer` and `.offload_parameters`, by place."""
OPTIMIZER_STATES: Mapping[str, float] = {
    "adam": 2.0, "adamw": 2.0, "fusedadam": 2.0, "lamb": 2.0, "onebitadam": 2.0, "zerooneadam": 2.0,
    "adagrad": 1.0, "lion": 1.0, "muon": 1.0, "rmsprop": 1.0, "sgd": 0.0,
}  # fmt: skip
"""fp32 values per parameter beside the master weight (SGD: without momentum; Muon: momentum only)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configurations:
    """What a training is configured to do; each field has shape (configurations,), or is one number for all.

    Defaults are DeepSpeed's (deepspeed/runtime/zero/config.py and constants.py). Bucket sizes and thresholds
    count elements. Degrees of parallelism multiply to the cluster's devices; data parallelism is what is left.
    """

    stage: Numbers = 0.0
    micro_batch: Numbers = 1.0
    """Samples per rank and micro-step."""
    accumulation: Numbers = 1.0
    learning_rate: Numbers = 1e-3
    precision: Numbers = 0.0
    checkpointing: Numbers = 0.0
    checkpoint_offload: Numbers = 0.0
    """1 where checkpointed activations wait in host memory (`cpu_checkpointing`)."""
    partition_activations: Numbers = 0.0
    """1 where checkpoints are split over tensor-parallel ranks (`activation_checkpointing.partition_activations`)."""
    offload_optimizer: Numbers = 0.0
    offload_parameters: Numbers = 0.0
    reduce_bucket_size: Numbers = 5e8
    allgather_bucket_size: Numbers = 5e8
    overlap_comm: Numbers = 0.0
    persistence_threshold: Numbers = 1e5
    max_live_parameters: Numbers = 1e9
    max_reuse_distance: Numbers = 1e9
    prefetch_bucket_size: Numbers = 5e7
    sub_group_size: Numbers = 1e9
    multi_rank_bucket_allreduce: Numbers = 1.0
    """1: stages 1 and 2 all-reduce (DeepSpeed's default); 0: they reduce-scatter, as Megatron's optimizer does."""
    secondary_partition: Numbers = 1.0
    """hpZ: ranks that share a second copy of the parameters (`zero_hpz_partition_size`)."""
    quantized_weights: Numbers = 0.0
    quantized_gradients: Numbers = 0.0
    tensor_parallel: Numbers = 1.0
    tensor_sequence_parallel: Numbers = 0.0
    """1: Megatron's sequence parallelism inside the tensor-parallel group."""
    pipeline_parallel: Numbers = 1.0
    interleave: Numbers = 1.0
    """Model chunks per pipeline stage (Narayanan et al. 2021, section 2.2)."""
    sequence_parallel: Numbers = 1.0
    """Ulysses: ranks that share a sample."""
    flash_attention: Numbers = 0.0
    fused_kernels: Numbers = 0.0
    """1: Megatron's, a transformer kernel or torch.compile: fewer passes over memory, fewer launches."""
    overlap_tensor_comm: Numbers = 0.0
    """1: tensor-parallel communication runs beside products of matrices (Megatron-Core's tp_comm_overlap)."""
    optimizer_states: Numbers = 2.0
    """Values per parameter beside the master weight: 2 for Adam."""
    fp32_gradients: Numbers = 0.0
    """1 where 16-bit training accumulates gradients in fp32 (`data_types.grad_accum_dtype`; BF16_Optimizer)."""
    low_precision_states: Numbers = 0.0
    """1 where master weights and states are bf16 (`bf16_master_weights_and_grads`, `bf16_optimizer_states`)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, np.asarray(getattr(self, field.name), dtype=np.float64))

    def __len__(self) -> int:
        """How many there are (1 where every field is one number)."""
        shape = np.broadcast_shapes(*(np.shape(getattr(self, field.name)) for field in fields(self)))
        return int(shape[-1]) if shape else 1

    def __getitem__(self, rows: slice | Array) -> Configurations:
        """Return some of them; a field that is one number stays one number."""
        chosen: dict[str, Numbers] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            chosen[field.name] = value[rows] if np.ndim(value) else value
        return Configurations(**chosen)

    @property
    def value_bytes(self) -> Array:
        """Bytes of one parameter, gradient or activation: 4 in fp32, else 2 (fp8 keeps those in 16 bits)."""
        return np.where(np.asarray(self.precision) == 0, 4.0, 2.0)

    @property
    def gradient_bytes(self) -> Array:
        """Bytes of one gradient, kept and sent."""
        return np.where(np.asarray(self.fp32_gradients) > 0, 4.0, self.value_bytes)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any] | Array], **fixed: Numbers) -> Configurations:
        """Return configurations from columns of values by dotted key: a whole search space at once.

        Args:
            columns: by DeepSpeed's dotted keys, or the names of the default search space (`precision`,
                `activation_checkpointing`, `zero_optimization.offload`); keys that don't matter for speed or memory
                are passed over.
            fixed: other fields, by name.

        Raises:
            ConfigError: naming a key and a value that it can't have.
        """
        found: dict[str, Numbers] = dict(fixed)
        for key, values in columns.items():
            for name, read in _READERS.get(key, {}).items():
                found[name] = _converted(key, values, read)
        for key, code in (("fp16.enabled", 1.0), ("bf16.enabled", 2.0)):
            if key in columns:
                on = _converted(key, columns[key], _number)
                found["precision"] = np.where(on > 0, code, found.get("precision", 0.0))
        return cls(**found)

    @classmethod
    def from_points(cls, points: Sequence[Mapping[str, Any]], **fixed: Numbers) -> Configurations:
        """Return configurations from points of a search space, or from DeepSpeed's files as nested mappings.

        Two blocks may be mixed: `{"zero_optimization": {"stage": 2}, "activation_checkpointing": True}`.
        A value of "auto" or null means DeepSpeed's default.

        Raises:
            ConfigError: naming a key and a value that it can't have.
        """
        flat = [_leaves(point) for point in points]
        keys = {key for row in flat for key in row if key in _READERS or key in ("fp16.enabled", "bf16.enabled")}
        defaults = cls(**fixed)
        found: dict[str, Numbers] = dict(fixed)
        precision = np.full(len(flat), float(np.asarray(defaults.precision).max()))
        for key in sorted(keys, key=_order):
            given = np.array([row.get(key, "auto") not in ("auto", None) for row in flat])
            values = [row[key] for row, there in zip(flat, given, strict=True) if there]
            for name, read in _READERS.get(key, {}).items():
                column = np.array(np.broadcast_to(found.get(name, getattr(defaults, name)), len(flat)), dtype=float)
                column[given] = _converted(key, values, read)
                found[name] = column
            if key in ("fp16.enabled", "bf16.enabled"):
                on = np.zeros(len(flat), dtype=bool)
                on[given] = _converted(key, values, _number) > 0
                precision = np.where(on, 1.0 if key == "fp16.enabled" else 2.0, found.get("precision", precision))
                found["precision"] = precision
        micro_batch = found.get("micro_batch", defaults.micro_batch)
        found["micro_batch"] = np.array(np.broadcast_to(micro_batch, len(flat)))
        return cls(**found)


def _leaves(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point flat; a block `activation_checkpointing` says how to checkpoint, not whether."""
    flat = dotted.leaves(point)
    overlap = "zero_optimization.overlap_comm"
    if flat.get("zero_optimization.stage") == 3 and flat.get(overlap) in (None, "auto"):
        flat[overlap] = True  # deepspeed/runtime/zero/config.py: None means stage == 3
    return flat


def _number(value: Any) -> float:
    return float(value)


def _word(words: Sequence[str]) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        return float(words.index("none" if value is None else str(value)))

    return read


def _checkpointing(value: Any) -> float:
    return float(value) if isinstance(value, bool | np.bool_) else _word(CHECKPOINTING)(value)


def _offload_optimizer(value: Any) -> float:
    return {"none": 0.0, "optimizer": 1.0, "parameters": 0.0, "optimizer_and_parameters": 1.0}[str(value)]


def _offload_parameters(value: Any) -> float:
    return {"none": 0.0, "optimizer": 0.0, "parameters": 1.0, "optimizer_and_parameters": 1.0}[str(value)]


def _is_fp32(value: Any) -> float:
    return float(str(value) in ("fp32", "float32"))


def _optimizer_states(value: Any) -> float:
    return OPTIMIZER_STATES.get(str(value).lower(), 2.0)


_READERS: dict[str, dict[str, Callable[[Any], float]]] = {
    "zero_optimization.stage": {"stage": _number},
    "train_micro_batch_size_per_gpu": {"micro_batch": _number},
    "gradient_accumulation_steps": {"accumulation": _number},
    "optimizer.params.lr": {"learning_rate": _number},
    "optimizer.type": {"optimizer_states": _optimizer_states},
    "precision": {"precision": _word(PRECISIONS)},
    "activation_checkpointing": {"checkpointing": _checkpointing},
    "activation_checkpointing.partition_activations": {"partition_activations": _number},
    "activation_checkpointing.cpu_checkpointing": {"checkpoint_offload": _number},
    "zero_optimization.offload": {
        "offload_optimizer": _offload_optimizer,
        "offload_parameters": _offload_parameters,
    },
    "zero_optimization.offload_optimizer.device": {"offload_optimizer": _word(PLACES)},
    "zero_optimization.offload_param.device": {"offload_parameters": _word(PLACES)},
    "zero_optimization.reduce_bucket_size": {"reduce_bucket_size": _number},
    "zero_optimization.allgather_bucket_size": {"allgather_bucket_size": _number},
    "zero_optimization.overlap_comm": {"overlap_comm": _number},
    "zero_optimization.stage3_param_persistence_threshold": {"persistence_threshold": _number},
    "zero_optimization.stage3_max_live_parameters": {"max_live_parameters": _number},
    "zero_optimization.stage3_max_reuse_distance": {"max_reuse_distance": _number},
    "zero_optimization.stage3_prefetch_bucket_size": {"prefetch_bucket_size": _number},
    "zero_optimization.sub_group_size": {"sub_group_size": _number},
    "zero_optimization.use_multi_rank_bucket_allreduce": {"multi_rank_bucket_allreduce": _number},
    "zero_optimization.zero_hpz_partition_size": {"secondary_partition": _number},
    "zero_optimization.zero_quantized_weights": {"quantized_weights": _number},
    "zero_optimization.zero_quantized_gradients": {"quantized_gradients": _number},
    "data_types.grad_accum_dtype": {"fp32_gradients": _is_fp32},
    "bf16.bf16_optimizer_states": {"low_precision_states": _number},
    "tensor_parallel.autotp_size": {"tensor_parallel": _number},
    "pipeline.stages": {"pipeline_parallel": _number},
    "sequence_parallel_size": {"sequence_parallel": _number},
}


def _order(key: str) -> tuple[bool, str]:
    """Sort `precision` behind DeepSpeed's own switches, which it stands for."""
    return (key == "precision", key)


def _converted(key: str, values: Sequence[Any] | Array, read: Callable[[Any], float]) -> Array:
    if isinstance(values, np.ndarray) and values.dtype.kind in "bif" and read in (_number, _checkpointing):
        return values.astype(np.float64)
    column = np.asarray(values)
    if column.dtype.kind == "U":  # few words, many rows
        words, places = np.unique(column, return_inverse=True)
        return np.array([_one(key, str(word), read) for word in words])[places.reshape(column.shape)]
    return np.array([_one(key, value, read) for value in values], dtype=np.float64)


def _one(key: str, value: Any, read: Callable[[Any], float]) -> float:
    try:
        return read(value)
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{key}: got {value!r}, which the performance model can't read; give a value as DeepSpeed takes it"
        ) from error
