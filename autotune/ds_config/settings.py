"""What a configuration says, by the search space's names."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from autotune.dotted import get, leaves
from autotune.errors import ConfigError
from autotune.space import ACCUMULATION, LEARNING_RATE, MICRO_BATCH
from autotune.trials import Value

PRECISION = "precision"
OFFLOAD = "zero_optimization.offload"
ACTIVATION_CHECKPOINTING = "activation_checkpointing"
STAGE = "zero_optimization.stage"

AUTO = "auto"
"""What Hugging Face's Trainer and accelerate fill in; DeepSpeed itself doesn't know it."""
SHARED_BY_TRAINER = (MICRO_BATCH, ACCUMULATION, LEARNING_RATE)
"""Searched keys that have an argument of the script beside them, in Hugging Face's TrainingArguments: it refuses a
configuration that says another value (`HfTrainerDeepSpeedConfig` in transformers/integrations/deepspeed.py)."""
_KEYS: Mapping[str, tuple[str, ...]] = {
    PRECISION: ("fp16.enabled", "bf16.enabled"),
    OFFLOAD: ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"),
    ACTIVATION_CHECKPOINTING: (),
}
_DEFAULTS: Mapping[str, Value] = {STAGE: 0, MICRO_BATCH: 1, ACCUMULATION: 1}
"""DeepSpeed's defaults: deepspeed/runtime/zero/config.py, deepspeed/runtime/constants.py."""


def settings_of(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return what a configuration says, by the search space's names: what it sets, and DeepSpeed's defaults that count.

    A micro-batch or accumulation that is not given follows from `train_batch_size` only once the number of ranks is
    known: see `complete`. Values "auto" are not settings and are left out.
    """
    settings: dict[str, Value] = dict(_DEFAULTS)
    for dotted, value in leaves(config).items():
        if isinstance(value, bool | int | float | str) and value != AUTO:
            settings[dotted] = int(value) if isinstance(value, float) and _is_count(dotted, value) else value
    # DeepSpeed's default depends on the stage: `overlap_comm_valid` in deepspeed/runtime/zero/config.py.
    settings.setdefault("zero_optimization.overlap_comm", settings[STAGE] == 3)
    settings[PRECISION] = precision_of(config)
    settings[OFFLOAD] = _offload_of(config, stage=settings[STAGE])
    settings[ACTIVATION_CHECKPOINTING] = False
    return settings


def precision_of(config: Mapping[str, Any]) -> str:
    """Return 'fp16', 'bf16' or 'fp32' as the configuration enables it ("auto" counts as not enabled)."""
    for name, blocks in (("fp16", ("fp16",)), ("bf16", ("bf16", "bfloat16"))):
        if any(get(config, f"{block}.enabled") is True for block in blocks):
            return name
    return "fp32"


def check_stage(config: Mapping[str, Any]) -> None:
    """Refuse a ZeRO stage that there is not.

    Raises:
        ConfigError: with the value got.
    """
    stage = get(config, STAGE)
    if stage is not None and (isinstance(stage, bool) or stage not in (0, 1, 2, 3) or not isinstance(stage, int)):
        raise ConfigError(f"{STAGE}: got {stage!r}; it must be 0, 1, 2 or 3")


def without_auto(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the configuration without its "auto" values, and their dotted keys.

    "auto" is filled in by Hugging Face's Trainer, not by DeepSpeed: without it DeepSpeed's default applies.
    """
    gone: list[str] = []

    def strip(block: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in block.items():
            if value == AUTO:
                gone.append(prefix + key)
            else:
                kept[key] = strip(value, f"{prefix}{key}.") if isinstance(value, Mapping) else copy.deepcopy(value)
        return kept

    return strip(config, ""), tuple(gone)


def keys_of(name: str) -> tuple[str, ...]:
    """Return the DeepSpeed keys that a dimension of the search space decides."""
    return _KEYS.get(name, (name,))


def _is_count(dotted: str, value: float) -> bool:
    """Whether a float is a count in scientific notation (5e8), as DeepSpeed reads it."""
    return dotted.startswith("zero_optimization.") and value.is_integer()


def _offload_of(config: Mapping[str, Any], *, stage: Value) -> str:
    """Return what DeepSpeed keeps in host memory; 'parameters' alone is no level of the default space.

    The optimizers of stages 1 and 2 aren't handed `offload_param` (`_configure_zero_optimizer` in
    deepspeed/runtime/engine.py), and stage 3 takes each of the two by itself (`_configure_offloading` in
    deepspeed/runtime/zero/stage3.py).
    """

    def offloaded(what: str) -> bool:
        return get(config, f"zero_optimization.offload_{what}.device") in ("cpu", "nvme")

    optimizer = offloaded("optimizer")
    if offloaded("param") and stage == 3:
        return "optimizer_and_parameters" if optimizer else "parameters"
    return "optimizer" if optimizer else "none"
