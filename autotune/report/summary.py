"""A study as listings, reports and exports see it: a frozen summary, and the few figures that all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autotune.cold_checks import ColdCheck
from autotune.drift import Reading
from autotune.finals import Finals, Record, Rules, judge, leaders
from autotune.hardware import Hardware
from autotune.objective import Objective
from autotune.searchers.refusals import Refusals
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
    storage_url: str | None = None
    """Where it is kept, for commands to type next; None: where they look by themselves."""
    ds_config: Mapping[str, Any] = field(default_factory=dict)
    """The user's configuration as it went in, "auto" values and all."""
    ds_config_notation: Mapping[str, str] = field(default_factory=dict)
    """How the user wrote numbers in it (`ds_config.notation_of`)."""
    rules: Rules
    """Of its finals."""
    finals: Finals | None = None
    """Of its present trials, under way or over; None before, and where there are none."""
    finals_are_due: bool = False
    """Whether the search is over and the finals are not."""
    past_finals: Sequence[Record] = ()
    """Finals that were held before further trials ran."""
    readings: Sequence[Reading] = ()
    """The user's configuration, run again now and then during the search."""
    cold_checks: Sequence[ColdCheck] = ()
    """Trials that ran warm, run again cold."""
    refusals: Refusals | None = None
    """What the memory filter refused without a trial; None where it refused nothing."""

    @cached_property
    def finished(self) -> list[Trial]:
        """Trials that were executed to an end, by number."""
        return [trial for trial in self.trials if trial.counts and trial.state is not TrialState.RUNNING]

    @cached_property
    def completed(self) -> list[Trial]:
        """Finished trials that were measured to their ends and have an R, by number."""
        return [trial for trial in self.finished if trial.state is TrialState.COMPLETE and trial.score is not None]

    @cached_property
    def pruned(self) -> list[Trial]:
        """Finished trials that were ended early as clearly dominated, by number; their R is an estimate."""
        return [trial for trial in self.finished if trial.state is TrialState.PRUNED]

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
        """The winner of the finals; without one, the leader of the search."""
        winner = self.finals.winner if self.finals is not None else None
        return next((trial for trial in self.completed if trial.number == winner), self.leading)

    @cached_property
    def leading(self) -> Trial | None:
        """The completed trial with the highest R in the search (the earliest of equals); None when there is none."""
        return max(self.completed, key=lambda trial: (trial.score, -trial.number), default=None)

    def is_interrupted(self, trial: Trial) -> bool:
        """Whether a trial that the storage has as RUNNING was left so by a controller that is gone."""
        return trial.state is TrialState.RUNNING and not self.is_running

    @property
    def leaders(self) -> list[Trial]:
        """The trials, but for the reference, that finals are held among."""
        if self.reference is None or self.reference.score is None:
            return []
        champion = None
        if self.past_finals:
            winner = judge(self.past_finals[-1], self.objective).winner
            champion = next((trial for trial in self.completed if trial.number == winner), None)
        return leaders(self.completed, reference=self.reference, rules=self.rules, champion=champion)

    @cached_property
    def executed_count(self) -> int:
        """Trials that count against the budget."""
        return len(self.finished)
