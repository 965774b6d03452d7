"""Rules about fp16 and bf16."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.ds_config.findings import Finding, Severity
from autotune.ds_config.subject import Subject


def _bf16(subject: Subject) -> str:
    return "bfloat16" if subject.raw("bf16") is None and subject.has("bfloat16") else "bf16"


def both_precisions(subject: Subject) -> Iterator[Finding]:
    """DeepSpeedConfig asserts it: deepspeed/runtime/config.py."""
    bf16 = _bf16(subject)
    if subject.value("fp16", "enabled") and subject.value(bf16, "enabled"):
        yield subject.find(
            Severity.ERROR,
            "both-precisions",
            (bf16, "enabled"),
            rule="fp16 and bf16 are both enabled; DeepSpeed refuses that",
            fix="enable one of them",
        )


def low_precision_states(subject: Subject) -> Iterator[Finding]:
    """`_do_error_check` in deepspeed/runtime/config.py."""
    bf16 = _bf16(subject)
    for path in (
        ("fp16", "fp16_master_weights_and_grads"),
        (bf16, "bf16_master_weights_and_grads"),
        (bf16, "bf16_optimizer_states"),
    ):
        if subject.value(*path) and subject.stage == 0:
            rule = "needs ZeRO stage 1, 2 or 3; the stage is 0"
            yield subject.find(Severity.ERROR, "precision-stage", path, rule=rule, fix="set zero_optimization.stage")
    path = (bf16, "bf16_optimizer_states")
    if subject.value(*path) and not subject.value(bf16, "bf16_master_weights_and_grads"):
        rule = "DeepSpeed refuses it without bf16_master_weights_and_grads"
        yield subject.find(
            Severity.ERROR, "precision-states", path, rule=rule, fix="set bf16_master_weights_and_grads: true too"
        )


def without_effect(subject: Subject) -> Iterator[Finding]:
    """Loss scaling is fp16's; `_validate_dynamic_loss_scale_params` in deepspeed/runtime/precision_config.py."""
    fp16 = subject.raw("fp16")
    if not isinstance(fp16, dict):
        return
    if subject.value(_bf16(subject), "enabled") and "enabled" not in fp16 and fp16:
        rule = "has no effect: bf16 is enabled, and fp16 is not"
        yield subject.find(Severity.WARNING, "no-effect", ("fp16",), rule=rule, fix="remove it")
    if not subject.value("fp16", "enabled"):
        return
    if subject.value("fp16", "loss_scale"):
        for key in (
            "initial_scale_power",
            "loss_scale_window",
            "hysteresis",
            "consecutive_hysteresis",
            "min_loss_scale",
        ):
            if key in fp16:
                rule = "has no effect with a static loss_scale; it is for dynamic scaling (loss_scale: 0)"
                yield subject.find(Severity.WARNING, "no-effect", ("fp16", key), rule=rule, fix="remove it")
        return
    for key in ("loss_scale_window", "min_loss_scale"):
        number = subject.value("fp16", key)
        if number is not None and number <= 0:
            rule = "must be above 0 with dynamic loss scaling (loss_scale: 0)"
            yield subject.find(Severity.ERROR, "wrong-type", ("fp16", key), rule=rule, fix="write 1 or more")
