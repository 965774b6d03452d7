"""The files: read a DeepSpeed configuration (JSON or hjson), write one."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hjson

from autotune import whole_file
from autotune.errors import ConfigError


def read(path: Path) -> dict[str, Any]:
    """Read a DeepSpeed configuration: JSON, or hjson (comments, missing commas).

    Raises:
        ConfigError: when the file can't be read or doesn't hold one mapping.
    """
    if path.suffix in (".yaml", ".yml"):  # hjson would take it, and read nonsense
        raise ConfigError(f"ds_config: {path} is YAML; give DeepSpeed's own JSON file, or its keys in the campaign")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"ds_config: can't read {path}: {error}") from error
    return parse(text, source=str(path))


def parse(text: str, *, source: str) -> dict[str, Any]:
    """Read the text of a DeepSpeed configuration.

    Args:
        text: JSON or hjson.
        source: where it comes from, for messages.

    Raises:
        ConfigError: when it is neither, doesn't hold one mapping, or has a key twice (DeepSpeed refuses that too).
    """
    try:
        data = json.loads(text, object_pairs_hook=_mapping)
    except (ValueError, RecursionError):
        try:
            data = hjson.loads(text, object_pairs_hook=_mapping)
        except (ValueError, RecursionError, IndexError, OverflowError) as error:
            # hjson raises IndexError at a comment that never ends, and OverflowError at 1e400.
            raise ConfigError(f"ds_config: {source} is neither JSON nor hjson: {error}") from error
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise ConfigError(f"ds_config: {source} holds a {kind}; it must hold one mapping of DeepSpeed keys")
    return data


def write(config: Mapping[str, Any], path: Path) -> None:
    """Write a configuration as JSON, whole or not at all.

    Raises:
        ConfigError: when the file can't be written.
    """
    try:
        whole_file.write(as_text(config), path)
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error}") from error


def as_text(config: Mapping[str, Any]) -> str:
    """Return a configuration as the JSON text of its file."""
    return json.dumps(config, indent=2) + "\n"


def as_base64(config: Mapping[str, Any]) -> str:
    """Return a configuration as DeepSpeed's `--deepspeed_config` takes it in place of a path.

    See `DeepSpeedConfig.__init__` in deepspeed/runtime/config.py: urlsafe base64 of the JSON text.
    """
    return base64.urlsafe_b64encode(json.dumps(config).encode()).decode()


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As DeepSpeed reads a block: `dict_raise_error_on_duplicate_keys` in deepspeed/runtime/config_utils.py."""
    block: dict[str, Any] = {}
    for key, value in pairs:
        if key in block:
            raise ConfigError(f"ds_config: {key} stands twice in one block, as {block[key]!r} and {value!r}; keep one")
        block[key] = value
    return block
