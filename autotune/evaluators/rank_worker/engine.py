"""The DeepSpeed engine of one rank: built from the configuration as sent, and compared with it afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import deepspeed
import hjson

from autotune.dotted import get
from autotune.evaluators.rank_worker.failures import TrialFailed
from autotune.evaluators.rank_worker.reporter import Reporter
from autotune.evaluators.rank_worker.sameness import same
from autotune.space import LEARNING_RATE
from autotune.trials import FailureKind

OFFLOAD_KEYS = ("offload_optimizer", "offload_param")
ZERO_KEYS: Mapping[str, str] = {
    "overlap_comm": "overlap_comm",
    "contiguous_gradients": "contiguous_gradients",
    "reduce_scatter": "reduce_scatter",
    "reduce_bucket_size": "reduce_bucket_size",
}
ZERO_BELOW_3_KEYS: Mapping[str, str] = {"allgather_bucket_size": "allgather_bucket_size"}
ZERO_3_KEYS: Mapping[str, str] = {
    "sub_group_size": "sub_group_size",
    "stage3_prefetch_bucket_size": "prefetch_bucket_size",
    "stage3_param_persistence_threshold": "param_persistence_threshold",
    "stage3_max_live_parameters": "max_live_parameters",
    "stage3_max_reuse_distance": "max_reuse_distance",
}
"""DeepSpeed's key and its attribute in `DeepSpeedZeroConfig` (`deepspeed/runtime/zero/config.py`), where it matters."""


def build(model: Any, ds_config: Mapping[str, Any], reporter: Reporter) -> Any:
    """Run `deepspeed.initialize` with the optimizer of the configuration, over the trainable parameters.

    Raises:
        TrialFailed: INVALID_CONFIG, when the configuration names no optimizer.
    """
    if not ds_config.get("optimizer"):
        raise TrialFailed(
            FailureKind.INVALID_CONFIG,
            "optimizer: the configuration has none; autotune trains with DeepSpeed's own, "
            'e.g. {"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}',
        )
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    reporter.initializing = True
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=trainable,
        config=as_read_from_a_file(_without_autotuning(ds_config)),
        dist_init_required=False,
    )
    reporter.initializing = False
    return engine


def parameter_counts(engine: Any) -> tuple[int, int]:
    """Return how many parameters require a gradient, and how many there are, over all ranks' shards."""
    # ZeRO-3 keeps the whole size beside the own shard (deepspeed/runtime/zero/partition_parameters.py).
    sizes = [(each.requires_grad, int(getattr(each, "ds_numel", each.numel()))) for each in engine.module.parameters()]
    return sum(size for trains, size in sizes if trains), sum(size for _, size in sizes)


def as_read_from_a_file(ds_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the configuration as DeepSpeed would read it from a file: by hjson (runtime/config.py).

    hjson makes ints of whole numbers below 1e10, and some of DeepSpeed asks for it: a scheduler refuses
    `warmup_num_steps: 100.0`, which is what json makes of the file's 1e2. (A copy, as DeepSpeed changes what it gets.)
    """
    config: dict[str, Any] = hjson.loads(json.dumps(ds_config), object_pairs_hook=dict)
    return config


def _without_autotuning(ds_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Switch DeepSpeed's own autotuner off: it would end the run after a few steps."""
    block = ds_config.get("autotuning")
    return {**ds_config, "autotuning": {**block, "enabled": False}} if isinstance(block, Mapping) else ds_config


def effective_config(engine: Any, world_size: int) -> dict[str, Any]:
    """Return what the engine runs, by DeepSpeed's dotted keys (a ZeRO key only where its stage uses it)."""
    stage = int(engine.zero_optimization_stage())
    group = engine.optimizer.param_groups[0]
    effective: dict[str, Any] = {
        "world_size": world_size,
        "train_micro_batch_size_per_gpu": engine.train_micro_batch_size_per_gpu(),
        "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
        "train_batch_size": engine.train_batch_size(),
        "gradient_clipping": engine.gradient_clipping(),
        "bf16.enabled": bool(engine.bfloat16_enabled()),
        "fp16.enabled": bool(engine.fp16_enabled()),
        "optimizer.type": engine.optimizer_name(),
        "optimizer.class": type(engine.basic_optimizer).__name__,
        LEARNING_RATE: group.get("initial_lr", group["lr"]),  # a scheduler of the script's may warm it up
        "scheduler.type": engine.scheduler_name(),
        "zero_optimization.stage": stage,
    }
    names = {**(ZERO_KEYS if stage else {}), **(ZERO_BELOW_3_KEYS if stage in (1, 2) else {})}
    names |= ZERO_3_KEYS if stage == 3 else {}
    zero = engine._config.zero_config  # noqa: SLF001 - the engine has no getter for each of them
    effective |= {f"zero_optimization.{key}": getattr(zero, attribute) for key, attribute in names.items()}
    # DeepSpeed ignores optimizer offload at stage 0 and parameter offload below stage 3 without a word.
    for key, least_stage in zip(OFFLOAD_KEYS, (1, 3), strict=True):
        offload = getattr(zero, key)
        device = str(getattr(offload.device, "value", offload.device)) if offload is not None else "none"
        effective[f"zero_optimization.{key}.device"] = device if stage >= least_stage else "none"
    return effective


def check_as_sent(ds_config: Mapping[str, Any], effective: Mapping[str, Any]) -> None:
    """Compare every value that was sent with the engine's.

    Raises:
        TrialFailed: INVALID_CONFIG, when one differs: a result must be of the configuration it is filed under.
    """
    differing = []
    for key, got in effective.items():
        sent = get(ds_config, key)
        warming_up = key == LEARNING_RATE and effective["scheduler.type"] is not None
        if sent is not None and sent != "auto" and not warming_up and not same(sent, got):
            differing.append(f"{key}: sent {sent!r}, the engine runs {got!r}")
    if differing:
        raise TrialFailed(
            FailureKind.INVALID_CONFIG,
            f"DeepSpeed runs something else than it was asked to: {'; '.join(differing)}. "
            "Send what it runs, or leave the key out",
        )
