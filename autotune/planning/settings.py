"""What a training does besides its stage: read from a DeepSpeed configuration file, changed by options, or usual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune import dotted, ds_config
from autotune.errors import ConfigError
from autotune.performance import Configurations
from autotune.performance.configurations import CHECKPOINTING, PLACES, PRECISIONS
from autotune.performance.devices import table
from autotune.planning.hardware import Hardware
from autotune.planning.models import Model

_OVERLAP = "zero_optimization.overlap_comm"
_PIPELINE, _SEQUENCE = "pipeline.stages", "sequence_parallel_size"
_TENSOR = "tensor_parallel.autotp_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says; None leaves it to the file, or to what is usual."""

    micro_batch: int | None = None
    accumulation: int | None = None
    precision: str | None = None
    checkpointing: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    flash_attention: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One configuration, and which of its parts follow the stage."""

    configuration: Configurations
    """Of one row."""
    overlap_follows_stage: bool
    """`overlap_comm` is not set: DeepSpeed overlaps at stage 3 alone (deepspeed/runtime/zero/config.py)."""
    own: tuple[int, str] | None = None
    """Stage and offload ('none', 'optimizer', 'both') of the file."""
    source: str | None = None
    notes: tuple[str, ...] = ()

    def number(self, name: str) -> float:
        """Return a field of the one configuration."""
        return float(np.asarray(getattr(self.configuration, name)).reshape(-1)[0])

    @property
    def model_parallel(self) -> int:
        return int(self.number("tensor_parallel") * self.number("pipeline_parallel") * self.number("sequence_parallel"))


def settings(model: Model, hardware: Hardware, *, config: Path | None, options: Options) -> Settings:
    """Return how a model trains on a cluster.

    Without a file: the 16-bit format of the device (fp32 on a CPU), micro-batch 1, no accumulation, no checkpointing,
    AdamW.

    Raises:
        ConfigError: when the file can't be read, or numbers don't go together.
    """
    data = ds_config.without_auto(ds_config.read(config))[0] if config is not None else {}
    flat = dotted.leaves(data)
    degrees = {
        _TENSOR: options.tensor_parallel or _degree(flat, _TENSOR),
        _PIPELINE: options.pipeline_parallel or _degree(flat, _PIPELINE),
        _SEQUENCE: _degree(flat, _SEQUENCE),
    }
    ranks = _data_parallel(degrees, model, hardware)
    if options.micro_batch or options.accumulation:
        data = {key: value for key, value in data.items() if key != "train_batch_size"}
    wanted = {
        "train_micro_batch_size_per_gpu": options.micro_batch,
        "gradient_accumulation_steps": options.accumulation,
    }
    data = ds_config.complete({**data, **{k: v for k, v in wanted.items() if v}}, world_size=ranks)
    point: dict[str, Any] = {**dotted.leaves(data), **degrees}
    precision = options.precision or (None if config is not None else usual_precision(hardware))
    if precision is not None:
        point = {key: value for key, value in point.items() if key not in ("fp16.enabled", "bf16.enabled")}
        point["precision"] = precision
    if options.checkpointing is not None:
        point["activation_checkpointing"] = options.checkpointing
    read = Configurations.from_points([point])
    read = replace(
        read,
        flash_attention=float(options.flash_attention and not hardware.is_cpu),
        tensor_sequence_parallel=np.where(np.asarray(read.tensor_parallel) > 1, 1.0, 0.0),
    )
    found = Settings(configuration=read, overlap_follows_stage=_OVERLAP not in flat)
    if config is None:
        return found
    notes: tuple[str, ...] = ()
    if "activation_checkpointing" in data and options.checkpointing is None:
        notes = (
            "the file's activation_checkpointing says how to checkpoint, not whether: --checkpointing full if it does",
        )
    return replace(found, own=(int(found.number("stage")), _offload(found)), source=str(config), notes=notes)


def usual_precision(hardware: Hardware) -> str:
    """Return what trains on a device: fp32 on a CPU, bf16 where the GPU computes in it, else fp16."""
    if hardware.is_cpu:
        return "fp32"
    row = table()[hardware.cluster.device.name]
    return "bf16" if row["peak_bf16_dense_tflops"] not in ("", "n/a") else "fp16"


def in_words(found: Settings, model: Model, hardware: Hardware) -> str:
    """Return a sentence of what is the same in all rows."""
    micro, accumulation = int(found.number("micro_batch")), int(found.number("accumulation"))
    samples = micro * accumulation * hardware.devices // found.model_parallel
    checkpointing = CHECKPOINTING[int(found.number("checkpointing"))]
    parts = [
        PRECISIONS[int(found.number("precision"))],
        f"micro-batch {micro}",
        f"accumulation {accumulation}",
        f"global batch {samples:,} ({samples * model.sequence:,.0f} tokens)",
        "no checkpointing" if checkpointing == "none" else f"{checkpointing} checkpointing",
        "flash attention" if found.number("flash_attention") else "attention without flash",
    ]
    for name, words in (("tensor_parallel", "TP"), ("pipeline_parallel", "PP"), ("sequence_parallel", "SP")):
        if found.number(name) > 1:
            parts.append(f"{words} {found.number(name):.0f}")
    return ", ".join(parts)


def _degree(flat: Mapping[str, Any], key: str) -> int:
    value = flat.get(key, 1)
    if value in (0, None):
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{key}: got {value!r}; it must be a whole number, 1 or more")
    return value


def _data_parallel(degrees: Mapping[str, int], model: Model, hardware: Hardware) -> int:
    together = int(np.prod(list(degrees.values())))
    if hardware.devices % together:
        raise ConfigError(
            f"parallelism: tensor {degrees[_TENSOR]} x pipeline {degrees[_PIPELINE]} x sequence {degrees[_SEQUENCE]} = "
            f"{together} doesn't divide {hardware.devices} devices; change one of them"
        )
    heads, layers = float(np.asarray(model.shape.heads)), float(np.asarray(model.shape.layers))
    if heads % degrees[_TENSOR]:
        raise ConfigError(f"tensor-parallel: got {degrees[_TENSOR]}; it must divide the {heads:g} attention heads")
    if degrees[_PIPELINE] > layers:
        raise ConfigError(f"pipeline-parallel: got {degrees[_PIPELINE]} stages for {layers:g} layers; take fewer")
    return hardware.devices // together


def _offload(found: Settings) -> str:
    optimizer, parameters = (PLACES[int(found.number(f"offload_{what}"))] for what in ("optimizer", "parameters"))
    return "both" if parameters != "none" else "optimizer" if optimizer != "none" else "none"
