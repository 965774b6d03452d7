"""How far one rank of a script is: which of its steps are timed, and whether its training is enough."""

from __future__ import annotations

import bisect
import statistics

from autotune.evaluators.length import Length, Trained
from autotune.evaluators.step_times import LEAST_TIMED_STEPS, median, relative_interval
from autotune.trials import EndedBy, Intermediate, TrialRequest


class Progress:
    """Counts steps and time.

    The first `warmup_steps` are not timed; they train all the same, and are charged at the median of the timed ones.
    """

    def __init__(self, request: TrialRequest, *, warmup_steps: int) -> None:
        self._length = Length(budget=request.budget, convergence_at_s=request.convergence_at_s)
        self._convergence_at_s = request.convergence_at_s
        self._warmup_steps = warmup_steps
        self._samples = 0
        self._timed_s = 0.0
        self._sorted_s: list[float] = []
        self._loss_before: float | None = None
        self._losses: list[float] = []
        self._moment = 0
        self.steps = 0

    def add(self, time_s: float, *, samples: int, loss: float | None = None) -> Intermediate | None:
        """Count a step of so many samples over all ranks.

        Returns:
            What was measured so far, where the training has come to one of the moments at which that is told.
        """
        self.steps += 1
        if self.steps > self._warmup_steps:
            bisect.insort(self._sorted_s, time_s)
            self._timed_s += time_s
            self._samples += samples
        if loss is not None:
            self._loss_before = loss if self._loss_before is None else self._loss_before
            self._losses.append(loss)
        moment = self._length.moment(self._trained)
        if moment <= self._moment or not self._sorted_s or not self._losses or self._loss_before is None:
            return None
        self._moment = moment
        told, self._losses = self._losses, []
        return Intermediate(
            training_time_s=self.training_time_s,
            timed_steps=len(self._sorted_s),
            samples_per_second=self._samples / len(self._sorted_s) / median(self._sorted_s),
            loss_before=self._loss_before,
            training_loss=statistics.fmean(told),
        )

    @property
    def training_time_s(self) -> float:
        """Seconds of training, warm-up included."""
        if not self._sorted_s:
            return 0.0
        return self._timed_s + min(self.steps, self._warmup_steps) * median(self._sorted_s)

    @property
    def is_over(self) -> bool:
        """Whether the training is enough and the time at which convergence is compared has passed."""
        if len(self._sorted_s) < LEAST_TIMED_STEPS or self.training_time_s < (self._convergence_at_s or 0.0):
            return False
        return self._length.is_enough(self._trained)

    @property
    def ended_by(self) -> EndedBy:
        """What ended the training, which may be the script."""
        return self._length.ended_by(self._trained) if self.is_over else EndedBy.SCRIPT

    @property
    def _trained(self) -> Trained:
        return Trained(
            timed_steps=len(self._sorted_s),
            samples=self._samples,
            budgeted_s=self._timed_s,
            training_time_s=self.training_time_s,
            interval=relative_interval(self._sorted_s),
        )
