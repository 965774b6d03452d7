"""The raw data of a comparison: one row for each executed trial, as CSV or Parquet."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune import whole_file
from autotune.comparison.contest import Comparison
from autotune.comparison.runs import Contender, Run, best_so_far, elapsed_s, taken_s
from autotune.errors import StudyError

COLUMNS = (
    "searcher",
    "workload",
    "seed",
    "executed",
    "trial",
    "seconds",
    "duration_s",
    "searcher_s",
    "R",
    "best_R",
    "state",
    "failure",
    "reason",
    "is_baseline",
    "config_hash",
)
"""Of the file. `executed` counts a run's trials from 1 in the order in which they ended, `seconds` is the wall time of
the run at which the trial ended, and R and best_R are relative to the comparison's common reference."""


def records(contenders: Sequence[Contender], comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row for each executed trial of each run, also for those beyond the comparison's budget."""
    return [
        {"searcher": contender.name, "workload": run.workload, "seed": run.seed, **row}
        for contender in contenders
        for run in contender.runs
        for row in _trials(run, comparison)
    ]


def check(path: Path) -> None:
    """Refuse a file that can't be written in its format, before hours of trials are spent on it.

    Raises:
        StudyError: when its ending says neither CSV nor Parquet, or pyarrow is missing for the latter.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise StudyError(f"--raw: got {path}; the name must end with .csv or .parquet")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise StudyError(
            f"--raw: got {path}, and Parquet takes pyarrow, which is not installed "
            "(pip install 'deepspeed-autotune[parquet]'); install it, or give a name that ends with .csv"
        )


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as CSV or Parquet, by the name's ending.

    Raises:
        StudyError: when it can't be written.
    """
    check(path)
    try:
        if path.suffix == ".parquet":
            _write_parquet(rows, path)
        else:
            text = io.StringIO()
            writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            whole_file.write(text.getvalue(), path)
    except OSError as error:
        raise StudyError(f"--raw: can't write {path}: {error}; choose another path") from error


def _write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def _trials(run: Run, comparison: Comparison) -> list[dict[str, Any]]:
    objective, reference = comparison.objective, comparison.references[run.workload]
    ended_s, best = elapsed_s(run).tolist(), best_so_far(run, objective, reference).tolist()
    return [
        {
            "executed": position,
            "trial": trial.number,
            "seconds": ended_s[position - 1],
            "duration_s": taken_s(trial),
            "searcher_s": trial.searcher_s,
            "R": objective.score(trial.measurement, reference).value if trial.measurement else None,
            "best_R": best[position - 1],
            "state": trial.state.value,
            "failure": trial.failure.kind.value if trial.failure else None,
            "reason": trial.failure.reason if trial.failure else None,
            "is_baseline": trial.is_baseline,
            "config_hash": trial.config_hash,
        }
        for position, trial in enumerate(run.executed, start=1)
    ]
