"""What a rule looks at: a document, who reads it, on how many ranks, with which DeepSpeed."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from typing import Any

from autotune.ds_config import schema
from autotune.ds_config.document import Document, Form
from autotune.ds_config.findings import Finding, Severity, Step, Target
from autotune.ds_config.hjson_text import KeyPath
from autotune.ds_config.schema import Block, Kind


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The rules' view of a document."""

    document: Document
    target: Target | None
    """None: not known."""
    ranks: int | None
    """Data-parallel ranks; None: not known."""
    deepspeed: str
    """DeepSpeed's version."""

    @property
    def schema(self) -> Block:
        """The keys that may stand in the document."""
        return schema.accelerate() if self.document.form is Form.ACCELERATE else schema.deepspeed()

    @property
    def is_huggingfaces(self) -> bool:
        """Whether Hugging Face's Trainer or accelerate reads the file first."""
        return self.target in (Target.HF, Target.ACCELERATE)

    def has(self, *path: str) -> bool:
        """Whether a key is there, whatever its value."""
        block: Any = self.document.data
        for key in path:
            if not isinstance(block, dict) or key not in block:
                return False
            block = block[key]
        return True

    def raw(self, *path: str) -> Any:
        """Return a key's value as it is written, or None."""
        value: Any = self.document.data
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def value(self, *path: str) -> Any:
        """Return a key's value as it would be read (a quoted number as the number), or None where it is of no use."""
        value = self.raw(*path)
        known = self.schema.find(path)
        if value is None or not isinstance(known, Kind):
            return value
        if isinstance(value, str) and not known.fits(value):
            value = known.read(value)
        if value is None or not known.fits(value):
            return None
        if known.is_any_case and isinstance(value, str):
            return next(choice for choice in known.choices if str(choice).lower() == value.lower())
        whole = known.name == "integer" or (known.choices and isinstance(known.choices[0], int))
        return int(value) if whole else value

    @property
    def stage(self) -> int | None:
        """The ZeRO stage; None where what is written is none."""
        if self.raw("zero_optimization", "stage") is None:
            return 0 if not isinstance(self.raw("zero_optimization"), bool) else None
        stage: int | None = self.value("zero_optimization", "stage")
        return stage

    def optimizer(self) -> str | None:
        """Return the optimizer's type where it is named."""
        name = self.raw("optimizer", "type")
        return name if isinstance(name, str) else None

    def find(
        self, severity: Severity, code: str, path: KeyPath, *, rule: str, fix: str, mend: tuple[Step, ...] = ()
    ) -> Finding:
        """Return a finding about a key, with its line and value."""
        value: Any = self.document.data
        for key in path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                value = None
        return Finding(
            severity=severity,
            code=code,
            path=path,
            line=self.document.line(path),
            value=value if path else None,
            rule=rule,
            fix=fix,
            mend=mend,
        )


def installed_deepspeed() -> str:
    """Return the installed DeepSpeed's version; that of the known keys where there is none."""
    try:
        return importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        return str(schema.data()["deepspeed"])


def is_before(version: str, other: str) -> bool:
    """Whether a version comes before another."""
    return _numbers(version) < _numbers(other)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3]]
