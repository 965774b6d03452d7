"""A file that is written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(text: str, path: Path) -> None:
    """Write a text file through a neighbour that takes its place; folders above it are made.

    Raises:
        OSError: when it can't be written; nothing is left behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        neighbour = Path(file.name)
        try:
            file.write(text)
            file.flush()
            umask = os.umask(0)
            os.umask(umask)
            neighbour.chmod(0o666 & ~umask)
            neighbour.replace(path)
        except OSError:
            neighbour.unlink(missing_ok=True)
            raise
