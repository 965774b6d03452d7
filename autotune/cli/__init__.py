"""The `autotune` command: parse, call, print.

Only what parsing needs loads here; a command's function imports what does its work.
"""

from __future__ import annotations

import sys

from autotune.cli.threads import use_one_thread

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and end it with an exit code."""
    use_one_thread()
    from autotune.cli.app import app
    from autotune.cli.border import run

    sys.exit(run(app, sys.argv[1:]))
