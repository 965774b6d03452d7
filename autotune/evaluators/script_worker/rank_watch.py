"""A rank of a script, seen from the guard beside it: by the files its probe writes, and by its process."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from autotune.evaluators.protocol import RankReport
from autotune.evaluators.rank_files import RESULT_FILE, STAGE_FILE
from autotune.evaluators.script_files import PID_FILE, rank_folder
from autotune.trials import Stage

_EXIT_CODE_FIELD = 52
"""Of /proc/<pid>/stat, counted from 1 (proc(5)); after the name in brackets comes field 3."""
_STAGES = {stage.value: stage for stage in Stage}


class RankWatch:
    """Implements `autotune.evaluators.protocol.Watched`.

    Args:
        rank: which.
        directory: the trial's folder.
        launcher: returns the exit code of the command, None while it runs.
        memory_limit_bytes: resident size above which the rank is killed.
    """

    def __init__(
        self, rank: int, *, directory: Path, launcher: Callable[[], int | None], memory_limit_bytes: int | None
    ) -> None:
        self.rank = rank
        self.folder = directory / rank_folder(rank)
        self._launcher = launcher
        self._memory_limit_bytes = memory_limit_bytes
        self._memory_exceeded_bytes: int | None = None
        self._pid: int | None = None
        self._descriptor: int | None = None
        self._exit_code: int | None = None
        self._is_gone = False

    @property
    def has_started(self) -> bool:
        """Whether the script's process for this rank has shown."""
        return self._pid is not None

    def poll(self) -> RankReport:
        launcher_exit_code = self._launcher()
        if self._pid is None or self._is_gone:
            self._find()
        if self._pid is not None and self._descriptor is not None:
            self._look(self._pid, self._descriptor)
        running = not self._is_gone if self._pid is not None else launcher_exit_code is None
        exit_code = self._exit_code if self._exit_code is not None else launcher_exit_code
        return RankReport(
            running=running,
            exit_code=None if running else exit_code,
            stage=_STAGES.get((read(self.folder / STAGE_FILE) or "").strip()),
            result=read(self.folder / RESULT_FILE),
            memory_exceeded_bytes=self._memory_exceeded_bytes,
        )

    def _find(self) -> None:
        """Look for the process, and for one that took a dead one's place."""
        text = read(self.folder / PID_FILE)
        if not text or int(text) == self._pid:
            return
        self._pid, self._is_gone, self._exit_code = int(text), False, None
        try:
            self._descriptor = os.pidfd_open(self._pid)
        except OSError:
            self._is_gone = True

    def _look(self, pid: int, descriptor: int) -> None:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if poller.poll(0):  # readable once the process has ended
            self._exit_code = _exit_code_of_zombie(pid)
            self._is_gone, self._descriptor = True, None
            os.close(descriptor)
        elif self._memory_limit_bytes is not None:
            self._enforce(self._memory_limit_bytes)

    def _enforce(self, limit_bytes: int) -> None:
        try:
            process = psutil.Process(self._pid)
            resident_bytes = int(process.memory_info().rss)
            if resident_bytes > limit_bytes:
                self._memory_exceeded_bytes = resident_bytes
                process.kill()
        except psutil.NoSuchProcess:
            return


def read(path: Path) -> str | None:
    """Return a file's text; None where there is none yet."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _exit_code_of_zombie(pid: int) -> int | None:
    """Return how a process ended, as `subprocess` says it; None where its launcher has already asked."""
    stat = read(Path(f"/proc/{pid}/stat"))
    if stat is None:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] != "Z":
        return None
    status = int(fields[_EXIT_CODE_FIELD - 3])
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def name_of(number: int) -> str:
    """Return a signal's name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
