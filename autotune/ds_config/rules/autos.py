"""The rule about values "auto": right where somebody fills them in."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.ds_config import schema
from autotune.ds_config.findings import Drop, Finding, Severity, Target
from autotune.ds_config.hjson_text import KeyPath
from autotune.ds_config.schema import Block, Kind, Unknown
from autotune.ds_config.subject import Subject

_FILLERS = {Target.HF: "Hugging Face's Trainer fills it in", Target.ACCELERATE: "accelerate fills it in"}


def auto_values(subject: Subject) -> Iterator[Finding]:
    """DeepSpeed's models drop "auto" (DeepSpeedConfigModel in runtime/config_utils.py); what has no model fails on it.

    accelerate, and with it the Trainer, ends at an "auto" that it doesn't fill: `DeepSpeedPlugin.fill_match`.
    """
    by_accelerate = set(schema.data()["filled"]["accelerate"])
    by_trainer = by_accelerate | set(schema.data()["filled"]["trainer"])
    for path, value, known, block in schema.walk(subject.document.data, subject.schema):
        if value != "auto" or isinstance(known, Block) or path[0] == "bfloat16":  # the block's old name is told of
            continue
        dotted = ".".join(map(str, path))
        filled = by_accelerate if subject.target is Target.ACCELERATE else by_trainer
        if dotted in filled and subject.target is not Target.DEEPSPEED:
            rule = _FILLERS.get(subject.target or Target.HF, "")
            if subject.target is None and dotted in by_accelerate:
                rule = "Hugging Face's Trainer and accelerate fill it in"
            fix = "nothing; for DeepSpeed on its own, write a value"
            yield subject.find(Severity.NOTE, "auto", path, rule=rule, fix=fix)
        elif not _is_own(known, block):
            yield _unfilled(subject, path, block, has_filler=dotted in by_trainer)


def _is_own(known: Kind | None, block: Block) -> bool:
    """Whether "auto" is a value of the key itself, or of a block that takes anything."""
    if known is None:
        return block.unknown is not Unknown.OPEN or not ({"lr", "warmup_type"} & block.keys.keys())
    return known.fits("auto")


def _unfilled(subject: Subject, path: KeyPath, block: Block, *, has_filler: bool) -> Finding:
    nobody = "nobody fills it in" if not has_filler else "with DeepSpeed on its own nobody fills it in"
    if subject.target is Target.ACCELERATE:
        nobody = "accelerate doesn't fill it in"
    if not block.is_model:
        rule, fix = f"{nobody}, and DeepSpeed can't work with it", "write a value, or remove the key"
        return subject.find(Severity.ERROR, "auto", path, rule=rule, fix=fix)
    is_switch = path[-1] == "enabled"
    then = "DeepSpeed drops it, which leaves it off" if is_switch else "DeepSpeed drops it, and its default applies"
    if subject.target is not Target.DEEPSPEED:
        then += "; Hugging Face and accelerate end at it"
    severity = Severity.WARNING if subject.target is Target.DEEPSPEED and not is_switch else Severity.ERROR
    fix = "write true or false" if is_switch else "remove it: the default applies then too"
    mend = () if is_switch else (Drop(path=path),)
    return subject.find(severity, "auto", path, rule=f"{nobody}: {then}", fix=fix, mend=mend)
