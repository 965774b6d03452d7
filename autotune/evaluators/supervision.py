"""The supervision of one attempt at a trial: watch every rank until there is a measurement or a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.evaluators import diagnosis
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.protocol import RankReport, ShouldPrune, Watched, never_prune
from autotune.evaluators.rank_files import RankResult, intermediates_from_text
from autotune.trials import Failure, FailureKind, Intermediate, Measurement, Stage, TrialRequest

FIRST_POLL_S = 0.02
POLL_S = 0.1
GRACE_S = 3.0
"""After the first sign of a failure the ranks have this long to say which of them caused it."""
_ORDER = list(Stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one attempt ended."""

    measurement: Measurement | None = None
    failure: Failure | None = None
    pruned: str | None = None
    """Why the trial is to end early."""
    address_in_use: bool = False


@dataclass(slots=True, kw_only=True)
class Supervision:
    """Watches the ranks of one attempt; `run` blocks until it is decided."""

    hosts: Sequence[Watched]
    request: TrialRequest
    deadlines: Deadlines
    progress: Callable[[Stage], None]
    cancelled: Callable[[], bool]
    should_prune: ShouldPrune = never_prune
    slack_s: float = 0.0
    """Added to every deadline: for ranks that are supervised on their own node as well."""
    started_s: float = field(default_factory=time.monotonic)
    stage_s: dict[str, float] = field(default_factory=dict)
    """Wall time by stage; a stage ends for the trial when the last rank leaves it."""
    _stages: list[Stage] = field(init=False)
    _entered_s: list[float] = field(init=False)
    _trial_stage: Stage = field(init=False, default=Stage.LAUNCH)
    _trial_stage_s: float = field(init=False)
    _first_failure_s: float | None = field(init=False, default=None)
    _measured: str | None = field(init=False, default=None)
    """What rank 0 had measured when `should_prune` was asked last."""

    def __post_init__(self) -> None:
        self._stages = [Stage.LAUNCH for _ in self.hosts]
        self._entered_s = [self.started_s for _ in self.hosts]
        self._trial_stage_s = self.started_s

    def run(self) -> Verdict:
        """Poll until a verdict is reached. The processes may still run then: the caller stops the hosts."""
        interval_s = FIRST_POLL_S
        self.progress(self._trial_stage)
        reports: list[RankReport] = []
        while True:
            before, asked_s = reports, time.monotonic()
            reports = [self.hosts[0].poll(interval_s if before else 0.0), *(host.poll() for host in self.hosts[1:])]
            now_s = time.monotonic()
            self._follow(reports, now_s)
            verdict = self._verdict(reports, now_s)
            if verdict is not None:
                self._leave_stage(now_s)
                return verdict
            if reports == before:  # from hosts that don't wait themselves
                time.sleep(max(0.0, interval_s - (now_s - asked_s)))
            interval_s = min(POLL_S, interval_s * 1.2)

    @property
    def intermediates(self) -> tuple[Intermediate, ...]:
        """What rank 0 had measured on the way when that was last asked for."""
        return intermediates_from_text(self._measured) if self._measured else ()

    def _follow(self, reports: Sequence[RankReport], now_s: float) -> None:
        for rank, report in enumerate(reports):
            if report.stage is not None and report.stage is not self._stages[rank]:
                self._stages[rank], self._entered_s[rank] = report.stage, now_s
        behind = min(self._stages, key=_ORDER.index)
        if behind is not self._trial_stage:
            self._leave_stage(now_s)
            self._trial_stage = behind
            self.progress(behind)

    def _leave_stage(self, now_s: float) -> None:
        spent_s = self.stage_s.get(self._trial_stage.value, 0.0) + now_s - self._trial_stage_s
        self.stage_s[self._trial_stage.value] = spent_s
        self._trial_stage_s = now_s

    def _verdict(self, reports: Sequence[RankReport], now_s: float) -> Verdict | None:
        results = [RankResult.from_text(report.result) if report.result else None for report in reports]
        outcome = results[0].outcome if results[0] else None
        if outcome is not None and outcome.measurement is not None:
            return Verdict(measurement=outcome.measurement)
        if self.cancelled():
            return Verdict(failure=diagnosis.cancelled(self._trial_stage))
        return self._failed(reports, results, now_s) or self._pruned(reports[0]) or self._overdue(reports, now_s)

    def _pruned(self, first: RankReport) -> Verdict | None:
        if first.intermediates is None or first.intermediates == self._measured:
            return None
        self._measured = first.intermediates
        reason = self.should_prune(self.intermediates)
        return Verdict(pruned=reason) if reason is not None else None

    def _failed(
        self, reports: Sequence[RankReport], results: Sequence[RankResult | None], now_s: float
    ) -> Verdict | None:
        failures = [
            diagnosis.rank_failure(rank, report, result)
            for rank, (report, result) in enumerate(zip(reports, results, strict=True))
        ]
        worst = diagnosis.most_telling(failures)
        all_ended = not any(report.running for report in reports)
        if worst is None:
            return Verdict(failure=_empty_handed(reports)) if all_ended else None
        if self._first_failure_s is None:
            self._first_failure_s = now_s
        certain = worst.cause <= diagnosis.Cause.OWN_FAILURE
        if not (certain or all_ended or now_s - self._first_failure_s > GRACE_S):
            return None
        return Verdict(failure=worst.failure, address_in_use=worst.address_in_use)

    def _overdue(self, reports: Sequence[RankReport], now_s: float) -> Verdict | None:
        first_step_s = self.stage_s.get(Stage.FIRST_STEP.value, 0.0)
        for rank in sorted(range(len(self.hosts)), key=lambda rank: _ORDER.index(self._stages[rank])):
            limit_s = self.deadlines.limit_s(
                self._stages[rank], request=self.request, ranks=len(self.hosts), first_step_s=first_step_s
            )
            if reports[rank].running and now_s - self._entered_s[rank] > limit_s + self.slack_s:
                failure = diagnosis.timeout(stages=self._stages, rank=rank, limit_s=limit_s, reports=reports)
                return Verdict(failure=failure)
        return None


def with_final_logs(failure: Failure, reports: Sequence[RankReport]) -> Failure:
    """Return the failure with its rank's log and exit code as they were when everything had stopped."""
    if failure.rank is None:
        return failure
    report = reports[failure.rank]
    exit_code = failure.exit_code
    if failure.kind not in (FailureKind.TIMEOUT, FailureKind.CANCELLED) and exit_code is None:
        exit_code = report.exit_code
    return replace(failure, log_tail=report.log_tail or failure.log_tail, exit_code=exit_code)


def log_paths(reports: Sequence[RankReport]) -> Mapping[str, str]:
    """Return the path of each rank's log, by 'rank0', 'rank1', ..."""
    return {f"rank{rank}": report.log_path for rank, report in enumerate(reports) if report.log_path}


def node_addresses(reports: Sequence[RankReport]) -> Mapping[str, str]:
    """Return the address of the node of each rank that didn't run on this machine, by 'rank0', 'rank1', ..."""
    return {f"rank{rank}": report.node for rank, report in enumerate(reports) if report.node}


def _empty_handed(reports: Sequence[RankReport]) -> Failure:
    return Failure(
        kind=FailureKind.CRASH,
        reason="every rank ended without an error, but rank 0 left no measurement; its log tells more",
        stage=reports[0].stage,
        rank=0,
        exit_code=reports[0].exit_code,
    )
