"""A recording: trials that were measured before, read from a file, and how near points are to each other."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from autotune.errors import CampaignError
from autotune.trials import Outcome, Point, Value

_Key: TypeAlias = tuple[tuple[str, Value], ...]

HOW = "write it by autotune trials STUDY --format json, or by make record"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOut:
    """How well each recorded point is answered by the others."""

    by: str
    """'the nearest', or 'the surrogate'."""
    points: int
    same_end: float
    """Share of the points that are measured, or fail, as their nearest does."""
    throughput_error: float | None
    """Median of |answer / own - 1| of samples per second, where both are measured; None where no two are."""
    convergence_error: float | None
    """The same of the drop of the loss per second, where both learn."""

    def __str__(self) -> str:
        errors = [
            f"{name} {100 * error:.0f} %"
            for name, error in (("throughput", self.throughput_error), ("convergence", self.convergence_error))
            if error is not None
        ]
        end = f"{100 * self.same_end:.0f} % end alike"
        return f"left out one by one and answered by {self.by}, {end}; median errors: {', '.join(errors) or 'none'}"


class Recording:
    """Recorded outcomes by point; of a point that was measured several times, all of them in order.

    Trials that were pruned when they were recorded are left out: how they would have ended isn't known.

    Args:
        rows: as `autotune trials STUDY --format json` gives them; lines that are no trial are passed over.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.baselines: list[Outcome] = []
        self.kernels: Mapping[str, Any] = {}
        """Of a surrogate that was fitted when it was recorded, by figure."""
        self._outcomes: dict[_Key, list[Outcome]] = {}
        for row in rows:
            self.kernels = row.get("kernels", self.kernels)
            if not row.get("outcome") or row["outcome"].get("pruned"):
                continue
            outcome = Outcome.from_json(row["outcome"])
            if row["is_baseline"]:
                self.baselines.append(outcome)
            self._outcomes.setdefault(_key(row["point"]), []).append(outcome)
        self._points = [dict(key) for key in self._outcomes]

    def __len__(self) -> int:
        return len(self._points)

    @property
    def points(self) -> Sequence[Point]:
        """Every recorded point once, in order."""
        return self._points

    def exact(self, point: Point) -> list[Outcome]:
        """Return the outcomes of this very point; empty where it was never recorded."""
        return self._outcomes.get(_key(point), [])

    def nearest(self, point: Point) -> tuple[Point, list[Outcome]]:
        """Return the recorded point that is nearest (the first of several), and its outcomes."""
        index = int(distances([point], self._points)[0].argmin())
        return self._points[index], self._outcomes[_key(self._points[index])]

    def leave_one_out(self) -> LeaveOneOut | None:
        """Return how far the nearest point is to be believed; None of a single point."""
        if len(self) < 2:
            return None
        apart = distances(self._points, self._points)
        np.fill_diagonal(apart, np.inf)
        firsts = [outcomes[0] for outcomes in self._outcomes.values()]
        pairs = [(own, firsts[int(nearest)]) for own, nearest in zip(firsts, apart.argmin(axis=1), strict=True)]
        measured = [(a.measurement, b.measurement) for a, b in pairs if a.measurement and b.measurement]
        return LeaveOneOut(
            by="the nearest",
            points=len(self),
            same_end=sum(a.state == b.state for a, b in pairs) / len(pairs),
            throughput_error=median_error([(a.samples_per_second, b.samples_per_second) for a, b in measured]),
            convergence_error=median_error([(a.convergence_per_second, b.convergence_per_second) for a, b in measured]),
        )


def read(path: Path) -> Recording:
    """Read a recording: a JSON list, or JSON lines (`.jsonl`, or `.jsonl.gz`).

    Raises:
        CampaignError: when it can't be read or holds no finished trial.
    """
    try:
        recording = Recording(list(lines(path)) if path.name.endswith((".jsonl", ".gz")) else _list(path))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CampaignError(f"recorded.path: can't read {path}: {error}; {HOW}") from error
    if not len(recording):
        raise CampaignError(f"recorded.path: {path} holds no finished trial")
    return recording


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for line in file:
            yield json.loads(line)


def _list(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def distances(ones: Sequence[Point], others: Sequence[Point]) -> np.ndarray:
    """Return how far points are apart, shape (len(ones), len(others)), float.

    It counts one for each parameter that differs or is missing, and for numbers less: the difference of their
    logarithms over ln 10, at most one.
    """
    total = np.zeros((len(ones), len(others)))
    for name in sorted(set(itertools.chain(*ones, *others))):
        codes: dict[Value | None, int] = {}
        code_of = [
            np.array([codes.setdefault(_typed(point.get(name)), len(codes)) for point in points])
            for points in (ones, others)
        ]
        differ = (code_of[0][:, None] != code_of[1][None, :]).astype(float)
        logs = [np.array([_log(point.get(name)) for point in points]) for points in (ones, others)]
        ratio = np.abs(logs[0][:, None] - logs[1][None, :])  # NaN where one is no positive number
        total += np.where(np.isnan(ratio), differ, np.minimum(ratio, 1.0))
    return total


def _typed(value: Value | None) -> Any:
    """Return what compares equal for equal values of one type: `True` is not 1."""
    return (isinstance(value, bool), value)


def _log(value: Value | None) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return math.log10(value)
    return math.nan


def median_error(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the median of |answer / own - 1| over pairs of own and answer that are above 0; None of no pair."""
    errors = [abs(nearest / own - 1) for own, nearest in pairs if own > 0 and nearest > 0]
    return float(np.median(errors)) if errors else None


def _key(point: Point) -> _Key:
    return tuple(sorted(point.items()))
