"""Rules about offload: what it needs, and what it goes together with."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.ds_config.findings import Finding, Severity
from autotune.ds_config.subject import Subject

_OPTIMIZER = ("zero_optimization", "offload_optimizer")
_PARAM = ("zero_optimization", "offload_param")
_ON_DEVICE_ONLY = ("lamb",)
"""CUDA kernels without a CPU version: `_configure_basic_optimizer` in deepspeed/runtime/engine.py."""


def _offloads(subject: Subject, block: tuple[str, str]) -> bool:
    return subject.value(*block, "device") in ("cpu", "nvme")


def optimizer_offload(subject: Subject) -> Iterator[Finding]:
    """What the optimizer's states need to be offloaded."""
    stage, name = subject.stage, subject.optimizer()
    if stage is None:
        return
    ratio = subject.value(*_OPTIMIZER, "ratio")
    if ratio is not None and ratio < 1 and stage != 3:  # offload_ratio_check in deepspeed/runtime/zero/config.py
        rule = f"partial offload is for ZeRO stage 3 only; DeepSpeed refuses it at stage {stage}"
        yield subject.find(
            Severity.ERROR, "offload-stage", (*_OPTIMIZER, "ratio"), rule=rule, fix="remove it, or use stage 3"
        )
    if not _offloads(subject, _OPTIMIZER):
        return
    if stage == 0:
        rule = "has no effect: at stage 0 nothing is offloaded"
        yield subject.find(
            Severity.WARNING, "offload-stage", _OPTIMIZER, rule=rule, fix="use stage 1, 2 or 3, or remove it"
        )
    elif subject.value(*_OPTIMIZER, "device") == "nvme" and stage != 3:
        # deepspeed/runtime/zero/stage_1_and_2.py asks whether there is a device, not which.
        rule = f"NVMe offload is for ZeRO stage 3; stage {stage} offloads to the CPU"
        yield subject.find(
            Severity.WARNING, "offload-stage", (*_OPTIMIZER, "device"), rule=rule, fix="write cpu, or use stage 3"
        )
    if name is not None and name.lower() in _ON_DEVICE_ONLY:
        rule = f"{name} runs on the GPU only, and its states are offloaded to the CPU"
        fix = "use Adam, AdamW, Adagrad or Lion, which DeepSpeed has for CPUs, or remove offload_optimizer"
        yield subject.find(Severity.ERROR, "offload-optimizer", ("optimizer", "type"), rule=rule, fix=fix)
    if subject.value("zero_optimization", "compute_grad_norm") is False:
        path = ("zero_optimization", "compute_grad_norm")
        rule = "false doesn't go together with offload_optimizer; DeepSpeed refuses it"
        yield subject.find(Severity.ERROR, "grad-norm", path, rule=rule, fix="remove one of them")


def parameter_offload(subject: Subject) -> Iterator[Finding]:
    """DeepSpeedZeroOffloadParamConfig: "valid only with stage 3"; stages 1 and 2 are not handed it (engine.py)."""
    if _offloads(subject, _PARAM) and subject.stage in (0, 1, 2):
        rule = f"has no effect at stage {subject.stage}: only stage 3 offloads parameters"
        yield subject.find(Severity.WARNING, "offload-stage", _PARAM, rule=rule, fix="use stage 3, or remove it")


def paths(subject: Subject) -> Iterator[Finding]:
    """The swapper makes its folder below nvme_path."""
    for block in (_OPTIMIZER, _PARAM):
        if subject.value(*block, "device") == "nvme" and not subject.raw(*block, "nvme_path"):
            path = (*block, "device")
            rule = "nvme needs nvme_path, a folder on the drive"
            yield subject.find(Severity.ERROR, "offload-path", path, rule=rule, fix='add "nvme_path"')


def clients_optimizer(subject: Subject) -> Iterator[Finding]:
    """`_configure_optimizer` in deepspeed/runtime/engine.py; Hugging Face and accelerate see to it themselves."""
    if subject.is_huggingfaces or subject.optimizer() is not None or not subject.stage:
        return
    if _offloads(subject, _OPTIMIZER) and subject.value("zero_force_ds_cpu_optimizer") is not False:
        yield subject.find(
            Severity.NOTE,
            "offload-optimizer",
            _OPTIMIZER,
            rule="the file names no optimizer; of the script's, DeepSpeed offloads its own CPUAdam and CPULion only",
            fix='for another one write "zero_force_ds_cpu_optimizer": false',
        )
