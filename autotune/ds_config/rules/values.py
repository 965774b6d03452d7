"""Rules about values: of the wrong type, out of bounds, quoted, null, a list where one value is meant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.ds_config import schema
from autotune.ds_config.document import Form
from autotune.ds_config.findings import Drop, Finding, Put, Severity
from autotune.ds_config.hjson_text import KeyPath
from autotune.ds_config.schema import Block, Kind
from autotune.ds_config.subject import Subject

_SEARCHED = (
    ("zero_optimization", "stage"),
    ("train_batch_size",),
    ("train_micro_batch_size_per_gpu",),
    ("gradient_accumulation_steps",),
)


def wrong_values(subject: Subject) -> Iterator[Finding]:
    """Every known key's value against its type; "auto" has a rule of its own."""
    is_accelerates = subject.document.form is Form.ACCELERATE
    for path, value, known, block in schema.walk(subject.document.data, subject.schema):
        if known is None or (value == "auto" and isinstance(known, Kind) and not is_accelerates):
            continue
        if value is None:
            if not known.nullable:
                yield _null(subject, path, known)
        elif isinstance(known, Block):
            if not isinstance(value, Mapping):
                yield _no_block(subject, path, value)
        elif not known.fits(value):
            yield _misfit(subject, path, value, known, block)


def not_finite(subject: Subject) -> Iterator[Finding]:
    """YAML knows .inf and .nan; JSON doesn't, and no key of DeepSpeed's means anything by them."""
    for path, number in _numbers(subject.document.data, ()):
        if not math.isfinite(number):
            yield subject.find(
                Severity.ERROR, "not-finite", path, rule=f"{number} is no number in JSON", fix="write a finite number"
            )


def _null(subject: Subject, path: KeyPath, known: Kind | Block) -> Finding:
    what = str(known) if isinstance(known, Kind) else "a block"
    is_head = subject.document.form is Form.ACCELERATE and len(path) == 1  # without it, it may be accelerate's no more
    return subject.find(
        Severity.ERROR,
        "null",
        path,
        rule=f"null is not read as missing; it must be {what}",
        fix="write a value" if is_head else "remove the key, so that its default applies",
        mend=() if is_head else (Drop(path=path),),
    )


def _no_block(subject: Subject, path: KeyPath, value: Any) -> Finding:
    if path == ("zero_optimization",) and isinstance(value, bool):
        # read_zero_config_deprecated in deepspeed/runtime/zero/config.py
        config: dict[str, Any] = {"stage": int(value)}
        if value and isinstance(subject.raw("allgather_size"), int):
            config["allgather_bucket_size"] = subject.raw("allgather_size")
        steps = (Put(path=path, value=config), Drop(path=("allgather_size",)))
        return subject.find(
            Severity.WARNING,
            "old-zero",
            path,
            rule="true and false are the oldest way to ask for ZeRO; DeepSpeed reads them as stage 1 and 0",
            fix=f'write {{"stage": {int(value)}}}',
            mend=steps,
        )
    return subject.find(Severity.ERROR, "wrong-type", path, rule="must be a block of keys", fix="write a block { ... }")


def _misfit(subject: Subject, path: KeyPath, value: Any, known: Kind, block: Block) -> Finding:
    if isinstance(value, list) and path in _SEARCHED:
        return subject.find(
            Severity.ERROR,
            "search-space",
            path,
            rule="a list is a search space of DeepSpeed's autotuner, not a configuration; DeepSpeed refuses it",
            fix="write one value; `autotune launch` searches the others",
        )
    read = known.read(value) if isinstance(value, str) else None
    if read is not None:
        return _quoted(subject, path, read, known, block)
    if known.name == "boolean" and value in (0, 1) and isinstance(value, int | float):
        said = "true" if value else "false"
        fix, mend = f"write {said}", (Put(path=path, value=bool(value)),)
        return subject.find(
            Severity.WARNING, "wrong-type", path, rule=f"{value:g} is read as {said}", fix=fix, mend=mend
        )
    if path == ("mixed_precision",) and value is False:
        fix, mend = "put no into quotes: 'no'", (Put(path=path, value="no"),)
        return subject.find(
            Severity.ERROR, "wrong-type", path, rule="YAML reads no without quotes as false", fix=fix, mend=mend
        )
    return subject.find(
        Severity.ERROR, "wrong-type", path, rule=f"must be {known}", fix=_nearest_choice(value, known) or "correct it"
    )


def _quoted(subject: Subject, path: KeyPath, read: Any, known: Kind, block: Block) -> Finding:
    """Pydantic reads "true" and "8" (not "5e8" for a whole number); what reads without a model doesn't."""
    whole = known.name == "integer" or known.choices
    plain = not whole or str(subject.raw(*map(str, path))).strip().lstrip("+-").replace(".", "").isdigit()
    is_accelerates = subject.document.form is Form.ACCELERATE
    # accelerate hands its block on as texts anyway: prepare_deepspeed_cmd_env in accelerate/utils/launch.py.
    is_read = len(path) == 2 if is_accelerates else block.is_model and plain
    said = str(read).lower() if isinstance(read, bool) else f"{read}"
    reader = "accelerate" if is_accelerates else "DeepSpeed"
    tail = f"{reader} reads it all the same" if is_read else f"{reader} doesn't read it as one"
    return subject.find(
        Severity.WARNING if is_read else Severity.ERROR,
        "quoted",
        path,
        rule=f"{'true or false' if isinstance(read, bool) else 'a number'} in quotes is a text; {tail}",
        fix=f"write {said} without quotes",
        mend=(Put(path=path, value=read),),
    )


def _nearest_choice(value: Any, known: Kind) -> str:
    near = [
        choice for choice in known.choices if isinstance(value, str) and str(choice).lower() == value.strip().lower()
    ]
    return f"did you mean {near[0]}?" if near else ""


def _numbers(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, float]]:
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _numbers(inner, (*path, place))
