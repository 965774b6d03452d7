"""A rank's process on this machine: started in a session of its own, tied to this process's life, ended whole."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil

from autotune.evaluators import processes
from autotune.evaluators.protocol import RankCommand, RankReport
from autotune.evaluators.rank_files import INTERMEDIATES_FILE, LOG_FILE, RESULT_FILE, STAGE_FILE
from autotune.runners.bounded_log import BoundedLog
from autotune.runners.fork_server import ForkedProcess, ForkServer
from autotune.trials import Stage

logger = logging.getLogger(__name__)

TERM_GRACE_S = 1.5
KILL_WAIT_S = 5.0
LOOK_S = 0.01
"""How often `poll` looks for a change while it waits for one."""
LEAVING_LOOK_S = 0.001
"""The same once the rank has delivered its result: it is about to end, and nothing is timed any more."""
RENDEZVOUS_VARIABLES = frozenset({"MASTER_ADDR", "MASTER_PORT"})
"""The variables of a rank's environment that differ from trial to trial."""
_STAGES = {stage.value: stage for stage in Stage}


class RankProcess:
    """A `RankHost` on this machine.

    The child's standard input is a pipe that this process holds open: when this process dies, however it dies, the
    child reads the end of its input and kills its own process group. A command that names a fork server gets a fork of
    it; the server stays for the next command.
    """

    def __init__(self, *, address: str = "127.0.0.1", threads: int | None = None, gpu: str | None = None) -> None:
        """Store where the rank runs.

        Args:
            address: Address of this machine that the other ranks reach.
            threads: OMP_NUM_THREADS of the rank, unless the environment sets it; None: processors over ranks.
            gpu: What the rank gets as CUDA_VISIBLE_DEVICES; None: this process's own.
        """
        self.address = address
        self.threads = threads
        self.gpu = gpu
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._server: ForkServer | None = None
        self._server_environment: dict[str, str] = {}
        self._server_token = ""
        self._told: tuple[object, ...] = ()
        self._log: BoundedLog | None = None
        self._directory = Path()
        self._token = ""
        self._segments_before: frozenset[str] = frozenset()
        self._memory_limit_bytes: int | None = None
        self._memory_exceeded_bytes: int | None = None

    @property
    def server_pid(self) -> int | None:
        """Process id of the fork server; None while there is none."""
        return self._server.pid if self._server is not None else None

    def reserve_address(self) -> tuple[str, int]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind((self.address, 0))
            return self.address, int(listener.getsockname()[1])

    def start(self, command: RankCommand) -> None:
        self.stop()
        self._process = self._log = None
        self._directory = Path(command.directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        for stale in (STAGE_FILE, INTERMEDIATES_FILE, RESULT_FILE):
            (self._directory / stale).unlink(missing_ok=True)
        for name, text in command.files.items():
            path = self._directory / name
            path.touch(mode=0o600)  # a command's environment may hold a password
            path.write_text(text)
        self._memory_limit_bytes = command.memory_limit_bytes
        self._memory_exceeded_bytes = None
        self._segments_before = processes.shared_memory()
        self._process = self._spawned(command) if command.fork_of is None else self._forked(command, command.fork_of)
        assert self._process.stdout is not None  # noqa: S101 - asked for in both cases
        self._log = BoundedLog(self._process.stdout, self._directory / LOG_FILE)

    def poll(self, wait_s: float = 0.0) -> RankReport:
        if self._process is None:
            return RankReport(running=False)
        deadline_s = time.monotonic() + wait_s
        report = self._report(self._process)
        while _gist(report) == self._told and time.monotonic() < deadline_s:
            time.sleep(LOOK_S if report.result is None else LEAVING_LOOK_S)
            report = self._report(self._process)
        self._told = _gist(report)
        return report

    def stop(self) -> RankReport:
        process, log = self._process, self._log
        if process is None or log is None:
            return RankReport(running=False)
        if process.stdin is not None and not process.stdin.closed:
            self._end(process)
            process.stdin.close()
            log.close()
        return self.poll()

    def close(self) -> None:
        """End the process, and the fork server if there is one; idempotent."""
        self.stop()
        self._end_server()

    def _report(self, process: subprocess.Popen[bytes] | ForkedProcess) -> RankReport:
        self._enforce_memory_limit(process)
        exit_code = process.poll()
        result = _read(self._directory / RESULT_FILE)  # after the exit code: nothing is written later
        told = exit_code is not None or result is not None
        return RankReport(
            running=exit_code is None,
            exit_code=exit_code,
            stage=_STAGES.get((_read(self._directory / STAGE_FILE) or "").strip()),
            intermediates=_read(self._directory / INTERMEDIATES_FILE),
            result=result,
            log_tail=self._log.tail() if told and self._log else (),
            log_path=str(self._directory / LOG_FILE),
            memory_exceeded_bytes=self._memory_exceeded_bytes,
            memory_limit_bytes=self._memory_limit_bytes,
        )

    def _spawned(self, command: RankCommand) -> subprocess.Popen[bytes]:
        self._token = uuid.uuid4().hex
        return subprocess.Popen(
            [sys.executable, *command.argv],
            cwd=self._directory,
            env={**self._environment(command), processes.TOKEN_VARIABLE: self._token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _forked(self, command: RankCommand, argv: tuple[str, ...]) -> ForkedProcess:
        environment = self._environment(command)
        lasting = {name: value for name, value in environment.items() if name not in RENDEZVOUS_VARIABLES}
        if self._server is not None and self._server_environment == lasting and not self._server.is_worn:
            try:
                self._token = self._server_token
                return self._server.fork(directory=self._directory, environment=command.environment)
            except OSError as error:
                logger.warning("the fork server is replaced: %s", error)
        self._end_server()
        self._token = self._server_token = uuid.uuid4().hex
        self._server_environment = lasting
        self._server = ForkServer(argv, {**environment, processes.TOKEN_VARIABLE: self._token})
        return self._server.fork(directory=self._directory, environment=command.environment)

    def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _environment(self, command: RankCommand) -> dict[str, str]:
        environment = {**os.environ, **command.environment}
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        ranks = int(command.environment.get("WORLD_SIZE", "1"))
        environment.setdefault("OMP_NUM_THREADS", str(self.threads or max(1, len(os.sched_getaffinity(0)) // ranks)))
        return environment

    def _enforce_memory_limit(self, process: subprocess.Popen[bytes] | ForkedProcess) -> None:
        if self._memory_limit_bytes is None or process.returncode is not None:
            return
        try:
            resident_bytes = int(psutil.Process(process.pid).memory_info().rss)
        except psutil.Error:
            return
        if resident_bytes > self._memory_limit_bytes:
            self._memory_exceeded_bytes = resident_bytes
            _signal_group(process.pid, signal.SIGKILL)
            _wait(process, KILL_WAIT_S)

    def _end(self, process: subprocess.Popen[bytes] | ForkedProcess) -> None:
        # Until it is waited for, the leader's process group can't be another's; afterwards only marks tell.
        if process.poll() is None:
            _signal_group(process.pid, signal.SIGTERM)
            if not _wait(process, TERM_GRACE_S):
                _signal_group(process.pid, signal.SIGKILL)
                _wait(process, KILL_WAIT_S)
        spared = {self._server.pid} if self._server is not None else set()
        processes.end(self._token, there_before=self._segments_before, spared=spared)


def _gist(report: RankReport) -> tuple[object, ...]:
    """Return what a waiting caller waits for a change of."""
    return report.running, report.stage, report.result is None


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return


def _wait(process: subprocess.Popen[bytes] | ForkedProcess, timeout_s: float) -> bool:
    try:
        process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
