"""Opening a storage: its tables are made where they are missing, and Optuna's version of them is checked."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.storages import RDBStorage

from autotune.errors import StorageError
from autotune.file_systems import Mount
from autotune.storage import tables
from autotune.storage.studies import Database, Storage
from autotune.storage.urls import check_place, file_of, shown

_SQLITE_WAIT_S = 5.0
"""How long SQLite itself waits for a lock; a controller tries again then (`patience`), others tell of it."""
_LIBPQ_DRIVERS = ("psycopg", "psycopg2")
_LIBPQ_ARGUMENTS = {
    "client_encoding": "utf8",  # a database made without a locale is SQL_ASCII, of which psycopg returns bytes
    # Without what follows, a server whose network is cut is waited for as long as TCP does: a quarter of an hour, or
    # for ever (https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS).
    "connect_timeout": 10,  # s
    "keepalives_idle": 10,  # s
    "keepalives_interval": 5,  # s
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms
}
_ATTEMPTS, _AGAIN_S = 20, 0.1

optuna.logging.set_verbosity(optuna.logging.WARNING)


def connect(url: str, *, mounts: Sequence[Mount] | None = None) -> Storage:
    """Open a storage, making its tables if they are missing.

    Args:
        url: any that Optuna takes.
        mounts: what is mounted; this machine's own by default.

    Raises:
        StorageError: when the database can't be reached, is not an Optuna storage, or is a SQLite file on a network
            file system.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)
    mount = check_place(url, mounts=mounts)
    parsed, file = sqlalchemy.engine.make_url(url), file_of(url)
    is_local = mount is None or not mount.is_network
    try:
        with _one_at_a_time(file):
            if file is not None and not file.exists():
                _make_whole(parsed, file, write_ahead=is_local)
            rdb = _opened(url, write_ahead=None if file is None else is_local)
        return Storage(Database(rdb.engine, url))
    except ImportError as error:
        raise StorageError(
            f"storage: no driver for {shown(url)} is installed ({error}); for PostgreSQL: "
            f"pip install 'deepspeed-autotune[postgresql]', and give postgresql+psycopg://USER@HOST/NAME"
        ) from error
    except (
        sqlalchemy.exc.SQLAlchemyError,
        optuna.exceptions.StorageInternalError,
        sqlite3.Error,
        RuntimeError,
        OSError,
        ValueError,  # a NUL in a path, a query argument of the wrong type
    ) as error:
        told = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
        first_line = str(told).strip().splitlines()[0]
        raise StorageError(
            f"storage: can't open {shown(url)}: {first_line}; "
            f"check that the folder or server exists and may be written, and that the database is Optuna's"
        ) from error


def _opened(url: str, *, write_ahead: bool | None) -> RDBStorage:
    """Open Optuna's storage, and see that its tables are Optuna's.

    Args:
        url: of the database.
        write_ahead: whether SQLite's write-ahead mode is used; None where it is no SQLite file.
    """
    arguments = _connect_arguments(sqlalchemy.engine.make_url(url), is_file=write_ahead is not None)
    for attempt in range(_ATTEMPTS):
        try:
            rdb = RDBStorage(url, engine_kwargs={"connect_args": arguments})
            break
        except sqlalchemy.exc.DBAPIError as error:
            # Another makes the tables at this moment, without our lock.
            made = isinstance(error, sqlalchemy.exc.IntegrityError) or "already exists" in str(error)
            if not made or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_AGAIN_S)
    rdb.remove_session()
    if write_ahead is not None:
        sqlalchemy.event.listen(rdb.engine, "connect", _write_ahead if write_ahead else _roll_back)
        rdb.engine.dispose()
    with rdb.engine.connect() as connection:
        for table in tables.USED:  # a foreign table of the same name lacks its columns
            connection.execute(sqlalchemy.select(*table.columns).limit(0))
    return rdb


def _connect_arguments(url: sqlalchemy.engine.URL, *, is_file: bool) -> dict[str, Any]:
    """Return what the driver is told beside the URL, which has the last word."""
    if is_file:
        return {"timeout": _SQLITE_WAIT_S}
    if url.get_backend_name() == "postgresql" and url.get_driver_name() in _LIBPQ_DRIVERS:
        return {name: value for name, value in _LIBPQ_ARGUMENTS.items() if name not in url.query}
    return {}


def _make_whole(url: sqlalchemy.engine.URL, file: Path, *, write_ahead: bool) -> None:
    """Make the tables in a neighbour that takes the file's place: nobody ever sees a file with half of its tables.

    Optuna itself fails where two make the tables of one file (optuna#820), and its readers make them too.
    """
    with tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=f".{file.name}-") as folder:
        neighbour = Path(folder) / file.name
        rdb = RDBStorage(url.set(database=str(neighbour)).render_as_string(hide_password=False))
        rdb.remove_session()
        rdb.engine.dispose()
        if write_ahead:  # kept in the file; a change of mode later would find it locked by readers
            with closing(sqlite3.connect(neighbour)) as connection:
                _write_ahead(connection, None)
        try:
            os.link(neighbour, file)
        except FileExistsError:
            pass  # another tool was quicker
        except OSError:  # a file system without links
            if not file.exists():
                neighbour.rename(file)


def _write_ahead(connection: Any, _: object) -> None:
    """Let readers read while the controller writes, and spare a disk flush per statement.

    In SQLite's write-ahead mode with synchronous = NORMAL a commit survives the death of the process; only a power
    failure can take the last ones (https://sqlite.org/pragma.html#pragma_synchronous).
    """
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def _roll_back(connection: Any, _: object) -> None:
    """Write-ahead mode needs memory that all processes share, which a network file system doesn't give.

    https://sqlite.org/wal.html, "WAL does not work over a network filesystem".
    """
    connection.execute("PRAGMA journal_mode = DELETE")


@contextmanager
def _one_at_a_time(file: Path | None) -> Iterator[None]:
    """Let one process at a time make the tables of a SQLite file (optuna#820: others fail meanwhile)."""
    if file is None:
        yield
        return
    with Path(f"{file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
