"""Published measurements as rows that the model can be asked about, or the reason why it can't.

What a source leaves out is filled in by the rules here, the same for all sources; each is a constant or a function with
its reason. A row stays out where its configuration or its quantity isn't determined, and is counted by that reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from autotune.errors import ConfigError
from autotune.performance.arrays import Array
from autotune.performance.configurations import PRECISIONS, Configurations
from autotune.performance.devices import Cluster, Device, cluster, device
from autotune.performance.shape import ModelShape

DEVICES: Mapping[str, str] = {
    "A100": "A100-SXM-80GB",
    "A100-80GB": "A100-SXM-80GB",
    "A100-40GB": "A100-SXM-40GB",
    "V100": "V100-SXM2/3-32GB",
    "V100-32GB": "V100-SXM2/3-32GB",
    "V100-SXM3-32GB": "V100-SXM2/3-32GB",
    "V100-16GB": "V100-SXM2-16GB",
    "H100": "H100-SXM-80GB",
    "H100-80GB": "H100-SXM-80GB",
    "H100-SXM-80GB": "H100-SXM-80GB",
    "H200": "H200-SXM-141GB",
    "B200": "B200-SXM-180GB",
    "B300": "B300-SXM",
    "GB200": "GB200",
    "GB300": "GB300",
    "GH200-96GB": "GH200-96GB",
    "TitanRTX-24GB": "TitanRTX",
    "RTX-3090-24GB": "RTX-3090",
    "MI250X-GCD": "MI250X (module, 2 GCD)",
}
"""From the tables' names to `hardware.csv`; a bare A100 computes alike in both sizes, but its memory is not judged."""
UNSURE_MEMORY = frozenset({"A100", "V100", "H100", "MI250X-GCD"})
FLASH_DEVICES = ("H100", "H200", "GH200", "B200", "B300", "GB200", "GB300")
"""Newer than FlashAttention (2022), so frameworks use it by default there; elsewhere a row says so."""
FLASH_WORDS = re.compile(
    r"flash(?!attention 1 absent)|xformers|ulysses|FPDT|FSDP aligned|DeepSpeed ZeRO-3; step", re.IGNORECASE
)
UNTIED_MODELS = re.compile(r"llama|granite|qwen-72|qwen3|mixtral", re.IGNORECASE)
"""`tie_word_embeddings` is false in their Hugging Face configurations."""
GATED_MODELS = re.compile(r"llama|granite|qwen", re.IGNORECASE)
LLAMA_SHAPES: Mapping[str, tuple[float, float]] = {
    "Llama-3.1-405B": (8.0, 53248.0),
    "Llama-3.1-70B": (8.0, 28672.0),
    "Llama-3-70B": (8.0, 28672.0),
    "Llama-3-8B": (8.0, 14336.0),
    "Llama-3.1-8B": (8.0, 14336.0),
}
"""Key-value heads and feed-forward width (Hugging Face configurations)."""
OTHER_MODELS = re.compile(r"t5|blender|deberta|moe|A3B|mixtral", re.IGNORECASE)
"""Encoder-decoders, mixtures of experts, disentangled attention: not what the shape describes."""
MEGATRON_WORDS = re.compile(r"megatron|bigscience", re.IGNORECASE)
"""Megatron accumulates and reduces bf16 gradients in fp32 (megatron/training/arguments.py)."""
FUSED_WORDS = re.compile(
    r"megatron|bigscience|vTrain|calculon|torch\.compile|DeepSpeed kernel|stochastic|NVIDIA", re.IGNORECASE
)
"""Frameworks and kernels that fuse; a model split over ranks or stages is Megatron's too. Hugging Face's is eager."""
EAGER_WORDS = re.compile(r"HF Trainer|Hugging ?Face|PyTorch;|Eager", re.IGNORECASE)
LONG_SEQUENCE = 16384.0
"""From here on scores of a s^2 don't fit in memory, so attention must be of the flash kind."""
NVLINK_DOMAINS: Mapping[str, float] = {"GB200": 72.0, "GB300": 72.0}
"""Devices that NVLink joins across nodes (NVL72, hardware.csv's note)."""


class Measure(StrEnum):
    """How a row's value compares with the model."""

    ABSOLUTE = "absolute"
    """A step time, or what converts to one."""
    RELATIVE = "relative"
    """TFLOPS of an unspecified convention: comparable within its source only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published run, determined enough to be asked about. Numbers are those of the table or of the rules."""

    identifier: str
    group: str
    """The source, and what must not be mixed within it (the autotuner's own metric, FSDP)."""
    measure: Measure
    step_time_s: float
    out_of_memory: bool | None
    """What happened; None where the card, the recomputation or the layers are not known."""
    assumed: tuple[str, ...]
    shape: Mapping[str, float | None]
    cluster: Cluster
    configuration: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows as arrays, ready for `estimate`."""

    rows: tuple[Row, ...]
    shape: ModelShape
    cluster: Cluster
    configurations: Configurations
    groups: Array
    """Names, shape (rows,)."""
    step_time_s: Array

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A row that stays out."""

    identifier: str
    source: str
    reason: str


def read(path: Path) -> list[dict[str, str]]:
    """Read one of the published tables.

    Raises:
        ConfigError: when it is not there.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise ConfigError(
            f"published measurements: {path} can't be read ({error.strerror}); give its folder"
        ) from error


def runs(records: Sequence[Mapping[str, str]]) -> tuple[list[Row], list[Left]]:
    """Return the runs that the model can be asked about, and those that stay out."""
    rows: list[Row] = []
    left: list[Left] = []
    for record in records:
        found = _run(record)
        if isinstance(found, Row):
            rows.append(found)
        else:
            left.append(Left(identifier=record["id"], source=record["source"], reason=found))
    return rows, left


READINGS: Mapping[str, str] = {
    "alloc_after_step": "steady_bytes",
    "peak_alloc": "peak_allocated_bytes",
    "peak_reserved": "peak_reserved_bytes",
    "nvidia_smi_used": "device_used_bytes",
    "max_gpu_mem": "device_used_bytes",
    "host_ram": "host_bytes",
}
"""From a published quantity to the field of `Memory` that it reads."""
UNITS: Mapping[str, float] = {
    "GB": 2.0**30, "GiB": 2.0**30, "GB (GiB?)": 2.0**30, "G": 2.0**30, "MB": 2.0**20, "MiB": 2.0**20, "MB (log)": 2.0**20
}  # fmt: skip
"""Tools print powers of two and call them GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One published measurement of memory."""

    row: Row
    quantity: str
    field: str
    measured_bytes: float


def readings(records: Sequence[Mapping[str, str]]) -> tuple[list[Reading], list[Left]]:
    """Return measurements of memory that the model can be asked about, and those that stay out."""
    found: list[Reading] = []
    left: list[Left] = []
    for record in records:
        one = _reading(record)
        if isinstance(one, Reading):
            found.append(one)
        else:
            left.append(Left(identifier=record["id"], source=record["source"], reason=one))
    return found, left


def _reading(record: Mapping[str, str]) -> Reading | str:
    if record["kind"] != "measured":
        return f"not measured: {record['kind']}"
    if "caching allocator fills the card" in record["note"] or "upper bound" in record["note"]:
        return "an upper bound: the allocator had filled the card"
    if record["quantity"] == "peak_gpu_mem":
        return "peak of an unstated kind (allocated, reserved or nvidia-smi)"
    if record["quantity"] not in READINGS:
        return f"quantity {record['quantity']}"
    settled = setting(record, need_batch=False)
    if isinstance(settled, str):
        return settled
    configuration = dict(settled.configuration)
    configuration["accumulation"] = max(configuration["accumulation"], configuration["pipeline_parallel"])
    row = Row(
        identifier=record["id"],
        group=record["source"],
        measure=Measure.ABSOLUTE,
        step_time_s=float("nan"),
        out_of_memory=False,
        assumed=settled.assumed,
        shape=settled.shape,
        cluster=settled.cluster,
        configuration=configuration,
    )
    return Reading(
        row=row,
        quantity=record["quantity"],
        field=READINGS[record["quantity"]],
        measured_bytes=float(record["value"]) * UNITS[record["unit"]],
    )


def table(rows: Sequence[Row]) -> Table:
    """Return rows as arrays."""
    shapes = [ModelShape.from_numbers(**row.shape) for row in rows]  # type: ignore[arg-type]
    columns = {name: _column([getattr(shape, name) for shape in shapes]) for name in ModelShape.__slots__}
    devices = [row.cluster.device for row in rows]
    parts = [name for name in Device.__slots__ if name != "name"]
    together = Device(**{name: _column([getattr(one, name) for one in devices]) for name in parts})
    others = [name for name in Cluster.__slots__ if name != "device"]
    machines = {name: _column([getattr(row.cluster, name) for row in rows]) for name in others}
    keys = {key for row in rows for key in row.configuration}
    defaults = Configurations()
    fields = {
        key: _column([row.configuration.get(key, float(getattr(defaults, key))) for row in rows])
        for key in sorted(keys)
    }
    return Table(
        rows=tuple(rows),
        shape=ModelShape(**columns),
        cluster=Cluster(device=together, **machines),
        configurations=Configurations(**fields),
        groups=np.array([row.group for row in rows]),
        step_time_s=_column([row.step_time_s for row in rows]),
    )


def _column(values: Sequence[float]) -> Array:
    return np.array([float(value) for value in values])


def _run(record: Mapping[str, str]) -> Row | str:
    """Return a run, or why it stays out."""
    metric = record["metric"]
    if metric not in CONVERSIONS and metric not in ("oom", "failed_or_oom"):
        return f"the metric {metric} gives no step time of a whole step"
    if metric == "failed_or_oom":
        return "failed, but not said of what"
    if "DeepCompile" in record["note"]:
        return "DeepCompile changes what is gathered and offloaded"
    if "inter bw not stated" in record["note"]:
        return "network between nodes not stated"
    settled = setting(record)
    if isinstance(settled, str):
        return settled
    group = record["source"]
    note = record["note"]
    if "AUTOTUNER metric" in note:
        group += " [autotuner's own metric]"
    if re.search(r"\bFSDP (aligned|DDP|SHARD|FULL|offload)", note):
        group += " [FSDP]"
    judged = record["gpu"] not in UNSURE_MEMORY and record["act_ckpt"] != "" and settled.shape["layers"] is not None
    if metric == "oom":
        step, measure = float("nan"), Measure.ABSOLUTE
    else:
        step = CONVERSIONS[metric](record, settled)
        measure = Measure.RELATIVE if metric in RELATIVE_METRICS else Measure.ABSOLUTE
    return Row(
        identifier=record["id"],
        group=group,
        measure=measure,
        step_time_s=step,
        out_of_memory=(metric == "oom") if judged else None,
        assumed=settled.assumed,
        shape=settled.shape,
        cluster=settled.cluster,
        configuration=settled.configuration,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Shape, cluster and configuration of one record."""

    shape: Mapping[str, float | None]
    cluster: Cluster
    configuration: Mapping[str, float]
    data: float
    assumed: tuple[str, ...]

    @property
    def global_batch(self) -> float:
        """Samples per step, as the configuration makes them."""
        return self.configuration["micro_batch"] * self.configuration["accumulation"] * self.data

    @property
    def built(self) -> ModelShape:
        return ModelShape.from_numbers(**self.shape)  # type: ignore[arg-type]


def setting(record: Mapping[str, str], *, need_batch: bool = True) -> Setting | str:
    """Return what a record says of model, machines and configuration, or why that is not enough."""
    note = record["note"]
    assumed: list[str] = []
    if record["gpu"] not in DEVICES:
        return f"unknown device {record['gpu'] or '(none stated)'}"
    devices = number(record["gpus"])
    if not devices:
        return "number of devices not stated"
    parallel = _parallelism(record, devices)
    if isinstance(parallel, str):
        return parallel
    shape = _shape(record, assumed)
    if isinstance(shape, str):
        return shape
    configuration = _features(record, parallel)
    if isinstance(configuration, str):
        return configuration
    spread = parallel["tensor_parallel"] * parallel["pipeline_parallel"] * parallel["sequence_parallel"]
    data = max(devices / spread, 1.0)
    batch = _batch(record, shape, data, parallel["pipeline_parallel"], configuration["stage"], assumed)
    if batch is None:
        if need_batch:
            return "micro-batch or batch not stated"
        batch = (1.0, 1.0)
    configuration = configuration | parallel | {"micro_batch": batch[0], "accumulation": batch[1]}
    if not record["act_ckpt"]:
        assumed.append("no recomputation")
    name = DEVICES[record["gpu"]]
    machines = cluster(
        name,
        devices=int(devices),
        devices_per_node=int(_per_node(record, devices)) or None,
        inter_node_gbps=_network(record),
    )
    if record["gpu"] == "MI250X-GCD":
        machines = _half_module(machines)
    if record["gpu"] in NVLINK_DOMAINS and number(record["gpus_per_node"]):
        joined = machines.devices_per_node / float(record["gpus_per_node"])
        machines = replace(machines, inter_bandwidth=machines.inter_bandwidth * joined)
    return Setting(shape=shape, cluster=machines, configuration=configuration, data=data, assumed=tuple(assumed))


def _half_module(machines: Cluster) -> Cluster:
    """Return MI250X's two dies as two devices, as software sees them (hardware.csv's note)."""
    whole = machines.device
    half = Device(
        memory_bytes=whole.memory_bytes / 2,
        memory_bandwidth=whole.memory_bandwidth / 2,
        fp32_flops=whole.fp32_flops / 2,
        half_flops=whole.half_flops / 2,
        fp8_flops=0.0,
        measured_fraction=whole.measured_fraction,
        pcie_bandwidth=whole.pcie_bandwidth,
    )
    return Cluster(
        device=half,
        devices=machines.devices,
        devices_per_node=machines.devices_per_node,
        intra_bandwidth=machines.intra_bandwidth,
        inter_bandwidth=machines.inter_bandwidth,
        host_memory_bytes=machines.host_memory_bytes,
        cpu_adam_per_second=machines.cpu_adam_per_second,
    )


def _per_node(record: Mapping[str, str], devices: float) -> float:
    joined = NVLINK_DOMAINS.get(record["gpu"], 0.0)
    return max(number(record["gpus_per_node"]) or 0.0, min(joined, devices))


def _network(record: Mapping[str, str]) -> float | None:
    """Return a node's network in Gbit/s: measured where the source measured, else as stated."""
    measured = re.search(r"measured all-reduce busbw only (\d+)-(\d+) Gbps", record["note"])
    if measured:
        return float(np.sqrt(float(measured[1]) * float(measured[2])))
    return number(record.get("inter_node_gbps", ""))


def _parallelism(record: Mapping[str, str], devices: float) -> dict[str, float] | str:
    note = record["note"]
    tensor, pipeline = number(record["tp"]), number(record["pp"])
    stage = number(record["zero_stage"])
    if tensor is None and pipeline is None and devices > 1:
        return "degrees of parallelism not stated"
    tensor, pipeline = tensor or 1.0, pipeline or 1.0
    context = re.search(r"\bCP=(\d+)", note)
    chunks = re.search(r"\bVP=(\d+)", note)
    sequence = float(context[1]) if context else 1.0
    if re.search(r"\bUL\b|FPDT", note):
        sequence = devices
    elif "Ulysses" in note or "ColAI-SP" in note:
        return "degree of sequence parallelism not stated"
    return {
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "sequence_parallel": sequence,
        "interleave": float(chunks[1]) if chunks and pipeline > 1 else 1.0,
        "stage": stage or 0.0,
    }


def _shape(record: Mapping[str, str], assumed: list[str]) -> dict[str, float | None] | str:
    parameters = number(record["params_b"])
    sequence = number(record["seq"])
    layers, hidden = number(record["layers"]), number(record["hidden"])
    tokens = re.fullmatch(r"(\d+) tokens/GPU", record["micro_batch"])
    if sequence is None and tokens:
        sequence = float(tokens[1])
        assumed.append("one sample per rank")
    if sequence is None:
        return "sequence length not stated"
    if parameters is None and (layers is None or hidden is None):
        return "neither parameters nor shape stated"
    if layers is None or hidden is None:
        assumed.append("layers or hidden size by the usual proportions")
    vocabulary = number(record["vocab"])
    if vocabulary is None:
        vocabulary = 50257.0
        assumed.append("vocabulary of GPT-2")
    if OTHER_MODELS.search(record["model"]):
        return "not a plain stack of transformer layers"
    known = LLAMA_SHAPES.get(record["model"])
    untied = bool(UNTIED_MODELS.search(record["model"]))
    gated = bool(GATED_MODELS.search(record["model"]))
    width = known[1] if known else (8.0 / 3.0 * hidden if gated and hidden else None)
    return {
        "parameters": parameters * 1e9 if parameters else None,
        "layers": layers,
        "hidden": hidden,
        "heads": number(record["heads"]),
        "sequence": sequence,
        "vocabulary": vocabulary,
        "kv_heads": known[0] if known else None,
        "ffn_hidden": width,
        "gated": float(gated),
        "tied": float(not untied),
        "predicted_fraction": _predicted_fraction(record),
    }


def _features(record: Mapping[str, str], parallel: Mapping[str, float]) -> dict[str, float] | str:
    note, source = record["note"], record["source"]
    precision = record["precision"]
    if "fp4" in precision:
        return "nvfp4: no rate in the hardware table"
    word = "fp8" if "fp8" in precision else precision.split("-")[0] or "fp16"
    checkpointing = record["act_ckpt"]
    offload = record["offload"]
    nvme = "nvme" in offload
    optimizer = "cpu_optimizer" in offload or nvme or offload.startswith("cpu (")
    parameters = "cpu_param" in offload or nvme
    megatron = "distributed optimizer" in note or "distributed optimizer" in source
    stage = parallel["stage"]
    sharded = re.search(r"\bFSDP=(\d+)", note)
    if sharded and int(sharded[1]) > 0:
        stage = 3.0
    fused = re.search(r"\bDDP\b", note) is not None and stage == 0
    plus = "ZeRO++" in note and "baseline" not in note
    return {
        "stage": stage,
        "precision": float(PRECISIONS.index(word)),
        "fp32_gradients": float(word == "bf16" and stage <= 1 and bool(MEGATRON_WORDS.search(source + note))),
        "low_precision_states": float("lowprec" in precision),
        "checkpointing": 1.0 if checkpointing.startswith("full") else 2.0 if checkpointing.startswith("sel") else 0.0,
        "checkpoint_offload": float("+cpu" in checkpointing),
        "partition_activations": float(stage == 3 and parallel["tensor_parallel"] > 1),
        "offload_optimizer": 2.0 if nvme else float(optimizer),
        "offload_parameters": 2.0 if nvme else float(parameters),
        "overlap_comm": float(stage == 3 or megatron or fused or "overlap" in note),
        "multi_rank_bucket_allreduce": float(not megatron),
        "quantized_weights": float(plus),
        "quantized_gradients": float(plus),
        "secondary_partition": (number(record["gpus_per_node"]) or 1.0) if plus else 1.0,
        "flash_attention": float(
            record["gpu"].startswith(FLASH_DEVICES)
            or bool(FLASH_WORDS.search(note))
            or (number(record["seq"]) or 0.0) >= LONG_SEQUENCE
        ),
        "fused_kernels": float(_fused(record, parallel)),
        "overlap_tensor_comm": float("NeMo" in note or "mcore" in source),
        "tensor_sequence_parallel": float(
            parallel["tensor_parallel"] > 1
            and (megatron or "sequence parallel" in note or checkpointing == "selective")
        ),
    }


def _fused(record: Mapping[str, str], parallel: Mapping[str, float]) -> bool:
    if EAGER_WORDS.search(record["note"]):
        return False
    split = parallel["tensor_parallel"] * parallel["pipeline_parallel"] > 1
    return split or FUSED_WORDS.search(record["source"] + record["note"]) is not None


def _predicted_fraction(record: Mapping[str, str]) -> float:
    if "bert" not in record["model"].lower():
        return 1.0
    return 0.0 if re.search(r"run_glue|SQuAD", record["note"] + record["model"]) else 0.15


def _batch(
    record: Mapping[str, str],
    shape: Mapping[str, float | None],
    data: float,
    pipeline: float,
    stage: float,
    assumed: list[str],
) -> tuple[float, float] | None:
    """Return micro-batch and accumulation.

    Where only the batch is stated: micro-batch 1 in a pipeline (more micro-batches, smaller bubble), else 4 at most,
    where most products of matrices are saturated; 8 at stage 3, whose traffic grows with micro-steps.
    """
    micro = number(record["micro_batch"])
    tokens = re.fullmatch(r"(\d+) tokens/GPU", record["micro_batch"])
    if tokens:
        micro = float(tokens[1]) / (shape["sequence"] or 1.0)
    accumulation = number(record.get("grad_accum", ""))
    whole = number(record.get("global_batch", ""))
    if micro is None:
        if whole is None:
            return None
        each = max(whole / data, 1.0)
        if accumulation:
            return each / accumulation, accumulation
        micro = 1.0 if pipeline > 1 else min(8.0 if stage == 3 else 4.0, each)
        assumed.append("micro-batch")
    if whole:
        return micro, max(whole / (data * micro), 1.0)
    return micro, accumulation or 1.0


def number(text: str) -> float | None:
    """Return a table's number, or None where it holds nothing or words."""
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _value(record: Mapping[str, str]) -> float:
    return float(record["value"])


def _by_step(record: Mapping[str, str], settled: Setting) -> float:
    return _value(record)


def _by_samples(record: Mapping[str, str], settled: Setting) -> float:
    return settled.global_batch / _value(record)


def _by_tokens(record: Mapping[str, str], settled: Setting) -> float:
    return settled.global_batch * (settled.shape["sequence"] or 0.0) / (_value(record) * float(record["gpus"]))


def _by_model_flops(record: Mapping[str, str], settled: Setting) -> float:
    flops = float(settled.built.model_flops) * settled.global_batch
    return flops / (_value(record) * 1e12 * float(record["gpus"]))


def _by_hardware_flops(record: Mapping[str, str], settled: Setting) -> float:
    """Return the step time behind TFLOPS with recomputation; "8N" in a note means 8 P per token, 6 P without it."""
    shape = settled.built
    checkpointing = settled.configuration["checkpointing"]
    flops = float(shape.model_flops + shape.recomputed_flops(checkpointing))
    if re.search(r"\b8\*?N\b", record["note"]):
        flops = (8.0 if checkpointing == 1 else 6.0) * float(shape.parameters) * float(shape.sequence)
    return flops * settled.global_batch / (_value(record) * 1e12 * float(record["gpus"]))


def _by_mfu(record: Mapping[str, str], settled: Setting) -> float:
    peak = float(device(DEVICES[record["gpu"]]).half_flops)
    flops = float(settled.built.model_flops) * settled.global_batch
    return flops / (_value(record) / 100.0 * peak * float(record["gpus"]))


def _by_hfu(record: Mapping[str, str], settled: Setting) -> float:
    shape = settled.built
    flops = float(shape.model_flops + shape.recomputed_flops(settled.configuration["checkpointing"]))
    peak = float(settled.cluster.device.half_flops)
    return flops * settled.global_batch / (_value(record) / 100.0 * peak * float(record["gpus"]))


CONVERSIONS = {
    "step_time_s": _by_step,
    "samples_per_s": _by_samples,
    "tokens_per_s_per_gpu": _by_tokens,
    "tflops_per_gpu_model": _by_model_flops,
    "tflops_per_gpu_hw": _by_hardware_flops,
    "tflops_per_gpu_unspecified": _by_hardware_flops,
    "mfu_pct": _by_mfu,
    "hfu_pct": _by_hfu,
}
"""From a published metric to the seconds of one optimizer step."""
RELATIVE_METRICS = frozenset({"tflops_per_gpu_unspecified"})
