"""Nested mappings by dotted keys: `zero_optimization.stage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def get(block: Mapping[str, Any], dotted: str) -> Any:
    """Return the value of a dotted key, or None where it (or a block above it) is missing."""
    value: Any = block
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def leaves(block: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping flat, by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in block.items():
        if isinstance(value, Mapping):
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
