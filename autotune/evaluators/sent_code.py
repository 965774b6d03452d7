"""Code that was sent to a node: where a folder of the controller's machine lies there.

The runner sets these variables in the processes of a node that it sent a folder to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FROM_VARIABLE = "AUTOTUNE_CODE_FROM"
"""The folder, on the controller's machine."""
TO_VARIABLE = "AUTOTUNE_CODE_TO"
"""Its copy, on this one."""


def here(path: str) -> str:
    """Return where a path of the controller's machine lies on this one: in the copy, if it was sent."""
    source, copy = os.environ.get(FROM_VARIABLE), os.environ.get(TO_VARIABLE)
    if source is None or copy is None or not Path(path).is_relative_to(source):
        return path
    sent = copy / Path(path).relative_to(source)
    return str(sent) if sent.exists() else path  # a trial's own files are made where the path says


def all_here(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the same for each of several paths, or words that may be paths."""
    return tuple(here(path) for path in paths)
