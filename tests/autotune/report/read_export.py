"""Reads an export as its real consumer does, and prints what came of it as JSON; a program, not a test.

python read_export.py deepspeed|hf|accelerate PATH [TrainingArguments flag ...]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def deepspeed(path: str) -> dict[str, Any]:
    """DeepSpeed's own configuration class; on one rank, as no process group is started."""
    from deepspeed.runtime.config import DeepSpeedConfig

    config = DeepSpeedConfig(path)
    zero = config.zero_config
    return {
        "train_batch_size": config.train_batch_size,
        "train_micro_batch_size_per_gpu": config.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_clipping": config.gradient_clipping,
        "optimizer": config.optimizer_params,
        "scheduler": config.scheduler_params,
        "stage": int(zero.stage),
        "reduce_bucket_size": zero.reduce_bucket_size,
        "sub_group_size": zero.sub_group_size,
        "bf16": config.bfloat16_config.enabled,
        "fp16": config.float16_config.enabled,
    }


def hf(path: str, *flags: str) -> dict[str, Any]:
    """Hugging Face's Trainer: its argument parser, then its configuration class, called as TrainingArguments calls it.

    Without --deepspeed, which would start a process group here; and for a CPU, where bf16 is refused unless asked for.
    """
    from transformers import HfArgumentParser, TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    with tempfile.TemporaryDirectory() as folder:
        given = list(flags)
        at = given.index("--deepspeed")
        assert given[at + 1] == path
        del given[at : at + 2]
        (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
            [*given, "--output_dir", folder, "--use_cpu", "true", "--report_to", "none"]
        )
    config = HfTrainerDeepSpeedConfig(path)
    config.trainer_config_process(arguments)

    class Model:
        class config:  # noqa: N801 - as a model names it
            hidden_size = 8

    config.trainer_config_finalize(arguments, Model(), 1000)
    from accelerate.utils import DeepSpeedPlugin

    plugin = DeepSpeedPlugin(hf_ds_config=config)
    return {
        "mismatches": config.mismatches,
        "config": plugin.deepspeed_config | {"steps_per_print": None},
        "gradient_checkpointing": arguments.gradient_checkpointing,
    }


def accelerate(path: str) -> dict[str, Any]:
    """`accelerate launch`: its YAML reader, its launcher's environment, and the plugin that this leads to."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    arguments = launch_command_parser().parse_args(["--config_file", path, "--main_process_port", "0", "train.py"])
    arguments, defaults, has_precision = _validate_launch_command(arguments)
    assert arguments.use_deepspeed
    fields = [*defaults.deepspeed_config, *(["mixed_precision"] if has_precision else [])]
    arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
    _, environment = prepare_deepspeed_cmd_env(arguments)
    os.environ |= environment
    plugin = DeepSpeedPlugin()
    plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
    return {
        "num_processes": arguments.num_processes,
        "config": plugin.deepspeed_config | {"steps_per_print": None},
        "stage": plugin.zero_stage,
        "gradient_accumulation_steps": plugin.gradient_accumulation_steps,
    }


if __name__ == "__main__":
    answer = {"deepspeed": deepspeed, "hf": hf, "accelerate": accelerate}[sys.argv[1]](*sys.argv[2:])
    print("ANSWER", json.dumps(answer, default=str))
