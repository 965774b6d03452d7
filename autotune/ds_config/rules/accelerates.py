"""Rules about accelerate's own configuration file."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.ds_config import accelerate
from autotune.ds_config.findings import Finding, Severity
from autotune.ds_config.subject import Subject

_BLOCK = accelerate.BLOCK


def config_file(subject: Subject) -> Iterator[Finding]:
    """`_deepspeed_config_checks` in accelerate/utils/dataclasses.py ends where keys stand beside a file."""
    path = (_BLOCK, accelerate.CONFIG_FILE)
    name = subject.raw(*path)
    if not isinstance(name, str):
        return
    rule, fix = "the DeepSpeed configuration is in that file", f"lint it too: autotune lint {name}"
    yield subject.find(Severity.NOTE, "config-file", path, rule=rule, fix=fix)
    block = subject.raw(_BLOCK)
    beside: list[tuple[str, ...]] = [(_BLOCK, key) for key in block if key in accelerate.IGNORED_WITH_A_FILE]
    if subject.raw("mixed_precision") not in (None, "no"):
        beside.append(("mixed_precision",))
    for other in beside:
        rule = "accelerate refuses it beside deepspeed_config_file"
        fix = "remove it; it belongs into that file"
        yield subject.find(Severity.ERROR, "beside-file", other, rule=rule, fix=fix)


def no_effect(subject: Subject) -> Iterator[Finding]:
    """`DeepSpeedPlugin` in accelerate/utils/dataclasses.py: what is for stage 3 only."""
    if subject.raw("distributed_type") not in (None, "DEEPSPEED"):
        rule = "accelerate launches with DeepSpeed only where this is DEEPSPEED"
        yield subject.find(Severity.WARNING, "no-effect", ("distributed_type",), rule=rule, fix="write DEEPSPEED")
    stage = subject.value(_BLOCK, "zero_stage")
    if stage is None or stage == 3:
        return
    for key in ("zero3_init_flag", "zero3_save_16bit_model"):
        if subject.value(_BLOCK, key):
            rule = f"has no effect at stage {stage}: it is for stage 3"
            yield subject.find(Severity.WARNING, "no-effect", (_BLOCK, key), rule=rule, fix="remove it")
    path = (_BLOCK, "offload_param_device")
    if subject.value(*path) in ("cpu", "nvme"):
        rule = f"has no effect at stage {stage}: only stage 3 offloads parameters"
        yield subject.find(Severity.WARNING, "offload-stage", path, rule=rule, fix="use stage 3, or remove it")
