"""Rules about the ZeRO stage: keys without effect at it, and names that say another one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from autotune.ds_config import schema
from autotune.ds_config.document import Form
from autotune.ds_config.findings import Finding, Severity
from autotune.ds_config.schema import Block, Kind
from autotune.ds_config.subject import Subject

_IN_NAMES = re.compile(r"(?<![a-z0-9])(?:zero|z|stage|s)(?:[-_]?stage)?[-_]?([0-3])(?![0-9])")
_ALWAYS_READ = ("stage", "offload_optimizer", "offload_param", "load_from_fp32_weights", "elastic_checkpoint")
"""Another rule tells of offload; the others are about checkpoints."""


def without_effect(subject: Subject) -> Iterator[Finding]:
    """Keys that deepspeed/runtime/engine.py doesn't hand to the optimizer of this stage."""
    stage, zero = subject.stage, subject.raw("zero_optimization")
    block = subject.schema.find(("zero_optimization",))
    if stage is None or not isinstance(zero, dict) or not isinstance(block, Block):
        return
    by_stage = schema.data()["stages"]
    for key in zero:
        known = block.keys.get(key)
        if known is None or key in _ALWAYS_READ or key.startswith("cpu_offload"):
            continue
        name = _field(key, known)
        rule = _reason(name, stage, by_stage)
        if rule:
            severity = Severity.NOTE if name in by_stage["none"] else Severity.WARNING
            yield subject.find(severity, "no-effect", ("zero_optimization", key), rule=rule, fix="remove it")


def _reason(name: str, stage: int, by_stage: dict[str, Any]) -> str:
    if name in by_stage["none"]:
        return f"DeepSpeed {schema.data()['deepspeed']} reads it nowhere"
    if stage == 0:
        return "has no effect: at stage 0 there is no ZeRO"
    if stage < 3 and name in by_stage["3"]:
        return f"has no effect at stage {stage}: it is for stage 3"
    if stage == 3 and name in by_stage["1, 2"]:
        return "has no effect at stage 3: it is for stages 1 and 2"
    return ""


def _field(key: str, known: Kind | Block) -> str:
    documented = known.documented if isinstance(known, Kind) else ""
    if key == "stage3_gather_fp16_weights_on_model_save":
        return "gather_16bit_weights_on_model_save"
    return key if documented else key.removeprefix("stage3_")


def stage_only(subject: Subject) -> Iterator[Finding]:
    """What DeepSpeed refuses at a stage: runtime/config.py, runtime/zero/config.py, runtime/zero/stage_1_and_2.py."""
    stage = subject.stage
    if subject.value("gradient_allreduce_op") == "sum" and stage == 3:
        path: tuple[str, ...] = ("gradient_allreduce_op",)
        rule = "DeepSpeed refuses sum with ZeRO stage 3"
        yield subject.find(Severity.ERROR, "stage", path, rule=rule, fix="write mean, or use stage 2")
    path = ("zero_optimization", "compute_grad_norm")
    if subject.value(*path) is False:
        if stage in (0, 3):
            rule = f"false is for ZeRO stages 1 and 2; DeepSpeed refuses it at stage {stage}"
            yield subject.find(Severity.ERROR, "grad-norm", path, rule=rule, fix="remove it")
        elif subject.value("gradient_clipping"):
            rule = "false doesn't go together with gradient_clipping; DeepSpeed refuses it"
            yield subject.find(Severity.ERROR, "grad-norm", path, rule=rule, fix="remove one of them")
    path = ("zero_optimization", "legacy_stage1")
    if subject.value(*path) and stage:
        rule = "the old stage 1 is gone since DeepSpeed 0.5.9; the engine fails"
        yield subject.find(Severity.ERROR, "stage", path, rule=rule, fix="remove it")


def missing_block(subject: Subject) -> Iterator[Finding]:
    """`DeepSpeedPlugin.__post_init__` in accelerate/utils/dataclasses.py ends without the block."""
    if subject.is_huggingfaces and not subject.has("zero_optimization"):
        rule = "zero_optimization is missing; accelerate, which Hugging Face's Trainer goes through, ends without it"
        fix = 'add "zero_optimization": {"stage": 0}, or another stage'
        yield subject.find(Severity.ERROR, "zero-missing", (), rule=rule, fix=fix)


def name_that_lies(subject: Subject) -> Iterator[Finding]:
    """People, and axolotl, go by the stage in the file's name."""
    if subject.document.is_argument:
        return
    if subject.document.form is Form.ACCELERATE:
        path: tuple[str, ...] = ("deepspeed_config", "zero_stage")
        stage = subject.value(*path)
    else:
        path, stage = ("zero_optimization", "stage"), subject.stage
    said = {int(number) for number in _IN_NAMES.findall(PurePath(subject.document.source).stem.lower())}
    if stage is None or len(said) != 1 or stage in said:
        return
    rule = f"the file's name says stage {said.pop()}, the file says {stage}; some go by the name (axolotl does)"
    yield subject.find(Severity.WARNING, "name", path, rule=rule, fix="rename the file, or change the stage")
