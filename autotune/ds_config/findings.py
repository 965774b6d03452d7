"""What is wrong with a configuration, and the steps that mend it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from autotune.ds_config.hjson_text import KeyPath


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """DeepSpeed, or what launches it, fails, or does something else than is written."""
    WARNING = "warning"
    """It has no effect, or is read as something else than it looks."""
    NOTE = "note"
    """Right, and good to know."""


class Target(StrEnum):
    """Who reads the configuration first."""

    DEEPSPEED = "deepspeed"
    HF = "hf"
    ACCELERATE = "accelerate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Give a key a value; blocks above it are made."""

    path: KeyPath
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Take a key away."""

    path: KeyPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """Give a key another name in its place; left alone where that name is taken."""

    path: KeyPath
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Write the text again, as strict JSON; the data stay."""


Step: TypeAlias = Put | Drop | Rename | Rewrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem of a configuration."""

    severity: Severity
    code: str
    """The rule's name."""
    path: KeyPath
    line: int
    value: Any
    rule: str
    fix: str
    mend: tuple[Step, ...] = ()
    """What `--fix` does about it; empty where only the user can know."""

    @property
    def key(self) -> str:
        """The dotted key; empty for the file as a whole."""
        return dotted(self.path)

    @property
    def is_mended(self) -> bool:
        """Whether `--fix` mends it."""
        return bool(self.mend)


def dotted(path: KeyPath) -> str:
    """Return a path as people write it."""
    return ".".join(repr(part) if part != str(part).strip() and isinstance(part, str) else str(part) for part in path)


def mended(data: Mapping[str, Any], steps: Iterable[Step]) -> dict[str, Any]:
    """Return the data with steps taken; a step whose key is gone does nothing."""
    changed: dict[str, Any] = copy.deepcopy(dict(data))
    for step in steps:
        match step:
            case Put(path=path, value=value):
                _put(changed, path, value)
            case Drop(path=path):
                block = _block(changed, path)
                if block is not None:
                    block.pop(str(path[-1]), None)
            case Rename(path=path, name=name):
                _rename(changed, path, name)
            case Rewrite():
                pass
    return changed


def _put(data: dict[str, Any], path: KeyPath, value: Any) -> None:
    block: Any = data
    for key in path[:-1]:
        block = block.setdefault(key, {}) if isinstance(block, dict) else None
    if isinstance(block, dict):
        block[str(path[-1])] = copy.deepcopy(value)


def _rename(data: dict[str, Any], path: KeyPath, name: str) -> None:
    block = _block(data, path)
    if block is None or path[-1] not in block or name in block:
        return
    entries = [(name if key == path[-1] else key, value) for key, value in block.items()]
    block.clear()
    block.update(entries)


def _block(data: dict[str, Any], path: KeyPath) -> dict[str, Any] | None:
    block: Any = data
    for key in path[:-1]:
        block = block.get(key) if isinstance(block, dict) else None
    return block if isinstance(block, dict) else None
