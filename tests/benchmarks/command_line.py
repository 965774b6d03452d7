"""How long the command line takes to answer: `autotune --help` beside a bare interpreter, interleaved."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

REPEATS = 7


def seconds(argv: list[str]) -> float:
    """Return the wall time of one run."""
    begun = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    """Print medians and their ratio."""
    autotune = str(Path(sys.executable).with_name("autotune"))
    bare, help_page = [], []
    for _ in range(REPEATS):
        bare.append(seconds([sys.executable, "-c", "pass"]))
        help_page.append(seconds([autotune, "--help"]))
    one, other = statistics.median(bare), statistics.median(help_page)
    print(f"command line: autotune --help {other:.3f} s, a bare interpreter {one:.3f} s (medians of {REPEATS})")


if __name__ == "__main__":
    main()
