"""Hugging Face's Trainer: which DeepSpeed keys it shares with its TrainingArguments, and their flags.

`HfTrainerDeepSpeedConfig` (`trainer_config_process` and `trainer_config_finalize` in
transformers/integrations/deepspeed.py, transformers 5.24) puts a TrainingArguments value wherever such a key is "auto",
and refuses a configuration where it is anything else than that value ("Please correct the following DeepSpeed config
values that mismatch TrainingArguments"). So the keys stay "auto", and tuned values reach the script as flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.dotted import get
from autotune.ds_config.settings import ACTIVATION_CHECKPOINTING, LEARNING_RATE, precision_of
from autotune.space import ACCUMULATION, MICRO_BATCH
from autotune.trials import Value

PEAK_LEARNING_RATE = "scheduler.params.warmup_max_lr"
BETAS = "optimizer.params.betas"

FLAGS: Mapping[str, tuple[str, ...]] = {
    MICRO_BATCH: ("--per_device_train_batch_size",),
    ACCUMULATION: ("--gradient_accumulation_steps",),
    "train_batch_size": (),
    "gradient_clipping": ("--max_grad_norm",),
    LEARNING_RATE: ("--learning_rate",),
    BETAS: ("--adam_beta1", "--adam_beta2"),
    "optimizer.params.eps": ("--adam_epsilon",),
    "optimizer.params.weight_decay": ("--weight_decay",),
    PEAK_LEARNING_RATE: ("--learning_rate",),
    "scheduler.params.total_num_steps": (),
    "scheduler.params.warmup_num_steps": ("--warmup_steps",),
    "fp16.enabled": ("--fp16",),
    "bf16.enabled": ("--bf16",),
}
"""Dotted DeepSpeed key, and the flags that carry its value; none where the Trainer calculates it."""

ACTIVATION_CHECKPOINTING_FLAG = "--gradient_checkpointing"
"""Switches what `activation_checkpointing` of the search space stands for: DeepSpeed's file can't. (transformers 5 also
calls it --activation_checkpointing; this name is understood by 4 and 5.)"""

ARGUMENTS: Mapping[str, tuple[str, Value]] = {
    MICRO_BATCH: ("--per_device_train_batch_size", 8),
    ACCUMULATION: ("--gradient_accumulation_steps", 1),
    LEARNING_RATE: ("--learning_rate", 5e-5),
    "bf16.enabled": ("--bf16", False),
    "fp16.enabled": ("--fp16", False),
    ACTIVATION_CHECKPOINTING: (ACTIVATION_CHECKPOINTING_FLAG, False),
}
"""Searched settings that TrainingArguments takes: its argument and its default (transformers/training_args.py)."""

FILLED: tuple[str, ...] = (
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "scheduler.params.warmup_min_lr",
)
"""Keys that may be "auto" and that no flag carries: filled from the model's hidden size, and by 0 for the last."""


def flags_of(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return the TrainingArguments flags that carry what a concrete configuration says, in the table's order.

    Where a warm-up schedule has a peak, that is the learning rate: the schedule sets it over the optimizer's own.
    Precision is said in full wherever the configuration has a block of it: a flag that a command still has from before
    would contradict it else.
    """
    flags: dict[str, Value] = {}
    for dotted, names in FLAGS.items():
        value = get(config, dotted)
        if value is None or value == "auto":
            continue
        values = value if len(names) > 1 and isinstance(value, list | tuple) else [value]
        if len(values) == len(names):
            flags |= dict(zip(names, values, strict=True))
    if "fp16" in config or "bf16" in config:
        precision = precision_of(config)
        flags |= {"--fp16": precision == "fp16", "--bf16": precision == "bf16"}
    return flags


def shared(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of a configuration in which TrainingArguments has a say, and which it must leave "auto"."""
    return tuple(dotted for dotted in FLAGS if get(config, dotted) is not None)
