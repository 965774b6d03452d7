"""The failure matrix: how each way to go wrong ends, how long that takes, and how long until nothing of it is left.

make failures, or python -m tests.benchmarks.failures [part of a case's name ...]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from tests import failures

COLUMNS = "| case | launcher | outcome | reason | decided after (s) | clean after (s) |\n|---|---|---|---|---|---|"
REASON_CHARACTERS = 120


def main() -> int:
    """Print one row per case; return 1 where one ended otherwise than it must, or left something behind."""
    began_s = time.monotonic()
    load = os.getloadavg()[0]
    print(COLUMNS)
    wrong = [case.name for case in failures.CASES if _is_wanted(case.name) and not _row(case)]
    print(
        f"\n{os.cpu_count()} processors, load {load:.1f} before and {os.getloadavg()[0]:.1f} after; "
        f"{time.monotonic() - began_s:.0f} s in all"
    )
    for name in wrong:
        print(f"not as it must be: {name}")
    return 1 if wrong else 0


def _is_wanted(name: str) -> bool:
    return not sys.argv[1:] or any(part in name for part in sys.argv[1:])


def _row(case: failures.Case) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        seen = failures.run(case, Path(folder))
        failure = seen.outcome.failure
        kind = failure.kind.value if failure else "a measurement"
        if failure and failure.rank is not None:
            kind += f", rank {failure.rank}"
        reason = failure.reason.replace(folder, "...") if failure else ""
        shown = reason if len(reason) <= REASON_CHARACTERS else reason[:REASON_CHARACTERS] + " ..."
        clean = f"{seen.clean_s:.1f}" if seen.clean_s is not None else f"never: {', '.join(seen.left)}"
        row = [case.name, case.launcher, kind, shown.replace("|", "/"), f"{seen.decided_s:.1f}", clean]
        print(f"| {' | '.join(row)} |", flush=True)
    return not failures.complaints(case, seen)


if __name__ == "__main__":
    sys.exit(main())
