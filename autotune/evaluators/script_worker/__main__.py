"""The life of the guard: run the trial of the current folder, and end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autotune.evaluators.processes import TOKEN_VARIABLE
from autotune.evaluators.script_worker.guard import Guard, watch_host

if __name__ == "__main__":
    guard = Guard(Path.cwd(), token=os.environ[TOKEN_VARIABLE])
    watch_host(guard)
    guard.run()
    sys.exit(0)
