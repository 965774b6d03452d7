"""Text of YAML, with the line of every key."""

from __future__ import annotations

from typing import Any

import yaml

from autotune.ds_config.hjson_text import Duplicate, KeyPath, Parsed
from autotune.errors import ConfigError

_AT_MOST_NODES = 10_000
"""Aliases can make a short text endless; an accelerate configuration has some dozens."""
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The fast one, where PyYAML was built with libyaml."""


def parse(text: str, *, source: str) -> Parsed:
    """Read YAML that holds what JSON can hold.

    Raises:
        ConfigError: with the line, when it is not YAML, or holds dates and other things that JSON has not.
    """
    try:
        reader = _Reader(source)
        root = yaml.compose(text, Loader=Loader)
        data = {} if root is None else reader.value(root, ())
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise ConfigError(f"ds_config: {source} is not valid YAML: {' '.join(str(error).split())}") from error
    return Parsed(data=data, lines=reader.lines, duplicates=tuple(reader.duplicates))


class _Reader:
    def __init__(self, source: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.duplicates: list[Duplicate] = []
        self._source = source
        self._scalars = yaml.constructor.SafeConstructor()
        self._seen = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._seen += 1
        line = node.start_mark.line + 1
        if self._seen > _AT_MOST_NODES:
            raise ConfigError(f"ds_config: {self._source} has more than {_AT_MOST_NODES:,} values, aliases included")
        if isinstance(node, yaml.MappingNode):
            return self._block(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._placed(inner, (*path, place)) for place, inner in enumerate(node.value)]
        value = self._scalars.construct_object(node)
        if not isinstance(value, str | int | float | None):
            kind = type(value).__name__
            raise ConfigError(f"ds_config: {self._source}, line {line}: {node.value} is a {kind}; put it into quotes")
        return value

    def _placed(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines[path] = node.start_mark.line + 1
        return self.value(node, path)

    def _block(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        self._scalars.flatten_mapping(node)
        block: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(self.value(key_node, path))
            line = key_node.start_mark.line + 1
            if key in block:
                again = self.value(value_node, (*path, key, "again"))
                self.duplicates.append(Duplicate(path=(*path, key), line=line, first=block[key], again=again))
            else:
                self.lines[(*path, key)] = line
                block[key] = self.value(value_node, (*path, key))
        return block
