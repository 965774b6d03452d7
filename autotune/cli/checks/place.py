"""Checks of the storage: can it be opened, and is its file where SQLite may be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune import storage as storages
from autotune.cli.checks.finding import Finding, Status
from autotune.cli.studies import opened
from autotune.errors import StorageError
from autotune.file_systems import Mount, why_not_writable
from autotune.storage import DEFAULT_URL, shown


def storage(url: str | None, mounts: Sequence[Mount] | None = None) -> Iterator[Finding]:
    """Open the storage, or say why it can't be."""
    try:
        mount = storages.check_place(url or DEFAULT_URL, mounts=mounts)
    except StorageError as error:
        yield Finding(check="storage", status=Status.FAIL, detail=str(error), advice="as it says")
        return
    where = f" (on {mount.kind})" if mount is not None else ""
    try:
        with opened(url) as found:
            detail = f"{shown(found.url)}{where}: {len(found.names())} in it"
        yield Finding(check="storage", status=Status.OK, detail=detail)
    except StorageError as error:
        file = storages.file_of(url or DEFAULT_URL)
        if file is not None and not file.exists() and os.access(file.absolute().parent, os.W_OK):
            detail = f"{shown(url or DEFAULT_URL)}{where}: none here yet; the first launch makes it"
            yield Finding(check="storage", status=Status.OK, detail=detail)
        else:
            advice = "correct --storage, or make the folder or server reachable"
            yield Finding(check="storage", status=Status.FAIL, detail=str(error), advice=advice)


def logs(folder: Path) -> Iterator[Finding]:
    """Say whether trials can write their files below a campaign's `run_directory`; nothing where they can."""
    why = why_not_writable(folder)
    if why is not None:
        yield Finding(
            check="run directory",
            status=Status.FAIL,
            detail=f"{folder} can't be written to: {why}",
            advice="make room there, or set run_directory to another folder",
        )
