"""The build of one DeepSpeed op, in a process of its own, with progress and an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

BUILD_MODULE = "autotune.evaluators.rank_worker.build_ops"
NOT_AVAILABLE_EXIT_CODE = 3
"""The accelerator has no such op: a configuration that needs it fails in its own trial, with DeepSpeed's words."""
DEADLINE_S = 1800.0
"""CPUAdam took 9 minutes on a busy machine of 2 processors, 42 seconds on a quiet one."""
PROGRESS_EVERY_S = 15.0
POLL_S = 0.2
SHOWN_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Compiles one op into `folder`; nothing it starts outlives `run`."""

    builder: str
    op: str
    folder: Path
    device: str
    progress: Callable[[str], None]

    def run(self) -> bool:
        """Compile; return whether it worked, and tell the whole story through `progress`."""
        self.progress(f"compiling DeepSpeed's {self.op} (once per version; a minute, or several on a busy machine)")
        started_s = time.monotonic()
        with tempfile.TemporaryFile() as output:
            exit_code = self._compile(output, started_s)
            spent_s = time.monotonic() - started_s
            if exit_code == 0:
                self.progress(f"compiled {self.op} in {spent_s:.0f} s")
            elif exit_code == NOT_AVAILABLE_EXIT_CODE:
                self.progress(f"{self.op} does not exist for device '{self.device}': what needs it will be refused")
            else:
                self.progress(f"could not compile {self.op} ({_why(exit_code)}); its last lines:\n{_last(output)}")
        return exit_code == 0

    def _compile(self, output: IO[bytes], started_s: float) -> int | None:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", BUILD_MODULE, self.builder],
            env={**os.environ, "TORCH_EXTENSIONS_DIR": str(self.folder), "DS_ACCELERATOR": self.device},
            stdin=subprocess.PIPE,  # held open: the build dies with this process
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        told_s = started_s
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                now_s = time.monotonic()
                if now_s - started_s > DEADLINE_S:
                    return None
                if now_s - told_s > PROGRESS_EVERY_S:
                    told_s = now_s
                    self.progress(f"still compiling {self.op}: {now_s - started_s:.0f} s")
            return process.returncode
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _why(exit_code: int | None) -> str:
    return f"not done after {DEADLINE_S:.0f} s" if exit_code is None else f"exit code {exit_code}"


def _last(output: IO[bytes]) -> str:
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").splitlines()[-SHOWN_LINES:])
