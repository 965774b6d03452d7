"""Sameness: whether a value that was sent and one that the engine has mean the same to DeepSpeed."""

from __future__ import annotations

from typing import Any


def same(sent: Any, got: Any) -> bool:
    """Say whether two values mean the same to DeepSpeed: 5e8 is 500000000, and names don't mind their case."""
    if isinstance(sent, str) or isinstance(got, str):
        return str(sent).strip().lower() == str(got).strip().lower() or _number(sent) == _number(got) is not None
    return bool(sent == got)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
