"""A file that is written whole or not at all; or several, all of them or none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write(text: str, path: Path) -> None:
    """Write a text file through a neighbour that takes its place; folders above it are made.

    Raises:
        OSError: when it can't be written; nothing is left behind then.
    """
    write_all({path: text})


def write_all(texts: Mapping[Path, str]) -> None:
    """Write text files that belong together: none takes its place before all of them are on the disk.

    Raises:
        OSError: when one can't be written; no file is changed and nothing is left behind then.
    """
    neighbours: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            _refuse_folder(path)
            neighbours[path] = _neighbour(text, path)
        for path, neighbour in neighbours.items():
            neighbour.replace(path)
    except OSError:
        for neighbour in neighbours.values():
            neighbour.unlink(missing_ok=True)
        raise


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")


def _neighbour(text: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        neighbour = Path(file.name)
        try:
            file.write(text)
            file.flush()
            umask = os.umask(0)
            os.umask(umask)
            neighbour.chmod(0o666 & ~umask)
        except OSError:
            neighbour.unlink(missing_ok=True)
            raise
    return neighbour
