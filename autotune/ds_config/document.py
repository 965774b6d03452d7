"""A configuration as the user gave it: what it holds, the line of every key, and how it is written."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.ds_config import accelerate, hjson_text, yaml_text
from autotune.ds_config.hjson_text import Duplicate, KeyPath, Parsed
from autotune.errors import ConfigError

_BASE64 = re.compile(r"[A-Za-z0-9_+/-]{12,}={0,2}")
_BYTE_ORDER_MARK = "\ufeff"


class Form(StrEnum):
    """How a configuration is written."""

    JSON = "JSON"
    HJSON = "hjson"
    YAML = "YAML"
    ACCELERATE = "accelerate YAML"
    BASE64 = "base64"


@dataclass(frozen=True, kw_only=True)
class Document:
    """A configuration that could be read; see `load`."""

    source: str
    """The file's path; for base64, a short name of the argument."""
    form: Form
    data: Mapping[str, Any]
    lines: Mapping[KeyPath, int]
    duplicates: tuple[Duplicate, ...] = ()
    not_json: str = ""
    """Why readers of strict JSON (Hugging Face's, accelerate's) refuse the text; empty where they take it."""
    not_json_line: int = 1
    is_argument: bool = False
    """Whether it came as an argument, and there is no file."""

    def line(self, path: KeyPath) -> int:
        """Return the line of a key, or of the block that it is in."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def load(argument: str) -> Document:
    """Read a configuration: a file of JSON, hjson or YAML, or DeepSpeed's base64 argument.

    Raises:
        ConfigError: when there is no such file and the argument is no base64, or it doesn't hold one mapping.
    """
    path = Path(argument)
    try:
        is_there = path.exists()
    except (OSError, ValueError):  # a name that is too long, or holds a null character
        is_there = False
    decoded = None if is_there else _decoded(path.name)
    if decoded is not None:
        found = _of_text(decoded, source=f"base64:{path.name[:12]}...", is_base64=True)
        return replace(found, is_argument=True)
    if is_there and not path.is_file():
        raise ConfigError(f"ds_config: can't read {argument}: it is no regular file")
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"ds_config: can't read {argument}: {error}") from error
    text = _text(raw, argument)
    if path.suffix in (".yaml", ".yml"):
        return _of_yaml(text, source=argument)
    inside = _decoded(text.strip())
    return _of_text(text if inside is None else inside, source=argument, is_base64=inside is not None)


def of_text(text: str, *, source: str) -> Document:
    """Read the text of a DeepSpeed configuration in JSON or hjson.

    Raises:
        ConfigError: when it is neither, or doesn't hold one mapping.
    """
    return _of_text(text, source=source, is_base64=False)


def _of_text(text: str, *, source: str, is_base64: bool) -> Document:
    why, line = _not_json(text)
    parsed = hjson_text.parse(text.removeprefix(_BYTE_ORDER_MARK), source=source)
    form = Form.BASE64 if is_base64 else Form.HJSON if why else Form.JSON
    return _document(parsed, source, form, why=why, line=line)


def _of_yaml(text: str, *, source: str) -> Document:
    parsed = yaml_text.parse(text, source=source)
    is_accelerates = isinstance(parsed.data, dict) and accelerate.is_accelerates(parsed.data)
    form = Form.ACCELERATE if is_accelerates else Form.YAML
    return _document(parsed, source, form, why="" if is_accelerates else "it is YAML", line=1)


def _document(parsed: Parsed, source: str, form: Form, *, why: str, line: int) -> Document:
    if not isinstance(parsed.data, dict):
        kind = type(parsed.data).__name__
        raise ConfigError(f"ds_config: {source} holds a {kind}; it must hold one mapping of DeepSpeed keys")
    try:
        json.dumps((parsed.data, [twice.again for twice in parsed.duplicates]), ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"ds_config: {source} holds half a character ({error.object[error.start]!r})") from error
    return Document(
        source=source,
        form=form,
        data=parsed.data,
        lines=parsed.lines,
        duplicates=parsed.duplicates,
        not_json=why,
        not_json_line=line,
    )


def _text(raw: bytes, source: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "it is UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else str(error)
        raise ConfigError(f"ds_config: can't read {source}: {hint}; save it as UTF-8") from error


def _decoded(text: str) -> str | None:
    """The configuration in a base64 text, as DeepSpeed reads its argument (deepspeed/runtime/config.py); or None."""
    if not _BASE64.fullmatch(text):
        return None
    try:
        inside = base64.urlsafe_b64decode(text).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return inside if inside.lstrip().startswith("{") else None


def _not_json(text: str) -> tuple[str, int]:
    if text.startswith(_BYTE_ORDER_MARK):
        return "it starts with a byte order mark", 1
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        return f"{error.msg[:1].lower()}{error.msg[1:]} (column {error.colno})", error.lineno
    except (ValueError, RecursionError) as error:
        return str(error), 1
    return "", 1


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON's")
