"""From published metrics to the seconds of one optimizer step, by the convention of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from autotune.performance.validation.settings import Setting


def _value(record: Mapping[str, str]) -> float:
    return float(record["value"])


def _by_step(record: Mapping[str, str], _: Setting) -> float:
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
    peak = float(settled.cluster.device.half_flops)
    flops = float(settled.built.model_flops) * settled.global_batch
    return flops / (_value(record) / 100.0 * peak * float(record["gpus"]))


def _by_hfu(record: Mapping[str, str], settled: Setting) -> float:
    shape = settled.built
    flops = float(shape.model_flops + shape.recomputed_flops(settled.configuration["checkpointing"]))
    peak = float(settled.cluster.device.half_flops)
    return flops * settled.global_batch / (_value(record) / 100.0 * peak * float(record["gpus"]))


CONVERSIONS: Mapping[str, Callable[[Mapping[str, str], Setting], float]] = {
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
