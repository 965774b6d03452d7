"""Rules about what DeepSpeed had once: features that were removed, keys that moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.ds_config import schema
from autotune.ds_config.findings import Drop, Finding, Put, Rename, Severity, Step
from autotune.ds_config.hjson_text import KeyPath
from autotune.ds_config.schema import Kind
from autotune.ds_config.subject import Subject, is_before


def removed(subject: Subject) -> Iterator[Finding]:
    """`_reject_removed_config_keys` in deepspeed/runtime/config.py; any value, even false, is refused."""
    known, refusing = schema.data()["removed"], schema.data()["deepspeed"]
    for dotted, reason in known["keys"].items():
        path = tuple(dotted.split("."))
        if not subject.has(*path):
            continue
        if not is_before(subject.deepspeed, refusing):
            rule = f"DeepSpeed {subject.deepspeed} refuses this key: {reason} (DeepSpeed#8489)"
            fix, mend = "remove it; what it did is gone with it", (Drop(path=path),)
            yield subject.find(Severity.ERROR, "removed", path, rule=rule, fix=fix, mend=mend)
        else:
            taking = subject.deepspeed if is_before(subject.deepspeed, known["accepted"]) else known["accepted"]
            rule = f"DeepSpeed {taking} takes it, {refusing} doesn't: {reason}"
            yield subject.find(Severity.WARNING, "removed", path, rule=rule, fix="do without it before you upgrade")


def gone(subject: Subject) -> Iterator[Finding]:
    """Keys of old files in blocks that refuse what they don't know."""
    for dotted, reason in schema.data()["gone"].items():
        path = tuple(dotted.split("."))
        if subject.has(*path):
            yield subject.find(
                Severity.ERROR,
                "gone",
                path,
                rule=f"DeepSpeed {subject.deepspeed} refuses this key: {reason}",
                fix="remove it",
                mend=(Drop(path=path),),
            )


def moved(subject: Subject) -> Iterator[Finding]:
    """Keys that have another name now; DeepSpeed still reads the old ones, Hugging Face and accelerate don't."""
    if subject.has("bfloat16"):  # get_bfloat16_config in deepspeed/runtime/precision_config.py
        is_auto = subject.raw("bfloat16", "enabled") == "auto"  # accelerate ends at an "auto" that it doesn't fill in
        yield _moved(subject, ("bfloat16",), "bf16", taken=subject.raw("bf16") is not None, is_refused=is_auto)
    path = ("zero_optimization", "stage3_gather_fp16_weights_on_model_save")
    new = "stage3_gather_16bit_weights_on_model_save"
    if subject.has(*path):
        taken = subject.has(path[0], new) or subject.has(path[0], "gather_16bit_weights_on_model_save")
        yield _moved(subject, path, new, taken=taken, is_refused_beside=True)


def _moved(
    subject: Subject, path: KeyPath, new: str, *, taken: bool, is_refused: bool = False, is_refused_beside: bool = False
) -> Finding:
    mend: tuple[Step, ...] = (Drop(path=path),) if taken else (*_free(path, new), Rename(path=path, name=new))
    rule = f"the old name of {new}; Hugging Face and accelerate know the new one only"
    severity = Severity.ERROR if subject.is_huggingfaces or is_refused else Severity.WARNING
    if taken:
        says = "DeepSpeed refuses both together" if is_refused_beside else f"DeepSpeed reads {new} and not this"
        rule, severity = f"the old name of {new}, which stands there too; {says}", Severity.ERROR
    fix = "remove it" if taken else f"call it {new}"
    return subject.find(severity, "moved", path, rule=rule, fix=fix, mend=mend)


def _free(path: KeyPath, new: str) -> tuple[Step, ...]:
    """Take a null away that stands under the new name."""
    return (Drop(path=(*path[:-1], new)),)


def offload_flags(subject: Subject) -> Iterator[Finding]:
    """`cpu_offload: true` became a block: the deprecated fields in deepspeed/runtime/zero/config.py."""
    for flag, block in (("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")):
        path = ("zero_optimization", flag)
        value = subject.value(*path)
        if not subject.has(*path) or (value is None and subject.raw(*path) is not None):
            continue
        if value and subject.has("zero_optimization", block):
            rule = f"the old name of {block}, which stands there too; DeepSpeed refuses both together"
            yield subject.find(Severity.ERROR, "moved", path, rule=rule, fix="remove it", mend=(Drop(path=path),))
            continue
        put = (Put(path=("zero_optimization", block), value={"device": "cpu"}),) if value else ()
        fix = f'write "{block}": {{"device": "cpu"}}' if value else "remove it"
        rule = f"deprecated for {block}; Hugging Face and accelerate don't see it"
        yield subject.find(Severity.WARNING, "moved", path, rule=rule, fix=fix, mend=(Drop(path=path), *put))
    path = ("zero_optimization", "cpu_offload_use_pin_memory")
    if subject.has(*path):
        yield from _pin_memory(subject, path)


def _pin_memory(subject: Subject, path: tuple[str, str]) -> Iterator[Finding]:
    rule = "deprecated and without effect: DeepSpeed takes pin_memory from the offload blocks"
    fix = "remove it; write pin_memory in offload_optimizer or offload_param"
    yield subject.find(Severity.WARNING, "moved", path, rule=rule, fix=fix, mend=(Drop(path=path),))


def other_names(subject: Subject) -> Iterator[Finding]:
    """A model takes its fields' own names beside their aliases; other programs look for the documented ones."""
    zero: Any = subject.raw("zero_optimization")
    block = subject.schema.find(("zero_optimization",))
    if not isinstance(zero, dict) or block is None or isinstance(block, Kind):
        return
    for key in zero:
        known = block.keys.get(key)
        if not isinstance(known, Kind) or not known.documented:
            continue
        path, name = ("zero_optimization", key), known.documented
        if name in zero:
            rule = f"another name of {name}, which stands there too; DeepSpeed refuses both together"
            yield subject.find(Severity.ERROR, "other-name", path, rule=rule, fix="remove one of them")
        else:
            rule = f"DeepSpeed's documents, Hugging Face and accelerate call it {name}"
            mend = (Rename(path=path, name=name),)
            severity = Severity.WARNING if zero[key] == "auto" else Severity.NOTE
            yield subject.find(severity, "other-name", path, rule=rule, fix=f"call it {name}", mend=mend)
