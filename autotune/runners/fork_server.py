"""The host's end of a fork server: processes that start in milliseconds, with everything loaded.

The other end is `autotune.evaluators.rank_worker.fork_server`: it is started as a process of its own, loads what every
trial needs, and forks itself for each trial. The ends talk over a socket whose end is the server's end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil

MESSAGE_BYTES = 4096
LOOK_S = 0.01
CLOSE_WAIT_S = 5.0
GROWTH_BYTES = 512 * 1024 * 1024
"""A server that has grown by so much since its first fork is replaced: it only ever loads modules."""


class ForkServer:
    """Starts processes by forking one that has everything loaded; one at a time.

    Args:
        argv: arguments of the server, without the interpreter.
        environment: of the server, whole.
        directory: where it runs.
        output: descriptor of its standard output and error until its first fork.
    """

    def __init__(self, argv: tuple[str, ...], environment: Mapping[str, str], *, directory: Path, output: int) -> None:
        self.argv = argv
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, *argv],
                cwd=directory,
                env=environment,
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._channel.setblocking(False)  # noqa: FBT003 - a method of sockets
        self._first_bytes: int | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def has_grown(self) -> bool:
        """Whether it holds so much more memory than at its first fork that it is better replaced."""
        try:
            resident_bytes = int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return False
        self._first_bytes = self._first_bytes or resident_bytes
        return resident_bytes > self._first_bytes + GROWTH_BYTES

    def ask(self, *, directory: Path, environment: Mapping[str, str], descriptors: tuple[int, int]) -> None:
        """Ask for a fork; `hear` tells when it is there.

        Args:
            directory: where it runs.
            environment: added to the server's.
            descriptors: its standard input, and its standard output and error.

        Raises:
            OSError: when the server is gone.
        """
        message = json.dumps({"directory": str(directory), "environment": dict(environment)}).encode()
        socket.send_fds(self._channel, [message], list(descriptors))

    def hear(self) -> dict[str, int] | None:
        """Return what the server says next, None if it says nothing now.

        Raises:
            EOFError: when the server is gone.
        """
        try:
            message = self._channel.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError(str(error)) from error
        if not message:
            raise EOFError("the fork server ended")
        told: dict[str, int] = json.loads(message)
        return told

    def close(self) -> int:
        """End the server and wait for it; idempotent. Return its exit code."""
        self._channel.close()
        try:
            return self._process.wait(CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()


class ForkedProcess:
    """A process that a fork server started; what `subprocess.Popen` is to one that was started afresh.

    Until the server has loaded everything there is no process yet: it counts as running, with the server's number.
    """

    def __init__(self, server: ForkServer, *, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._server = server
        self._pid: int | None = None

    @property
    def pid(self) -> int:
        return self._pid or self._server.pid

    def poll(self) -> int | None:
        """Return the exit code, as `subprocess.Popen.poll` does."""
        try:
            while self.returncode is None and (told := self._server.hear()) is not None:
                self._pid = told["pid"]
                self.returncode = told.get("returncode")
        except EOFError:
            self._lose()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end, as `subprocess.Popen.wait` does.

        Raises:
            subprocess.TimeoutExpired: when it lasts longer.
        """
        deadline_s = time.monotonic() + timeout
        while (returncode := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(LOOK_S)
        return returncode

    def _lose(self) -> None:
        """The server is gone: nobody can wait for its fork any more, so end it."""
        ended = self._server.close()
        if self._pid is None:
            self.returncode = ended
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self.returncode = -signal.SIGKILL.value
