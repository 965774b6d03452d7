"""accelerate's configuration file: what DeepSpeed is given when a script is launched with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BLOCK = "deepspeed_config"
CONFIG_FILE = "deepspeed_config_file"
IGNORED_WITH_A_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
    "mixed_precision",
)
"""accelerate ends where one stands beside a file: `_deepspeed_config_checks` in accelerate/utils/dataclasses.py."""
_STAGE = 2
"""accelerate's default: `DeepSpeedPlugin.__post_init__` in accelerate/utils/dataclasses.py."""


def is_accelerates(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is an accelerate configuration."""
    return BLOCK in data or "distributed_type" in data or "compute_environment" in data


def deepspeeds(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the DeepSpeed configuration that accelerate makes of its own keys.

    `DeepSpeedPlugin.__post_init__` and `set_mixed_precision` in accelerate/utils/dataclasses.py.
    """
    given = data.get(BLOCK)
    block: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    zero: dict[str, Any] = {"stage": block.get("zero_stage", _STAGE)}
    for what in ("optimizer", "param"):
        device = str(block.get(f"offload_{what}_device", "none")).lower()
        zero[f"offload_{what}"] = {"device": device}
        if device == "nvme":
            zero[f"offload_{what}"]["nvme_path"] = block.get(f"offload_{what}_nvme_path")
    zero["stage3_gather_16bit_weights_on_model_save"] = block.get("zero3_save_16bit_model", False)
    config: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": block.get("gradient_accumulation_steps", "auto"),
        "gradient_clipping": block.get("gradient_clipping", "auto"),
        "zero_optimization": zero,
    }
    precision = str(data.get("mixed_precision")).lower()
    if precision == "fp16":
        config["fp16"] = {"enabled": True, "auto_cast": True}
    elif precision in ("bf16", "fp8"):
        config["bf16"] = {"enabled": True}
    return config
