"""Fill docs/estimate.md: each block that starts with `$ autotune ...` gets what the command says, 100 columns wide.

Commands on `cpu` measure the machine they run on, so they are left as they are unless `--cpu` is given.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "estimate.md"
BLOCK = re.compile(r"```text\n\$ (autotune [^\n]*)\n(.*?)```", re.DOTALL)


def answer(command: str) -> str:
    """Return what a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def filled(text: str, *, measures_cpu: bool) -> str:
    """Return the page with its blocks filled anew."""

    def block(match: re.Match[str]) -> str:
        command = match[1]
        kept = "cpu" in command and not measures_cpu
        return match[0] if kept else f"```text\n$ {command}\n{answer(command).strip()}\n```"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    page = filled(PAGE.read_text(encoding="utf-8"), measures_cpu="--cpu" in sys.argv[1:])
    PAGE.write_text(page, encoding="utf-8")
