"""Rules about the optimizer and the schedule."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from autotune.ds_config import schema
from autotune.ds_config.findings import Drop, Finding, Put, Rename, Severity, Step
from autotune.ds_config.subject import Subject, is_before

_TYPE = ("optimizer", "type")
_GRAD_NORM = ("optimizer", "params", "max_grad_norm")


def optimizer_type(subject: Subject) -> Iterator[Finding]:
    """`_is_supported_optimizer` in deepspeed/runtime/engine.py: its own in any case, torch.optim's in theirs."""
    name = subject.optimizer()
    known = schema.data()["optimizers"]
    if name is None or name in known["torch"] or name.lower() in _lower(known["deepspeed"]):
        return
    removed = schema.data()["removed"]
    if name.lower() in _lower(removed["optimizers"]):
        if not is_before(subject.deepspeed, schema.data()["deepspeed"]):
            rule = (
                f"DeepSpeed {subject.deepspeed} has no 1-bit optimizers any more (DeepSpeed#8489): "
                f"the file loads, the engine fails"
            )
            yield subject.find(Severity.ERROR, "removed", _TYPE, rule=rule, fix="use Adam, AdamW or Lamb")
        return
    same = [other for other in known["torch"] if other.lower() == name.strip().lower()]
    near = same or _near(name, [*known["deepspeed"], *known["torch"]])
    fix = f"did you mean {near[0]}?" if near else f"DeepSpeed has {', '.join(known['deepspeed'])}, and torch.optim's"
    mend: tuple[Step, ...] = (Put(path=_TYPE, value=same[0]),) if same else ()
    rule = "is neither DeepSpeed's nor torch.optim's: the file loads, the engine fails"
    yield subject.find(Severity.ERROR, "optimizer", _TYPE, rule=rule, fix=fix, mend=mend)


def max_grad_norm(subject: Subject) -> Iterator[Finding]:
    """`_configure_basic_optimizer` in deepspeed/runtime/engine.py raises on it."""
    if not subject.has(*_GRAD_NORM):
        return
    value, clipping = subject.value(*_GRAD_NORM), subject.raw("gradient_clipping")
    mend: tuple[Step, ...] = ()
    if clipping is None and isinstance(value, int | float) and value >= 0:
        mend = (Drop(path=_GRAD_NORM), Put(path=("gradient_clipping",), value=value))
    elif clipping is not None and clipping == value:
        mend = (Drop(path=_GRAD_NORM),)
    there = f", which is {clipping}" if clipping is not None else ""
    yield subject.find(
        Severity.ERROR,
        "max-grad-norm",
        _GRAD_NORM,
        rule="DeepSpeed refuses it among the optimizer's params",
        fix=f"use gradient_clipping at the top level{there}",
        mend=mend,
    )


def untested_with_zero(subject: Subject) -> Iterator[Finding]:
    """`_do_optimizer_sanity_check` in deepspeed/runtime/engine.py."""
    name = subject.optimizer()
    known = schema.data()["optimizers"]
    if name is None or not subject.stage or name.lower() in _lower(known["tested_with_zero"]):
        return
    if name not in known["torch"] and name.lower() not in _lower(known["deepspeed"]):
        return  # another rule tells
    if subject.value("zero_allow_untested_optimizer"):
        return
    yield subject.find(
        Severity.ERROR,
        "untested-optimizer",
        _TYPE,
        rule=f"DeepSpeed has not tested {name} with ZeRO (stage {subject.stage}), and refuses it",
        fix='write "zero_allow_untested_optimizer": true, or use Adam, AdamW, Adagrad, Lion or Muon',
    )


def lamb_with_static_scale(subject: Subject) -> Iterator[Finding]:
    """`_do_sanity_check` in deepspeed/runtime/engine.py."""
    name = subject.optimizer()
    if name is not None and name.lower() == "lamb" and subject.value("fp16", "loss_scale"):
        path = ("fp16", "loss_scale")
        rule = "Lamb needs dynamic loss scaling"
        yield subject.find(Severity.ERROR, "lamb-scale", path, rule=rule, fix="write 0, or remove it")


def scheduler_type(subject: Subject) -> Iterator[Finding]:
    """`_scheduler_from_config` in deepspeed/runtime/engine.py: DeepSpeed's own, or torch's."""
    path = ("scheduler", "type")
    name = subject.raw(*path)
    known = [*schema.data()["schedulers"], *schema.data()["torch_schedulers"]]
    if not isinstance(name, str) or name in known:
        return
    same = [other for other in known if other.lower() == name.strip().lower()]
    near = same or _near(name, known)
    own = ", ".join(schema.data()["schedulers"])
    fix = f"did you mean {near[0]}?" if near else f"DeepSpeed has {own}, and torch's"
    mend: tuple[Step, ...] = (Put(path=path, value=same[0]),) if same else ()
    rule = "is neither DeepSpeed's nor torch's schedule: the file loads, the engine fails"
    yield subject.find(Severity.ERROR, "scheduler", path, rule=rule, fix=fix, mend=mend)


def scheduler_params(subject: Subject) -> Iterator[Finding]:
    """The constructors in deepspeed/runtime/lr_schedules.py; another argument is a TypeError when the engine starts."""
    name, params = subject.raw("scheduler", "type"), subject.raw("scheduler", "params")
    known = schema.data()["schedulers"].get(name) if isinstance(name, str) else None
    if known is None or not isinstance(params, dict):
        return
    for key in params:
        if key in known or key.strip() in known:
            continue
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.88)
        path = ("scheduler", "params", key)
        free = bool(near) and near[0] not in params
        yield subject.find(
            Severity.ERROR,
            "scheduler",
            path,
            rule=f"{name} has no such parameter: the file loads, the engine fails",
            fix=f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}",
            mend=(Rename(path=path, name=near[0]),) if free else (),
        )
    if name in ("WarmupDecayLR", "WarmupCosineLR") and "total_num_steps" not in params:
        rule = f"{name} needs total_num_steps: the file loads, the engine fails"
        yield subject.find(Severity.ERROR, "scheduler", ("scheduler", "params"), rule=rule, fix="add total_num_steps")


def _near(name: str, known: list[str]) -> list[str]:
    by_lower = {other.lower(): other for other in known}
    return [by_lower[near] for near in difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)]


def _lower(names: list[str]) -> set[str]:
    return {name.lower() for name in names}
