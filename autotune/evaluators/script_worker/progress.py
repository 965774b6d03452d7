"""How far one rank of a script is: which of its steps are timed, and whether its budget is spent."""

from __future__ import annotations

import statistics

from autotune.evaluators.step_times import LEAST_TIMED_STEPS
from autotune.trials import TrialRequest


class Progress:
    """Counts steps and time.

    The first `warmup_steps` are not timed; they train all the same, and are charged at the median of the timed ones.
    """

    def __init__(self, request: TrialRequest, *, warmup_steps: int) -> None:
        self._budget = request.budget
        self._convergence_at_s = request.convergence_at_s
        self._warmup_steps = warmup_steps
        self._samples = 0
        self._timed_s: list[float] = []
        self.steps = 0

    def add(self, time_s: float, *, samples: int) -> None:
        """Count a step of so many samples over all ranks."""
        self.steps += 1
        if self.steps > self._warmup_steps:
            self._timed_s.append(time_s)
            self._samples += samples

    @property
    def training_time_s(self) -> float:
        """Seconds of training, warm-up included."""
        if not self._timed_s:
            return 0.0
        return sum(self._timed_s) + min(self.steps, self._warmup_steps) * statistics.median(self._timed_s)

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent and the time at which convergence is compared has passed."""
        if len(self._timed_s) < LEAST_TIMED_STEPS or self.training_time_s < (self._convergence_at_s or 0.0):
            return False
        budget = self._budget
        if budget.steps is not None:
            return len(self._timed_s) >= budget.steps
        if budget.samples is not None:
            return self._samples >= budget.samples
        return sum(self._timed_s) >= (budget.seconds or 0.0)
