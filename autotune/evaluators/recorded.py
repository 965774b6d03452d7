"""A recorded evaluator: replays trials that were measured before, so that searchers meet real figures in no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autotune.evaluators import recording
from autotune.evaluators.protocol import RankHost, ShouldPrune, never_prune
from autotune.evaluators.recording import Recording
from autotune.trials import Failure, FailureKind, Outcome, Point, Stage, TrialRequest

if TYPE_CHECKING:
    from autotune.evaluators.interpolation import Interpolation


@dataclass(frozen=True, kw_only=True)
class RecordedEvaluator:
    """Answers with the outcome of the recorded trial of the request's point; of others by the nearest or a surrogate.

    How near points are: `autotune.evaluators.recording.distances`. An answer that was not recorded says so in its
    remarks.
    The baseline (no point of its own needed) answers with the recorded baseline. Where a point was recorded several
    times, the trial itself is the first, and re-measurements are the others in turn. What a trial had measured on the
    way is replayed too, so that it can be pruned; its duration is then what it would have been.
    """

    path: str
    """A file written by `autotune trials STUDY --format json`, or by `make record`."""
    missing: Literal["nearest", "surrogate", "refuse"] = "nearest"
    """What answers for a point that was never recorded: the nearest one, a Gaussian process between all of them
    (`autotune.evaluators.interpolation`), or a failure that says so."""

    @property
    def ranks(self) -> int:
        return 0

    @cached_property
    def _recording(self) -> Recording:
        return recording.read(Path(self.path))

    @cached_property
    def _interpolation(self) -> Interpolation:
        from autotune.evaluators.interpolation import Interpolation

        return Interpolation(self._recording)

    def prepare(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Read the file, so that one that can't be used is refused before the first trial; say how good answers are."""
        progress(f"{len(self._recording)} recorded configurations")
        left_out = None
        if self.missing == "nearest":
            left_out = self._recording.leave_one_out()
        elif self.missing == "surrogate":
            if not self._recording.kernels:
                progress("fitting a surrogate to them, which takes a while")
            left_out = self._interpolation.left_out()
        if left_out is not None:
            progress(str(left_out))

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
        recorded = self._answer(request)
        for index in range(1, len(recorded.intermediates) + 1):
            reason = should_prune(recorded.intermediates[:index])
            if reason is not None:
                return _cut(recorded, index, reason)
        return recorded

    def _answer(self, request: TrialRequest) -> Outcome:
        known = self._recording.baselines if request.number == 0 else []
        known = known or self._recording.exact(request.point)
        if known:
            return known[request.repeat % len(known)]
        if self.missing == "refuse":
            reason = "recorded: this configuration was never recorded, and recorded.missing is refuse"
            return Outcome(failure=Failure(kind=FailureKind.INVALID_CONFIG, reason=reason))
        if self.missing == "surrogate":
            return self._interpolation.outcome(request)
        point, outcomes = self._recording.nearest(request.point)
        return _from_another(outcomes[request.repeat % len(outcomes)], request.point, point)


def _from_another(outcome: Outcome, asked: Point, recorded: Point) -> Outcome:
    """Say in the remarks of a measurement that it is another configuration's."""
    if outcome.measurement is None:
        return outcome
    others = [name for name in sorted({*asked, *recorded}) if asked.get(name) != recorded.get(name)]
    remark = f"recorded of the nearest configuration, which differs in {', '.join(others)}"
    return replace(outcome, measurement=replace(outcome.measurement, remarks=(*outcome.measurement.remarks, remark)))


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
