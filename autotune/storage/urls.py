"""Storage URLs: which file one names, whether it may lie there, and how one is printed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy

from autotune import file_systems
from autotune.errors import StorageError
from autotune.file_systems import Mount

DEFAULT_URL = "sqlite:///autotune.db"
NETWORK_VARIABLE = "AUTOTUNE_SQLITE_ON_NETWORK"
"""Environment variable that, set to 1, allows a SQLite file on a network file system."""
_VARIABLE = "AUTOTUNE_STORAGE"
"""Environment variable that stands in for --storage (`autotune.cli.options.STORAGE_VARIABLE`)."""


def check_place(url: str, *, mounts: Sequence[Mount] | None = None) -> Mount | None:
    """Return the mount that a SQLite storage lies on; None for others.

    Args:
        url: of the storage.
        mounts: what is mounted; this machine's own by default.

    Raises:
        StorageError: when the URL is none, or its file is on a network file system and the user doesn't insist.
    """
    file = file_of(url)
    if file is None:
        return None
    mount = file_systems.mount_of(file, file_systems.mounts() if mounts is None else mounts)
    if mount is not None and mount.is_network and os.environ.get(NETWORK_VARIABLE, "0") in ("", "0"):
        raise StorageError(
            f"storage: got {shown(url)}, and {mount.point} is a network file system ({mount.kind}): SQLite's locks "
            f"don't hold there and the file can break; give a path on a local disk "
            f"(--storage sqlite:////tmp/{file.name}) or PostgreSQL (--storage postgresql+psycopg://USER@HOST/NAME), "
            f"or set {NETWORK_VARIABLE}=1 if only this machine uses it"
        )
    return mount


def file_of(url: str) -> Path | None:
    """Return the file of a SQLite storage; None for a server, for memory, and for SQLite's own `file:` names.

    Raises:
        StorageError: when it is no URL.
    """
    try:
        parsed = sqlalchemy.engine.make_url(url)
    except sqlalchemy.exc.ArgumentError as error:
        raise StorageError(f"storage: got {url!r}; give a URL such as {DEFAULT_URL}") from error
    database = parsed.database
    if parsed.get_backend_name() != "sqlite" or not database or database == ":memory:" or database.startswith("file:"):
        return None
    return Path(database)


def shown(url: str) -> str:
    """Return a storage URL as it may be printed: without its password."""
    try:
        parsed = sqlalchemy.engine.make_url(url)
        hidden = {name: "***" for name in parsed.query if "password" in name.lower()}
        return parsed.update_query_dict(hidden).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return url


def command(verb: str, *arguments: str, url: str | None) -> str:
    """Return a command line of autotune's for the user to type next.

    Args:
        verb: of autotune.
        arguments: what follows it.
        url: of the storage that it is about, named where the command wouldn't find it by itself, and without its
            password; None: the one that it finds.
    """
    is_found = url is None or url == (os.environ.get(_VARIABLE) or DEFAULT_URL)
    return shlex.join(("autotune", verb, *arguments, *(() if is_found else ("--storage", shown(str(url))))))
