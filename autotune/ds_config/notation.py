"""Notation: how the numbers of a configuration are written (`5e8`, `1.0e-8`), so that they come out as they went in."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self

import hjson
import yaml

_INDENT = "  "
_LINE = 100
"""A list of numbers or texts that is longer than this takes a line for each."""


def notation_of(text: str) -> dict[str, str]:
    """Return the literals of those numbers of a JSON or hjson text that would come out otherwise.

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
    return {place: literal for place, literal in _literals(data, "") if _is_unusual(literal)}


def notation_of_yaml(node: yaml.Node | None) -> dict[str, str]:
    """Return the same of a configuration that stands in a YAML file, as `yaml.compose` returns it."""
    return {place: literal for place, literal in _yaml_literals(node, "") if _is_unusual(literal)}


def render(config: Mapping[str, Any], notation: Mapping[str, str] | None = None) -> str:
    """Return a configuration as JSON, its numbers by the notation where they still have the value that it says.

    Any notation of a whole number is good where DeepSpeed wants an int and reads the file itself: by hjson, which makes
    ints of whole numbers below 1e10, and pydantic, which takes larger ones (`DeepSpeedConfig` in
    deepspeed/runtime/config.py). Who reads the file by `json` gets floats: pydantic takes them too, but the parameters
    of a scheduler never pass it, and `warmup_num_steps: 1e2` is refused there.

    Args:
        config: what to write, in its own order.
        notation: literals by JSON pointer, as `notation_of` returns them.
    """
    return _rendered(config, "", notation or {}, "") + "\n"


def pointer(dotted: str) -> str:
    """Return the JSON pointer of a dotted DeepSpeed key."""
    return "".join(f"/{_escaped(part)}" for part in dotted.split("."))


def without(notation: Mapping[str, str], dotted_keys: Collection[str]) -> dict[str, str]:
    """Return the notation without these keys and what lies in them: their numbers are written plainly."""
    plain = tuple(f"{pointer(key)}/" for key in dotted_keys)
    return {place: literal for place, literal in notation.items() if not f"{place}/".startswith(plain)}


def ordered_like(config: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with its keys in the order of `template`, and after them those that it adds."""
    keys = [*(key for key in template if key in config), *(key for key in config if key not in template)]
    return {key: _ordered(config[key], template.get(key)) for key in keys}


class _Literal(float):
    """A number that knows how it is written."""

    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __abs__(self) -> float:
        """Infinite: hjson makes plain ints of whole numbers whose size is below 1e10, and forgets the literal."""
        return math.inf


def _literals(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, _Literal):
        yield place, value.text
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _literals(inner, f"{place}/{_escaped(key)}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _literals(inner, f"{place}/{index}")


def _yaml_literals(node: yaml.Node | None, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.MappingNode):
        for key, inner in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield from _yaml_literals(inner, f"{place}/{_escaped(key.value)}")
    elif isinstance(node, yaml.SequenceNode):
        for index, inner in enumerate(node.value):
            yield from _yaml_literals(inner, f"{place}/{index}")
    elif isinstance(node, yaml.ScalarNode) and node.tag in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int"):
        yield place, str(node.value)


def _is_unusual(literal: str) -> bool:
    """Say whether a number would come out otherwise: as DeepSpeed's reader, ours makes an int of 1.0."""
    value = _value_of(literal)
    if value is None:
        return False
    is_whole = isinstance(value, float) and value.is_integer()
    return is_whole or json.dumps(value) != literal


def _value_of(literal: str) -> int | float | None:
    """Return the number that a literal is in JSON; None where it is none (1_000 in YAML, say)."""
    try:
        value = json.loads(literal)
    except ValueError:
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _rendered(value: Any, place: str, notation: Mapping[str, str], indent: str) -> str:
    inner = indent + _INDENT
    if isinstance(value, Mapping) and value:
        members = [
            f"{inner}{json.dumps(str(key))}: {_rendered(member, f'{place}/{_escaped(str(key))}', notation, inner)}"
            for key, member in value.items()
        ]
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and value:
        members = [_rendered(member, f"{place}/{index}", notation, inner) for index, member in enumerate(value)]
        is_long = sum(map(len, members)) > _LINE
        if is_long or any(isinstance(member, Mapping | list | tuple) for member in value):
            return "[\n" + ",\n".join(inner + member for member in members) + f"\n{indent}]"
        return f"[{', '.join(members)}]"
    literal = notation.get(place)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return literal if literal is not None and is_number and _value_of(literal) == value else json.dumps(value)


def _ordered(value: Any, template: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(template, Mapping):
        return ordered_like(value, template)
    return value


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
