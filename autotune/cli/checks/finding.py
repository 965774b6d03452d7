"""A finding: one line of the doctor's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """What came of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's."""

    check: str
    status: Status
    detail: str
    advice: str = ""
    lines: tuple[str, ...] = ()
    """What is shown below all findings, such as the last lines of a log."""
