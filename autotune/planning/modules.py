"""A torch module's widths, told by a process that builds it: torch loads there, not here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.errors import WorkloadError

WORKER = "autotune.planning.module_worker"
DEADLINE_S = 300.0
"""Importing a user's module and torch, and building on the meta device: 2 to 10 s; with weights read, minutes."""
_TAIL_LINES = 8


def widths(name: str) -> dict[str, Any]:
    """Return what `module_worker.widths` tells of a module.

    Args:
        name: `module:attribute`, or a built-in workload.

    Raises:
        WorkloadError: when it can't be imported or built.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-estimate-") as folder:
        result = Path(folder) / "widths.json"
        ended, output = run([sys.executable, "-P", "-m", WORKER, name, str(result)], deadline_s=DEADLINE_S)
        if not result.exists():
            tail = "\n".join(output.splitlines()[-_TAIL_LINES:])
            raise WorkloadError(f"model: the process that builds {name} ended with {ended} and said\n{tail}")
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if "error" in found:
        raise WorkloadError(
            f"model: {name} can't be built on the meta device: {found['error']}; give a torch.nn.Module, its class, or "
            "a function that makes one without reading weights"
        )
    return found


def run(words: Sequence[str], *, deadline_s: float, environment: dict[str, str] | None = None) -> tuple[int | str, str]:
    """Run a process to its end; return its exit code, or that there was no time, and what it printed.

    Whatever it started dies with it.
    """
    process = subprocess.Popen(
        words,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return f"no result after {deadline_s:.0f} s", output.decode(errors="replace")
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, output.decode(errors="replace")
