"""What a published record says of model, machines and configuration; gaps are filled by rules, the same for all.

Each rule is a constant or a function here with its reason, and what it fills in is noted in `Setting.assumed`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from autotune.performance.coefficients import Coefficients
from autotune.performance.configurations import PRECISIONS, Configurations
from autotune.performance.devices import Cluster, Device, cluster, table
from autotune.performance.model import estimate
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
RATES = ("peak_bf16_dense_tflops", "peak_fp16_dense_tflops")
UNSURE_MEMORY = frozenset({"A100", "V100", "H100", "MI250X-GCD"})
FLASH_DEVICES = ("H100", "H200", "GH200", "B200", "B300", "GB200", "GB300")
"""Newer than FlashAttention (2022), so frameworks use it by default there; elsewhere a row says so."""
FLASH_WORDS = re.compile(r"(?<!no )flash|xformers|ulysses|FPDT", re.IGNORECASE)
FLASH_MODELS = re.compile(r"llama|granite|qwen", re.IGNORECASE)
"""Models of the same years; their Hugging Face and FSDP trainings use a fused attention."""
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
FSDP_WORDS = re.compile(r"\bFSDP\b(?!=0)")
"""PyTorch's and Megatron's FSDP gather the whole next layer beside a layer's computing (PyTorch, FSDP Notes, "FSDP
Prefetch Nuances"), where DeepSpeed prefetches `stage3_prefetch_bucket_size`."""
LONG_SEQUENCE = 16384.0
"""From here on scores of a s^2 don't fit in memory, so attention must be of the flash kind."""
SURELY_TOO_MUCH = 2.0
"""Times a card's memory: a run that worked must then have recomputed whole layers. Up to there fp8 copies and cheap
recomputation (norms, activations) may have made it fit: they save up to half."""
NVLINK_DOMAINS: Mapping[str, float] = {"GB200": 72.0, "GB300": 72.0}
"""Devices that NVLink joins across nodes (NVL72, hardware.csv's note)."""


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
    assumed: list[str] = []
    name = device_name(record["gpu"])
    if name is None:
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
    if configuration["stage"] == 3 and FSDP_WORDS.search(record["note"]):
        whole_layer = ModelShape.from_numbers(**shape).layer_parameters  # type: ignore[arg-type]
        configuration["prefetch_bucket_size"] = float(whole_layer)
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
    if not record["act_ckpt"]:
        needed = _times_the_card(shape, machines, configuration)
        recomputes = needed > SURELY_TOO_MUCH
        assumed.append("recomputation, since it doesn't fit without" if recomputes else "no recomputation")
        configuration["checkpointing"] = float(recomputes)
    return Setting(shape=shape, cluster=machines, configuration=configuration, data=data, assumed=tuple(assumed))


def _times_the_card(shape: Mapping[str, float | None], machines: Cluster, configuration: Mapping[str, float]) -> float:
    """Return the memory a configuration needs over what a device has, by the model before any fit."""
    built = ModelShape.from_numbers(**shape)  # type: ignore[arg-type]
    found = estimate(built, machines, Configurations(**configuration), Coefficients.initial()).memory
    return float((found.capacity_bytes - found.margin_bytes) / found.capacity_bytes)


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
    if precision.split("-")[0] not in ("", "mxfp8", *PRECISIONS) and "fp8" not in precision:
        return f"precision {precision}: no rate in the hardware table"
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
        "flash_attention": float(_flash(record)),
        "fused_kernels": float(_fused(record, parallel)),
        "overlap_tensor_comm": float("NeMo" in note or "mcore" in source),
        "tensor_sequence_parallel": float(
            parallel["tensor_parallel"] > 1
            and (megatron or "sequence parallel" in note or checkpointing == "selective")
        ),
    }


def _flash(record: Mapping[str, str]) -> bool:
    if record["gpu"].startswith(FLASH_DEVICES) or (number(record["seq"]) or 0.0) >= LONG_SEQUENCE:
        return True
    recent = FLASH_MODELS.search(record["model"]) is not None and record["gpu"].startswith("A100")
    return recent or FLASH_WORDS.search(record["note"]) is not None


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


def device_name(text: str) -> str | None:
    """Return the hardware table's name of a published device, or None where it has none, or no rate or link for it."""
    bare = re.sub(r"-\d+GB$", "", text)
    for name in (DEVICES.get(text, text), bare):
        row = table().get(name)
        if row and number(row["intra_bw_unidir_gbs_per_gpu"]) and any(number(row[rate]) for rate in RATES):
            return name
    return None


def number(text: str) -> float | None:
    """Return a table's number, or None where it holds nothing or words."""
    try:
        return float(text) if text else None
    except ValueError:
        return None
