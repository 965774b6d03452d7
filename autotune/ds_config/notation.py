"""Notation: how the numbers of a configuration are written (`5e8`, `1.0e-8`), so that they come out as they went in."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import hjson

_INDENT = "  "


def notation_of(text: str) -> dict[str, str]:
    """Return the literals of those numbers of a JSON or hjson text that `json.dumps` writes otherwise.

    Args:
        text: of a configuration that can be read; of any other text the result is empty.

    Returns:
        JSON pointer (RFC 6901) of the number, and its literal. A pointer, not a dotted key: keys may hold dots.
    """
    try:
        data = json.loads(text, parse_float=_Literal, parse_int=_Literal)
    except (ValueError, RecursionError):
        try:
            data = hjson.loads(text, parse_float=_Literal, parse_int=_Literal)
        except (ValueError, RecursionError, IndexError, OverflowError):
            return {}
    return {pointer: literal for pointer, literal in _literals(data, "") if _is_unusual(literal)}


def render(config: Mapping[str, Any], notation: Mapping[str, str] | None = None) -> str:
    """Return a configuration as JSON, its numbers by the notation where they still have the value that it says.

    Any notation of a whole number is good where DeepSpeed wants an int: it is read by pydantic, which takes 5e8 for
    500000000 (`DeepSpeedConfigModel` in deepspeed/runtime/config_utils.py).

    Args:
        config: what to write, in its own order.
        notation: literals by JSON pointer, as `notation_of` returns them.
    """
    return _rendered(config, "", notation or {}, "") + "\n"


def pointer(dotted: str) -> str:
    """Return the JSON pointer of a dotted DeepSpeed key."""
    return "".join(f"/{_escaped(part)}" for part in dotted.split("."))


def without(notation: Mapping[str, str], dotted_keys: Collection[str]) -> dict[str, str]:
    """Return the notation without these keys: they are written plainly."""
    plain = {pointer(key) for key in dotted_keys}
    return {key: literal for key, literal in notation.items() if key not in plain}


def ordered_like(config: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with its keys in the order of `template`, and after them those that it adds."""
    keys = [*(key for key in template if key in config), *(key for key in config if key not in template)]
    return {key: _ordered(config[key], template.get(key)) for key in keys}


@dataclass(frozen=True, slots=True)
class _Literal:
    """A number as it is written."""

    text: str


def _literals(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, _Literal):
        yield place, value.text
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _literals(inner, f"{place}/{_escaped(key)}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _literals(inner, f"{place}/{index}")


def _is_unusual(literal: str) -> bool:
    try:
        return json.dumps(json.loads(literal)) != literal
    except ValueError:  # more digits than Python reads, or a notation of hjson's own
        return False


def _rendered(value: Any, place: str, notation: Mapping[str, str], indent: str) -> str:
    inner = indent + _INDENT
    if isinstance(value, Mapping) and value:
        members = (
            f"{inner}{json.dumps(str(key))}: {_rendered(member, f'{place}/{_escaped(str(key))}', notation, inner)}"
            for key, member in value.items()
        )
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and value:
        members = [_rendered(member, f"{place}/{index}", notation, inner) for index, member in enumerate(value)]
        if any(isinstance(member, Mapping | list | tuple) for member in value):
            return "[\n" + ",\n".join(inner + member for member in members) + f"\n{indent}]"
        return f"[{', '.join(members)}]"
    literal = notation.get(place)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return literal if literal is not None and is_number and json.loads(literal) == value else json.dumps(value)


def _ordered(value: Any, template: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(template, Mapping):
        return ordered_like(value, template)
    return value


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
