"""Checks of the folders of compiled ops: autotune's own, and those that torch uses without it."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from autotune import file_systems, hardware
from autotune.cli.checks.finding import Finding, Status
from autotune.evaluators import op_cache


def own_cache() -> Iterator[Finding]:
    """Look at autotune's op cache."""
    try:
        folder = op_cache.directory(hardware.detect().accelerator)
    except importlib.metadata.PackageNotFoundError:
        return  # told by the check of packages
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        advice = f"make it writable, or set {op_cache.ROOT_VARIABLE} to a folder that is"
        yield Finding(check="op cache", status=Status.FAIL, detail=f"{existing} can't be written to", advice=advice)
        return
    built = sorted(path.parent.name for path in folder.glob("*/*.so"))
    yield Finding(check="op cache", status=Status.OK, detail=f"{folder}: {', '.join(built) or 'nothing compiled yet'}")


def locks(*, fix: bool) -> Iterator[Finding]:
    """Find locks that a build left behind: whoever loads the op waits for ever (`FileBaton` in torch)."""
    table = file_systems.mounts()
    for lock in sorted({lock for folder in _folders() for lock in (*folder.glob("*/lock"), *folder.glob("*/*/lock"))}):
        mount = file_systems.mount_of(lock, table)
        if mount is not None and mount.is_network:
            yield Finding(
                check="op lock",
                status=Status.WARN,
                detail=f"{lock}: on a network file system ({mount.kind}), where its builder can't be seen",
                advice=f"if nothing is being compiled: rm {lock}",
            )
        elif not op_cache.is_stale(lock):
            yield Finding(check="op lock", status=Status.OK, detail=f"{lock}: a build is under way")
        elif fix:
            lock.unlink(missing_ok=True)
            yield Finding(check="op lock", status=Status.OK, detail=f"removed {lock}: its builder was gone")
        else:
            yield Finding(
                check="op lock",
                status=Status.WARN,
                detail=f"{lock}: its builder is gone, and whatever loads this op waits for ever",
                advice="autotune doctor --fix",
            )


def _folders() -> Iterator[Path]:
    """Folders of autotune's, of TORCH_EXTENSIONS_DIR, and torch's default."""
    with suppress(importlib.metadata.PackageNotFoundError):
        yield op_cache.directory(hardware.detect().accelerator)
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    if named:
        yield Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    yield Path(cache) / "torch_extensions"
