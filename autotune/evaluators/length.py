"""The length of a trial: when its training is enough, and at which moments it says what it has measured so far."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.evaluators.step_times import LEAST_TIMED_STEPS
from autotune.trials import Budget, EndedBy

FIRST_TRIAL_SHARE = 0.5
"""Share of the budget that a trial trains at least, precise or not, where no trial was measured before it: its training
time is the one at which every trial's loss is compared, and a loss that has hardly fallen yet is noise."""
MOMENTS = 8
"""Up to the convergence time, at which a trial says what it has measured so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How far a trial's training is."""

    timed_steps: int
    samples: int
    """Over all ranks, in the timed steps."""
    budgeted_s: float
    """Training time without the warm-up."""
    training_time_s: float
    interval: float | None
    """Half width of the interval of the median step time, over the median (`step_times.relative_interval`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """The rule of a trial's end: its step time is known precisely enough, or its budget is spent.

    The convergence time has to be reached as well; that is the caller's to see, who knows what it takes to be measured.
    """

    budget: Budget
    convergence_at_s: float | None

    def is_precise(self, trained: Trained) -> bool:
        """Say whether the step time is known as precisely as the budget asks."""
        precision, interval = self.budget.precision, trained.interval
        return precision is not None and interval is not None and interval <= precision

    def is_enough(self, trained: Trained) -> bool:
        """Say whether the training may end, but for the convergence time."""
        share = self._share_spent(trained)
        if self.is_precise(trained) and (self.convergence_at_s is not None or share >= FIRST_TRIAL_SHARE):
            return True
        least = 1 if self.budget.steps is not None else LEAST_TIMED_STEPS
        return trained.timed_steps >= least and share >= 1

    def ended_by(self, trained: Trained) -> EndedBy:
        """Return what ended a training that was enough."""
        return EndedBy.PRECISION if self.is_precise(trained) else EndedBy.BUDGET

    def moment(self, trained: Trained) -> int:
        """Return at how many moments the trial has passed; `MOMENTS` is the convergence time, or the earliest it is."""
        if self.convergence_at_s is not None:
            return int(MOMENTS * trained.training_time_s / self.convergence_at_s)
        return int(MOMENTS * self._share_spent(trained) / FIRST_TRIAL_SHARE)

    def _share_spent(self, trained: Trained) -> float:
        if self.budget.steps is not None:
            return trained.timed_steps / self.budget.steps
        if self.budget.samples is not None:
            return trained.samples / self.budget.samples
        return trained.budgeted_s / self.budget.seconds if self.budget.seconds is not None else 0.0
