"""A recorded evaluator: replays trials that were measured before, so that searchers meet real figures in no time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.errors import CampaignError
from autotune.evaluators.protocol import RankHost, ShouldPrune, never_prune
from autotune.trials import Outcome, Point, Stage, TrialRequest, Value


@dataclass(frozen=True, kw_only=True)
class RecordedEvaluator:
    """Answers with the outcome of the recorded trial that is nearest to the request's point.

    Nearest counts one for each parameter that differs or is missing, and for numbers less: the difference of their
    logarithms over ln 10, at most one. The baseline (no point of its own needed) answers with the recorded baseline.
    What a trial had measured on the way is replayed too, so that it can be pruned; its duration is then what it would
    have been. Trials that were pruned when they were recorded are left out: how they would have ended isn't known.
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
            records = [_record(row) for row in rows if row.get("outcome") and not row["outcome"].get("pruned")]
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
        should_prune: ShouldPrune = never_prune,
    ) -> Outcome:
        progress(Stage.RUN)
        recorded = self._nearest(request)
        for index in range(1, len(recorded.intermediates) + 1):
            reason = should_prune(recorded.intermediates[:index])
            if reason is not None:
                return _cut(recorded, index, reason)
        return recorded

    def _nearest(self, request: TrialRequest) -> Outcome:
        if request.number == 0:
            for _, is_baseline, outcome in self._records:
                if is_baseline:
                    return outcome
        return min(self._records, key=lambda record: _distance(record[0], request.point))[2]


def _cut(recorded: Outcome, index: int, reason: str) -> Outcome:
    """Return a recorded trial as it would have been, had it been pruned when it had measured so much."""
    measured = recorded.intermediates[:index]
    run_s = recorded.stage_s.get(Stage.RUN.value, 0.0)
    whole_s = (
        recorded.measurement.training_time_s if recorded.measurement else recorded.intermediates[-1].training_time_s
    )
    saved_s = run_s * max(0.0, 1 - measured[-1].training_time_s / whole_s)
    return replace(
        recorded,
        measurement=None,
        failure=None,
        pruned=reason,
        intermediates=measured,
        duration_s=recorded.duration_s - saved_s,
        stage_s={**recorded.stage_s, Stage.RUN.value: run_s - saved_s},
    )


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
