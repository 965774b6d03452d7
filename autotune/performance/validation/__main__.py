"""Print the validation against published measurements, or refit the shipped coefficients to them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.performance.coefficients import Coefficients, write_table
from autotune.performance.validation.explanation import explained
from autotune.performance.validation.report import findings, fit, load, text


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m autotune.performance.validation", description=__doc__)
    parser.add_argument("folder", type=Path, help="where runs.csv and memory.csv lie, such as experiments/published")
    parser.add_argument("--refit", type=Path, metavar="FILE", help="fit to them and write the table of coefficients")
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="ID",
        help="say of these rows of runs.csv what was measured, what is predicted, and of what",
    )
    chosen = parser.parse_args()
    try:
        if chosen.rows:
            sys.stdout.write(explained(chosen.folder, chosen.rows) + "\n")
            return 0
        published = load(chosen.folder)
        if chosen.refit is not None:
            write_table(chosen.refit, fit(published).coefficients)
        else:
            sys.stdout.write(text(published, findings(published, Coefficients.prior())) + "\n")
    except AutotuneError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
