"""A recorded evaluator: replays trials that were measured before, so that searchers meet real figures in no time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.errors import CampaignError
from autotune.evaluators.protocol import RankHost
from autotune.trials import Outcome, Point, Stage, TrialRequest, Value


@dataclass(frozen=True, kw_only=True)
class RecordedEvaluator:
    """Answers with the outcome of the recorded trial that is nearest to the request's point.

    Nearest counts one for each parameter that differs or is missing, and for numbers less: the difference of their
    logarithms over ln 10, at most one. The baseline (no point of its own needed) answers with the recorded baseline.
    """

    path: str
    """A file written by `autotune trials STUDY --format json`."""

    @property
    def ranks(self) -> int:
        return 0

    @cached_property
    def _records(self) -> list[tuple[dict[str, Value], bool, Outcome]]:
        try:
            rows = json.loads(Path(self.path).read_text(encoding="utf-8"))
            records = [_record(row) for row in rows if row.get("outcome")]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CampaignError(
                f"recorded.path: can't read {self.path}: {error}; write it by autotune trials STUDY --format json"
            ) from error
        if not records:
            raise CampaignError(f"recorded.path: {self.path} holds no finished trial")
        return records

    def prepare(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Read the file, so that one that can't be used is refused before the first trial."""
        progress(f"{len(self._records)} recorded trials")

    def evaluate(
        self,
        request: TrialRequest,
        *,
        hosts: Sequence[RankHost],
        progress: Callable[[Stage], None],
        cancelled: Callable[[], bool],
    ) -> Outcome:
        progress(Stage.RUN)
        if request.number == 0:
            for _, is_baseline, outcome in self._records:
                if is_baseline:
                    return outcome
        return min(self._records, key=lambda record: _distance(record[0], request.point))[2]


def _record(row: Mapping[str, Any]) -> tuple[dict[str, Value], bool, Outcome]:
    return dict(row["point"]), bool(row["is_baseline"]), Outcome.from_json(row["outcome"])


def _distance(one: Point, other: Point) -> float:
    return sum(_differ(one.get(name), other.get(name)) for name in sorted(set(one) | set(other)))


def _differ(one: Value | None, other: Value | None) -> float:
    if one == other:
        return 0.0
    numbers = [value for value in (one, other) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == 2 and min(numbers) > 0:
        return min(1.0, abs(math.log(numbers[0] / numbers[1])) / math.log(10))
    return 1.0
