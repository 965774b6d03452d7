"""Text of JSON and hjson, read as DeepSpeed reads it (by hjson), with the line of every key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hjson import decoder

from autotune.errors import ConfigError

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys, and positions in lists, from the outermost block in."""
_Scan: TypeAlias = Callable[[str, int], tuple[Any, int]]
_AT_MOST_CHARACTERS = 300_000
"""A configuration has some thousands; hjson is slow, and a file of another kind may hold anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """A key that stands in its block again; the first value has been kept."""

    path: KeyPath
    line: int
    first: Any
    again: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a text holds, and where."""

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    duplicates: tuple[Duplicate, ...] = ()


def parse(text: str, *, source: str) -> Parsed:
    """Read JSON or hjson.

    Args:
        text: without a byte order mark.
        source: where it comes from, for messages.

    Raises:
        ConfigError: with the line, when it is neither.
    """
    if len(text) > _AT_MOST_CHARACTERS:
        raise ConfigError(f"ds_config: {source} has {len(text):,} characters; that is no DeepSpeed configuration")
    reader = _Reader(text)
    try:
        data = reader.whole()
    except decoder.HjsonDecodeError as error:
        raise ConfigError(
            f"ds_config: {source} is neither JSON nor hjson: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except (ValueError, RecursionError, IndexError, OverflowError) as error:
        # hjson raises IndexError at a comment that never ends, and OverflowError at 1e400.
        raise ConfigError(f"ds_config: {source} is neither JSON nor hjson: {error}") from error
    return Parsed(data=data, lines=reader.lines, duplicates=tuple(reader.duplicates))


class _Reader:
    """Gives hjson's scanner blocks and lists that note where their parts are; the rest is hjson's own.

    The attributes without an underscore are those that `hjson.decoder.make_scanner` takes from its context.
    """

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.duplicates: list[Duplicate] = []
        self.encoding, self.strict, self.memo = "utf-8", True, dict[str, str]()
        self.object_hook = self.object_pairs_hook = None
        self.parse_float, self.parse_int = float, int
        self.parse_object, self.parse_array = self._block, self._list
        self.parse_string, self.parse_mlstring = decoder.scanstring, decoder.mlscanstring
        self.parse_tfnns = decoder.scantfnns
        self._text = text
        self._path: KeyPath = ()
        self._line_ends = [position for position, character in enumerate(text) if character == "\n"]
        self._scan, self._scan_bare_block = decoder.make_scanner(self)

    def whole(self) -> Any:
        """As `HjsonDecoder.decode`: a value, or a block without braces, and nothing after it."""
        first, start = decoder.getNext(self._text, 0)
        if not first:
            return {}
        if first in "{[":
            data, end = self._scan(self._text, start)
        else:
            data, end = self._bare(start)
        _, end = decoder.getNext(self._text, end)
        if end != len(self._text):
            raise decoder.HjsonDecodeError("Extra data", self._text, end)
        return data

    def _bare(self, start: int) -> tuple[Any, int]:
        try:
            bare: tuple[Any, int] = self._scan_bare_block(self._text, start)
        except decoder.HjsonDecodeError as error:
            try:
                bare = self._scan(self._text, start)
            except (ValueError, IndexError, OverflowError):
                raise error from None
        return bare

    def _block(
        self,
        state: tuple[str, int],
        _e: Any,
        _s: Any,
        scan: _Scan,
        _h: Any,
        _p: Any,
        _m: Any = None,
        *bare: bool,
    ) -> tuple[dict[str, Any], int]:
        """`hjson.decoder.JSONObject`, which calls it with these arguments in this order."""
        text, end = state
        block: dict[str, Any] = {}
        character, end = decoder.getNext(text, end)
        if not any(bare) and character == "}":
            return block, end + 1
        while True:
            start = end
            key, end = decoder.scanKeyName(text, end, self.encoding, self.strict)
            character, end = decoder.getNext(text, end)
            if character != ":":
                raise decoder.HjsonDecodeError("Expecting ':' delimiter", text, end)
            _, end = decoder.getNext(text, end + 1)
            end = self._member(block, key, start, end, scan)
            character, end = decoder.getNext(text, end)
            if character == ",":
                character, end = decoder.getNext(text, end + 1)
            if any(bare) and not character:
                return block, end
            if not any(bare) and character == "}":
                return block, end + 1

    def _member(self, block: dict[str, Any], key: str, start: int, end: int, scan: _Scan) -> int:
        outer, line = self._path, self._line(start)
        is_new = key not in block
        self._path = (*outer, key) if is_new else (*outer, key, "again")
        if is_new:
            self.lines[self._path] = line
        value, end = scan(self._text, end)
        self._path = outer
        if is_new:
            block[key] = value
        else:
            self.duplicates.append(Duplicate(path=(*outer, key), line=line, first=block[key], again=value))
        return end

    def _list(self, state: tuple[str, int], scan: _Scan) -> tuple[list[Any], int]:
        """`hjson.decoder.JSONArray`."""
        text, end = state
        values: list[Any] = []
        character, end = decoder.getNext(text, end)
        if character == "]":
            return values, end + 1
        while character:
            outer = self._path
            self._path = (*outer, len(values))
            self.lines[self._path] = self._line(end)
            value, end = scan(text, end)
            self._path = outer
            values.append(value)
            character, end = decoder.getNext(text, end)
            if character == ",":
                character, end = decoder.getNext(text, end + 1)
            if character == "]":
                return values, end + 1
        raise decoder.HjsonDecodeError("End of input in a list (is a closing ']' missing?)", text, end)

    def _line(self, position: int) -> int:
        return bisect_right(self._line_ends, position - 1) + 1
