"""A reaper: a small process that ends given processes once this one is gone, however it went.

Ray ties its servers to the life of the process that starts them, but two of its agents linger for a minute after a
SIGKILL: they try to tell the dead cluster of it first (`report_raylet_error_logs` in ray/_private/process_watcher.py).

The process runs this file by its path, so that it loads psutil and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import psutil

CLOSE_TIMEOUT_S = 10.0
_SAME_START_S = 1.0
"""A process with a known number that started this much later is another one."""


class Reaper:
    """Ends the processes it was given when this process closes it or dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self, processes: Iterable[psutil.Process]) -> None:
        """Start watching for the end of this process."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # a Ctrl-C in the terminal is not for it
        )
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        self._process.stdin.write("".join(f"{each.pid} {each.create_time()}\n" for each in processes))
        self._process.stdin.flush()

    def close(self) -> None:
        """End those processes that are left, and the reaper; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate(timeout=CLOSE_TIMEOUT_S)


def reap(lines: Iterable[str]) -> None:
    """Kill the processes that lines of 'pid start-time' name, so far as they are still there."""
    for line in lines:
        pid, started = line.split()
        try:
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(started)) < _SAME_START_S:
                process.kill()
        except psutil.Error:
            continue  # gone, as it should be


if __name__ == "__main__":
    reap(sys.stdin.readlines())  # comes back at the end of the input: the other side is closed or dead
