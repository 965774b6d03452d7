"""Rules about the text: strict JSON, keys that stand twice, placeholders of a template."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.ds_config.document import Form
from autotune.ds_config.findings import Finding, Rewrite, Severity, Target, dotted
from autotune.ds_config.hjson_text import KeyPath
from autotune.ds_config.schema import Kind
from autotune.ds_config.subject import Subject

_TEMPLATES = re.compile(r"<[^<>]+>|\$\{[^}]*\}|\{\{.*\}\}|\{%.*%\}|@[A-Za-z_]+@|__[A-Z_]+__")
_CONSTANT = re.compile(r"\$?[A-Z][A-Z0-9]*(_[A-Z0-9]+)+,?")


def not_json(subject: Subject) -> Iterator[Finding]:
    """DeepSpeed reads hjson; Hugging Face's HfDeepSpeedConfig reads strict JSON (accelerate/utils/deepspeed.py)."""
    document = subject.document
    if not document.not_json:
        return
    if document.form is Form.YAML:
        severity, rule = (
            Severity.ERROR,
            "DeepSpeed, Hugging Face and accelerate read DeepSpeed's keys from JSON, not YAML",
        )
    elif subject.is_huggingfaces:
        severity, rule = Severity.ERROR, f"Hugging Face and accelerate read strict JSON only: {document.not_json}"
    else:
        severity = Severity.NOTE if subject.target is Target.DEEPSPEED else Severity.WARNING
        rule = f"not strict JSON: {document.not_json}; DeepSpeed reads hjson, Hugging Face and accelerate don't"
    yield Finding(
        severity=severity,
        code="not-json",
        path=(),
        line=document.not_json_line,
        value=None,
        rule=rule,
        fix="write it as strict JSON",
        mend=(Rewrite(),),
    )


def duplicates(subject: Subject) -> Iterator[Finding]:
    """DeepSpeed ends at a key that stands twice: dict_raise_error_on_duplicate_keys in runtime/config_utils.py."""
    for twice in subject.document.duplicates:
        is_same = json.dumps(twice.first, sort_keys=True) == json.dumps(twice.again, sort_keys=True)
        yield Finding(
            severity=Severity.ERROR,
            code="duplicate-key",
            path=twice.path,
            line=twice.line,
            value=twice.again,
            rule=f"stands twice, first on line {subject.document.line(twice.path)} as {json.dumps(twice.first)[:60]}",
            fix="keep one" if is_same else "keep the one that is meant",
            mend=(Rewrite(),) if is_same else (),
        )


def placeholders(subject: Subject) -> Iterator[Finding]:
    """A template has to be filled in by the script that it was written for."""
    for path, text in _texts(subject.document.data, ()):
        known = subject.schema.find(path)
        may_be_a_name = isinstance(known, Kind) and known.name == "text"
        found = _TEMPLATES.search(text)
        word = found[0] if found else text.strip() if _CONSTANT.fullmatch(text.strip()) and not may_be_a_name else ""
        if word:
            name = word.rstrip(",")
            yield subject.find(
                Severity.ERROR,
                "placeholder",
                path,
                rule=f"{name} is a placeholder that a script was to fill in",
                fix=f"write the value of {dotted(path[-1:])}",
            )


def _texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _texts(inner, (*path, place))
