"""The files: read a DeepSpeed configuration as autotune works with it, write one."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune import whole_file
from autotune.ds_config import accelerate, document
from autotune.ds_config.document import Document, Form
from autotune.ds_config.findings import mended
from autotune.ds_config.notation import render
from autotune.ds_config.rules.texts import duplicates
from autotune.ds_config.rules.values import not_finite, wrong_values
from autotune.ds_config.subject import Subject, installed_deepspeed
from autotune.errors import ConfigError

_log = logging.getLogger(__name__)


def read(path: Path) -> dict[str, Any]:
    """Read a DeepSpeed configuration: JSON, hjson, YAML, accelerate's YAML, or DeepSpeed's base64 argument.

    Numbers and booleans in quotes are read as what they are, with a warning in the log.

    Raises:
        ConfigError: when it can't be read, or doesn't hold one mapping.
    """
    found = document.load(str(path))
    data = _settled(found)
    if found.form is not Form.ACCELERATE:
        return data
    other = _other_file(data, path)
    return accelerate.deepspeeds(data) if other is None else read(other)


def parse(text: str, *, source: str) -> dict[str, Any]:
    """Read the text of a DeepSpeed configuration.

    Args:
        text: JSON or hjson.
        source: where it comes from, for messages.

    Raises:
        ConfigError: when it is neither, doesn't hold one mapping, or has a key twice (DeepSpeed refuses that too).
    """
    return _settled(document.of_text(text, source=source))


def write(config: Mapping[str, Any], path: Path, *, notation: Mapping[str, str] | None = None) -> None:
    """Write a configuration as JSON, whole or not at all.

    Args:
        config: what to write, in its own order.
        path: of the file.
        notation: how the user wrote numbers (`notation_of`).

    Raises:
        ConfigError: when the file can't be written.
    """
    try:
        whole_file.write(render(config, notation), path)
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error}") from error


def as_base64(config: Mapping[str, Any]) -> str:
    """Return a configuration as DeepSpeed's `--deepspeed_config` takes it in place of a path.

    See `DeepSpeedConfig.__init__` in deepspeed/runtime/config.py: urlsafe base64 of the JSON text.
    """
    return base64.urlsafe_b64encode(json.dumps(config).encode()).decode()


def _settled(found: Document) -> dict[str, Any]:
    """The data without what JSON lets stand and DeepSpeed doesn't: keys twice, quoted numbers."""
    for twice in found.duplicates:
        message = (
            f"ds_config: {twice.path[-1]} stands twice in one block, as {twice.first!r} and {twice.again!r}; keep one "
            f"({found.source}, line {twice.line})"
        )
        subject = _subject(found)
        if any(not finding.mend for finding in duplicates(subject) if finding.path == twice.path):
            raise ConfigError(message)
        _log.warning("%s", message)
    for finding in not_finite(_subject(found)):
        raise ConfigError(f"ds_config: {finding.key}: {finding.rule}; {finding.fix} ({found.source})")
    quoted = [finding for finding in wrong_values(_subject(found)) if finding.code == "quoted"]
    for finding in quoted:
        _log.warning("ds_config: %s: %r is a text in %s; %s", finding.key, finding.value, found.source, finding.fix)
    return mended(found.data, [step for finding in quoted for step in finding.mend])


def _subject(found: Document) -> Subject:
    return Subject(document=found, target=None, ranks=None, deepspeed=installed_deepspeed())


def _other_file(data: Mapping[str, Any], path: Path) -> Path | None:
    """The file that accelerate's configuration names instead of keys; relative to here, as accelerate takes it."""
    block = data.get(accelerate.BLOCK)
    name = block.get(accelerate.CONFIG_FILE) if isinstance(block, Mapping) else None
    if not isinstance(name, str) or name == "none":
        return None
    found = Path(name) if Path(name).is_file() else path.parent / name
    if found.suffix in (".yaml", ".yml"):
        raise ConfigError(f"ds_config: {path}: {accelerate.CONFIG_FILE} is {name}; it must be DeepSpeed's JSON file")
    return found
