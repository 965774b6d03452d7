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
FORK_LOOK_S = 0.001
FORK_WAIT_S = 30.0
"""It may be learning: loading what the last fork had to load."""
CLOSE_WAIT_S = 5.0
GROWTH_BYTES = 512 * 1024 * 1024
"""A server that has grown by so much since its first fork is replaced: it only ever loads modules."""
MOST_FORKS = 1000
"""So is one that has forked so often."""


class ForkServer:
    """Starts processes by forking one that has everything loaded; one at a time.

    Args:
        argv: arguments of the server, without the interpreter.
        environment: of the server, whole.
    """

    def __init__(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._argv = argv
        self._environment = environment
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._first_bytes: int | None = None
        self._is_warm = False
        self._forks = 0

    @property
    def pid(self) -> int:
        """Process id; 0 before the first fork was asked for."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_worn(self) -> bool:
        """Whether it is to be replaced: it forked so often, or holds so much more memory than at its second fork."""
        if self._forks >= MOST_FORKS:
            return True
        try:
            resident_bytes = int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return False
        self._first_bytes = self._first_bytes or resident_bytes
        return resident_bytes > self._first_bytes + GROWTH_BYTES

    def fork(self, *, directory: Path, environment: Mapping[str, str]) -> ForkedProcess:
        """Start a process. The first one's server loads everything before there is a fork, and writes to its output.

        Args:
            directory: where it runs.
            environment: added to the server's.

        Raises:
            OSError: when the server is gone, or does not answer; it has to be replaced.
        """
        lifeline, stdin = os.pipe()
        stdout, output = os.pipe()
        self._forks += 1
        process = ForkedProcess(self, stdin=os.fdopen(stdin, "wb"), stdout=os.fdopen(stdout, "rb"))
        try:
            channel = self._channel or self._start(directory, output)
            message = json.dumps({"directory": str(directory), "environment": dict(environment)}).encode()
            socket.send_fds(channel, [message], [lifeline, output])
            if self._is_warm:
                process.await_fork()
        except OSError:
            process.stdin.close()
            process.stdout.close()
            raise
        finally:
            os.close(lifeline)
            os.close(output)
        return process

    def hear(self) -> dict[str, int] | None:
        """Return what the server says next, None if it says nothing now.

        Raises:
            ConnectionError: when the server is gone.
        """
        if self._channel is None:
            raise ConnectionError("the fork server is closed")
        try:
            message = self._channel.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return None
        if not message:
            raise ConnectionError("the fork server ended")
        self._is_warm = True
        told: dict[str, int] = json.loads(message)
        return told

    def close(self) -> int:
        """End the server and wait for it; idempotent. Return its exit code."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is None:
            return 0
        try:
            return self._process.wait(CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()

    def _start(self, directory: Path, output: int) -> socket.socket:
        self._is_warm, self._first_bytes = False, None
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)  # noqa: FBT003 - a method of sockets
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *self._argv],
                cwd=directory,
                env=self._environment,
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self._channel


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
                if self._pid is None and "returncode" in told:
                    continue  # of the fork before, which was given up
                self._pid = told["pid"]
                self.returncode = told.get("returncode")
        except ConnectionError:
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

    def await_fork(self) -> None:
        """Wait until the fork is there; a server that has loaded everything takes milliseconds.

        Raises:
            ConnectionError: when the server died, or hangs, before it forked.
        """
        deadline_s = time.monotonic() + FORK_WAIT_S
        while self._pid is None:
            if self.poll() is not None or time.monotonic() > deadline_s:
                raise ConnectionError("the fork server gave no process")
            time.sleep(FORK_LOOK_S)

    def _lose(self) -> None:
        """The server is gone: nobody can wait for its fork any more, so end it."""
        ended = self._server.close()
        if self._pid is None:
            self.returncode = ended
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self.returncode = -signal.SIGKILL.value
