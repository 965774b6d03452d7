"""Selection of nodes by their labels, in Ray's own notation (`ray start --labels`, `ray.io/...`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autotune.errors import ResourceError

_VALUE = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_CONDITION = re.compile(rf"(!?)(?:({_VALUE})|in\(({_VALUE}(?:, ?{_VALUE})*)\))")
"""As `LABEL_SELECTOR_REGEX` in ray/_private/label_utils.py."""


def check(conditions: Mapping[str, str]) -> None:
    """Refuse conditions that say nothing.

    Raises:
        ResourceError: naming the label, the condition got, and the rule.
    """
    for label, condition in conditions.items():
        if not _CONDITION.fullmatch(condition):
            raise ResourceError(
                f"labels.{label}: got {condition!r}; a condition is a value, !value, in(value, value) or "
                "!in(value, value)"
            )


def match(conditions: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Say whether a node with these labels fulfils every condition; a label it doesn't have has no value."""
    return all(_fulfils(condition, labels.get(label)) for label, condition in conditions.items())


def _fulfils(condition: str, value: str | None) -> bool:
    parts = _CONDITION.fullmatch(condition)
    if parts is None:
        return False
    negated, one, several = parts.groups()
    allowed = [one] if one else [part.strip() for part in several.split(",")]
    return (value in allowed) is not bool(negated)
