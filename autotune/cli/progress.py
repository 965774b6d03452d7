"""How far a study is, as a display shows it while trials run."""

from __future__ import annotations

import time

from autotune.report.summary import StudySummary
from autotune.study import StopRequest
from autotune.trials import FailureKind, Stage, Trial, TrialState


class Progress:
    """Counts and times; told of events by a display, from any thread.

    Args:
        summary: the study as it is now.
        stop: the wish to stop, to be shown.
        title: goes before the line; which study of several this is.
    """

    def __init__(self, summary: StudySummary, *, stop: StopRequest, title: str = "") -> None:
        self.space = summary.space
        self.trial_budget = summary.trial_budget
        self.stop = stop
        self.title = title
        self.executed = summary.executed_count
        self.failures = len(summary.failed)
        self.baseline = summary.baseline
        self.best = summary.best
        self.last: Trial | None = None
        self.running: dict[int, Stage | None] = {}
        self.preparing = "preparing"
        self._began_s = time.monotonic()
        self._first_start_s: float | None = None
        self._trial_start_s = self._began_s
        self._executed_before = self.executed

    def started(self, trial: Trial) -> None:
        """Hear of a trial that goes to the runner."""
        self._trial_start_s = time.monotonic()
        self._first_start_s = self._first_start_s or self._trial_start_s
        self.preparing = ""
        self.running[trial.number] = None

    def entered(self, number: int, stage: Stage) -> None:
        """Hear of a trial that enters a stage."""
        self.running[number] = stage

    def remeasuring(self, number: int, text: str) -> None:
        """Hear of a run that is no trial, about to begin."""
        self._trial_start_s = time.monotonic()
        self.preparing = text
        self.running[number] = None

    def remeasured(self, number: int) -> None:
        """Hear that it has ended."""
        self.running.pop(number, None)

    def finished(self, trial: Trial) -> bool:
        """Hear of a trial that ended; return whether it is the best so far."""
        self.running.pop(trial.number, None)
        self.last = trial
        if trial.failure is not None and trial.failure.kind is FailureKind.CANCELLED:
            return False
        self.executed += 1
        self.failures += trial.failure is not None
        if trial.is_baseline:
            self.baseline = trial
        is_complete = trial.state is TrialState.COMPLETE and trial.score is not None
        is_best = is_complete and (self.best is None or (trial.score or 0.0) > (self.best.score or 0.0))
        if is_best:
            self.best = trial
        return is_best

    @property
    def stage(self) -> str:
        """What goes on at the moment, in words."""
        if not self.running:
            return self.preparing or "choosing the next"
        stages = [stage for stage in self.running.values() if stage is not None]
        stage = min(stages, key=list(Stage).index).value.replace("_", " ") if stages else "starting"
        return f"{self.preparing}  {stage}" if self.preparing else stage

    @property
    def number(self) -> int:
        """Which trial of the budget is under way, counted from 1."""
        return min(self.executed + max(1, len(self.running)), self.trial_budget)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def trial_elapsed_s(self) -> float | None:
        """Of the trial started last; None when none runs."""
        return time.monotonic() - self._trial_start_s if self.running else None

    @property
    def left_s(self) -> float | None:
        """Estimate from the mean time of this session's trials; None before the first has ended."""
        done = self.executed - self._executed_before
        if not done or self._first_start_s is None:
            return None
        spent_s = self._trial_start_s - self._first_start_s if self.running else time.monotonic() - self._first_start_s
        mean_s = spent_s / done
        return max(0.0, mean_s * (self.trial_budget - self.executed) - (self.trial_elapsed_s or 0.0))
