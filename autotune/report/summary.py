"""A study as listings, reports and exports see it: a frozen summary, and the few figures that all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autotune.hardware import Hardware
from autotune.objective import Objective
from autotune.space import SearchSpace
from autotune.trials import Trial, TrialState


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """Everything a reader needs to know of a study, taken from the storage at one moment.

    What it says of its trials is worked out once: a listing asks for each trial.
    """

    name: str
    searcher: str
    evaluator: str
    """'deepspeed' (real trials), 'simulated' or 'recorded'."""
    workload: str
    trials: Sequence[Trial]
    """All trials, by number; those that were cancelled or still run among them."""
    trial_budget: int
    space: SearchSpace
    objective: Objective
    hardware: Hardware
    is_running: bool
    """Whether a controller runs it now."""
    ds_config: Mapping[str, Any] = field(default_factory=dict)
    """The user's configuration as it went in, "auto" values and all."""
    ds_config_notation: Mapping[str, str] = field(default_factory=dict)
    """How the user wrote numbers in it (`ds_config.notation_of`)."""

    @cached_property
    def finished(self) -> list[Trial]:
        """Trials that were executed to an end, by number."""
        return [trial for trial in self.trials if trial.counts and trial.state is not TrialState.RUNNING]

    @cached_property
    def completed(self) -> list[Trial]:
        """Finished trials with an R, by number."""
        return [trial for trial in self.finished if trial.score is not None]

    @cached_property
    def failed(self) -> list[Trial]:
        """Finished trials that gave no measurement, by number; cancelled ones are not among them."""
        return [trial for trial in self.finished if trial.failure is not None]

    @cached_property
    def baseline(self) -> Trial | None:
        """The trial of the user's own configuration; None before it has run."""
        return next((trial for trial in self.finished if trial.is_baseline), None)

    @cached_property
    def reference(self) -> Trial | None:
        """What R is relative to: the first trial that was measured, which is the baseline unless it failed."""
        return next((trial for trial in self.finished if trial.measurement is not None), None)

    @cached_property
    def best(self) -> Trial | None:
        """The trial with the highest R (the earliest of equals); None when no trial has a score."""
        return max(self.completed, key=lambda trial: (trial.score, -trial.number), default=None)

    @cached_property
    def executed_count(self) -> int:
        """Trials that count against the budget."""
        return len(self.finished)
