"""A rank of a script, seen from the guard beside it: by the files its probe writes, and by its process."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from autotune.evaluators.protocol import RankReport
from autotune.evaluators.rank_files import INTERMEDIATES_FILE, RESULT_FILE, STAGE_FILE
from autotune.evaluators.script_files import PID_FILE, SEEN_FILE, rank_folder
from autotune.trials import Stage

_EXIT_CODE_FIELD = 52
"""Of /proc/<pid>/stat, counted from 1 (proc(5)); after the name in brackets comes field 3."""
_PIDFD_INFO = struct.Struct("QQ11Ii")
"""What every version of `struct pidfd_info` begins with (linux/pidfd.h): mask, cgroup, ids, exit code."""
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3
_STAGES = {stage.value: stage for stage in Stage}
LOST_GRACE_S = 3.0
"""A launcher that took a rank's exit code has this long to end with one of its own (it writes a summary first)."""


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
        self._end: _End | None = None

    @property
    def has_started(self) -> bool:
        """Whether the script's process for this rank has shown."""
        return self._pid is not None

    @property
    def pid(self) -> int | None:
        """Of the rank's process, the last one that showed."""
        return self._pid

    def poll(self, wait_s: float = 0.0) -> RankReport:
        launcher_exit_code = self._launcher()
        self._find()
        running, exit_code = launcher_exit_code is None, launcher_exit_code
        if self._end is not None:
            if self._end.at_s is None and self._memory_limit_bytes is not None:
                self._enforce(self._memory_limit_bytes)
            running = self._end.at_s is None or (launcher_exit_code is None and self._end.is_unclear)
            exit_code = self._end.exit_code
        return RankReport(
            running=running,
            exit_code=None if running else exit_code,
            stage=_STAGES.get((read(self.folder / STAGE_FILE) or "").strip()),
            intermediates=read(self.folder / INTERMEDIATES_FILE),
            result=read(self.folder / RESULT_FILE),
            memory_exceeded_bytes=self._memory_exceeded_bytes,
            memory_limit_bytes=self._memory_limit_bytes,
        )

    def _find(self) -> None:
        """Look for the process, and for one that took its place: a rank that a wrapper started."""
        text = read(self.folder / PID_FILE)
        if not text or int(text) == self._pid:
            return
        self._pid = int(text)
        self._end = _End(self._pid)
        (self.folder / SEEN_FILE).write_text(text)

    def _enforce(self, limit_bytes: int) -> None:
        try:
            process = psutil.Process(self._pid)
            resident_bytes = int(process.memory_info().rss)
            if resident_bytes > limit_bytes:
                self._memory_exceeded_bytes = resident_bytes
                process.kill()
        except psutil.NoSuchProcess:
            return


class _End:
    """The end of a process that is not a child of this one.

    A thread waits for it: on a kernel below 6.15, only until the launcher asks (torchrun: within 0.1 s) can its exit
    code be seen.
    """

    def __init__(self, pid: int) -> None:
        self.at_s: float | None = None
        """When it came; None while the process lives."""
        self.exit_code: int | None = None
        """As `subprocess` says it; None also where it was missed."""
        self._pid = pid
        try:
            self._descriptor = os.pidfd_open(pid)
        except OSError:
            self.at_s = time.monotonic()
            return
        threading.Thread(target=self._wait, name=f"end of {pid}", daemon=True).start()

    @property
    def is_unclear(self) -> bool:
        """Whether the launcher took the exit code, and may still tell."""
        missed_s = self.at_s if self.exit_code is None else None
        return missed_s is not None and time.monotonic() - missed_s < LOST_GRACE_S

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        poller.poll()  # readable once the process has ended
        self.exit_code = _exit_code_of_zombie(self._pid)
        if self.exit_code is None:
            self.exit_code = _exit_code_kept(self._descriptor)
        self.at_s = time.monotonic()
        os.close(self._descriptor)


def read(path: Path) -> str | None:
    """Return a file's text; None where there is none yet."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _exit_code_of_zombie(pid: int) -> int | None:
    """Return how a process ended, as `subprocess` says it; None where its launcher has already asked."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] != "Z":
        return None
    return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE_FIELD - 3]))


def _exit_code_kept(descriptor: int) -> int | None:
    """Return how a process ended that its launcher has asked about, as `subprocess` says it; None on older kernels.

    From Linux 6.15 on, a descriptor of a process keeps it (PIDFD_GET_INFO, pidfd_open(2)).
    """
    request = _PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13)
    try:
        mask, *_, status = _PIDFD_INFO.unpack(fcntl.ioctl(descriptor, _PIDFD_GET_INFO, request))
    except OSError:
        return None
    return os.waitstatus_to_exitcode(status) if mask & _PIDFD_INFO_EXIT else None


def name_of(number: int) -> str:
    """Return a signal's name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
