"""The life of the guard: run the trial of the current folder, and end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autotune.evaluators import processes
from autotune.evaluators.script_files import CANNOT_WRITE
from autotune.evaluators.script_worker.guard import Guard, watch_host

if __name__ == "__main__":
    processes.adopt_orphans()
    guard = Guard(Path.cwd(), token=os.environ[processes.TOKEN_VARIABLE])
    watch_host(guard)
    try:
        guard.run()
    except OSError as error:
        sys.stderr.write(f"[autotune] the files of this trial can't be written: {error}\n")
        sys.exit(CANNOT_WRITE)
    sys.exit(0)
