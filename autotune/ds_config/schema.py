"""The keys that DeepSpeed and accelerate know, with their types: the data in `keys.yaml`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

from autotune.ds_config import yaml_text
from autotune.ds_config.hjson_text import KeyPath

_OWN = "_"
"""A block's entry about itself."""


class Unknown(StrEnum):
    """What happens to a key that a block doesn't know."""

    REFUSED = "refused"
    IGNORED = "ignored"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The type of a key's value."""

    name: str
    """boolean, integer, number, text, list, mapping, any or choice."""
    nullable: bool
    choices: tuple[str | int, ...] = ()
    is_any_case: bool = False
    """Whether a choice may be written in capitals, or not in capitals."""
    low: float = -math.inf
    is_low_allowed: bool = True
    high: float = math.inf
    documented: str = ""
    """The name that DeepSpeed's documents use, where this is another one for it."""

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        words = {"boolean": "true or false", "integer": "a whole number", "number": "a number", "text": "a text"}
        said = words.get(self.name, f"a {self.name}")
        if self.high < math.inf:
            return f"{said} from {self.low:g} to {self.high:g}"
        if self.low > -math.inf:
            return f"{said}, {self.low:g} or more" if self.is_low_allowed else f"{said} above {self.low:g}"
        return said

    def fits(self, value: Any) -> bool:
        """Whether a value (not null) is of this kind."""
        if self.choices:
            written = value.lower() if self.is_any_case and isinstance(value, str) else value
            known = [str(choice).lower() for choice in self.choices] if self.is_any_case else self.choices
            return not isinstance(value, bool) and any(written == choice for choice in known)
        match self.name:
            case "boolean":
                return isinstance(value, bool)
            case "integer" | "number":
                return self._is_number(value)
            case "text" | "list" | "mapping":
                return isinstance(value, {"text": str, "list": list, "mapping": dict}[self.name])
        return True

    def _is_number(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if isinstance(value, float) and not (value.is_integer() if self.name == "integer" else math.isfinite(value)):
            return False
        return self.low <= value <= self.high and (self.is_low_allowed or value > self.low)

    def read(self, text: str) -> Any:
        """Return the number or boolean that stands in a text, where it fits; else None."""
        word = text.strip()
        if self.name == "boolean":
            return {"true": True, "false": False}.get(word.lower())
        if self.name not in ("integer", "number") and not any(isinstance(choice, int) for choice in self.choices):
            return None
        try:
            value = int(word) if re.fullmatch(r"[+-]?\d{1,300}", word) else float(word)
        except ValueError:
            return None
        if isinstance(value, float) and self.name != "number" and math.isfinite(value) and value.is_integer():
            value = int(value)
        return value if self.fits(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A mapping's known keys."""

    unknown: Unknown
    nullable: bool
    keys: Mapping[str, Kind | Block]

    @property
    def is_model(self) -> bool:
        """Whether DeepSpeed reads it by a pydantic model, which reads quoted numbers too and drops "auto"."""
        return self.unknown is Unknown.REFUSED

    def find(self, path: KeyPath) -> Kind | Block | None:
        """Return what is known about a key, or None."""
        place: Kind | Block | None = self
        for key in path:
            place = place.keys.get(str(key)) if isinstance(place, Block) else None
        return place


Walk: TypeAlias = Iterator[tuple[KeyPath, Any, Kind | Block | None, Block]]


def walk(data: Mapping[str, Any], block: Block, path: KeyPath = ()) -> Walk:
    """Yield every key with its value, what is known about it, and the block that it stands in."""
    for key, value in data.items():
        known = block.keys.get(key)
        yield (*path, key), value, known, block
        if isinstance(known, Block) and isinstance(value, Mapping):
            yield from walk(value, known, (*path, key))


@cache
def data() -> Mapping[str, Any]:
    """Return the whole data file."""
    text = files("autotune.ds_config").joinpath("keys.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml_text.Loader(text).get_single_data()
    return loaded


@cache
def deepspeed() -> Block:
    """Return the keys of a DeepSpeed configuration."""
    return _block(data()["keys"])


@cache
def accelerate() -> Block:
    """Return the keys of an accelerate configuration."""
    return _block(data()["accelerate"])


def dotted_keys() -> Iterator[str]:
    """Yield every key of a DeepSpeed configuration, dotted."""
    yield from _dotted(deepspeed(), "")


def _dotted(block: Block, prefix: str) -> Iterator[str]:
    for name, known in block.keys.items():
        yield prefix + name
        if isinstance(known, Block):
            yield from _dotted(known, f"{prefix}{name}.")


def _block(entries: Mapping[str, Any]) -> Block:
    own = entries[_OWN]
    keys = {
        name: _block(entry) if isinstance(entry, Mapping) else _kind(str(entry))
        for name, entry in entries.items()
        if name != _OWN
    }
    return Block(unknown=Unknown(own.rstrip("?")), nullable=own.endswith("?"), keys=keys)


_SPEC = re.compile(
    r"(?P<any_case>~)?(?P<name>[^ ?]+)(?P<null>\?)?(?: (?P<bound>>=?-?\d+|\d+\.\.\d+))?(?: = (?P<other>\w+))?"
)


def _kind(spec: str) -> Kind:
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise ValueError(f"keys.yaml: {spec!r} is no type")
    name, bound = found["name"], found["bound"] or ""
    choices = tuple(int(word) if word.isdecimal() else word for word in name.split("|")) if "|" in name else ()
    low, high = -math.inf, math.inf
    if ".." in bound:
        low, high = (float(end) for end in bound.split(".."))
    elif bound:
        low = float(bound.lstrip(">="))
    return Kind(
        name="choice" if choices else name,
        nullable=found["null"] is not None,
        choices=choices,
        is_any_case=found["any_case"] is not None,
        low=low,
        is_low_allowed=not bound.startswith(">") or bound.startswith(">="),
        high=high,
        documented=found["other"] or "",
    )
