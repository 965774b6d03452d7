"""The mended copy of a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from autotune import whole_file
from autotune.ds_config.document import Document, Form
from autotune.errors import ConfigError


def default_path(document: Document) -> Path:
    """Return where a mended copy goes: beside the file; for a base64 argument, into this folder."""
    path = Path("ds_config" if document.is_argument else document.source)
    suffix = ".yaml" if document.form is Form.ACCELERATE else ".json"
    return path.with_name(f"{path.stem}.fixed{suffix}")


def text_of(document: Document) -> str:
    """Return a configuration as strict JSON; accelerate's as YAML.

    Raises:
        ConfigError: when it holds a number that JSON can't.
    """
    if document.form is Form.ACCELERATE:
        return yaml.safe_dump(document.data, sort_keys=False, allow_unicode=True, width=120)
    try:
        return json.dumps(document.data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError as error:
        raise ConfigError(f"{document.source} can't be written as JSON: {error}") from error


def write(document: Document, path: Path) -> None:
    """Write a configuration, whole or not at all.

    Raises:
        ConfigError: when it can't be written.
    """
    try:
        whole_file.write(text_of(document), path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't write {path}: {error}") from error
