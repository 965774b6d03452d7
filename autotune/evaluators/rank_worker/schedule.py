"""The schedule of a trial: which steps are timed, when the held-out loss and a report are due, when training ends."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass

from autotune.evaluators.length import Length, Trained
from autotune.evaluators.step_times import median, relative_interval, relative_spread
from autotune.trials import KEPT_STEPS, Budget, EndedBy

LOOK_AHEAD_STEPS = 1.5
"""The held-out loss is due when the convergence time is less than this many steps away: just before it is crossed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPoint:
    """A held-out loss and the training that came before it."""

    timed_s: float
    untimed_steps: int
    loss: float


class Schedule:
    """Decides from step times alone, so that ranks which record the same times decide alike.

    A step is untimed while the training warms up, and right after a held-out evaluation (which disturbs caches, and
    ZeRO-3's trace). Untimed steps train all the same: they are charged at the median of the timed ones.
    """

    def __init__(
        self,
        *,
        budget: Budget,
        convergence_at_s: float | None,
        warmup_steps: int,
        settling_steps: int,
        samples_per_step: int,
    ) -> None:
        self.warmup_steps = warmup_steps
        self.samples_per_step = samples_per_step
        if convergence_at_s is None and budget.precision is None:
            convergence_at_s = budget.seconds
        self.convergence_at_s = convergence_at_s
        """None: the end of the training, whenever that is."""
        self._length = Length(budget=budget, convergence_at_s=convergence_at_s)
        self._settling_steps = settling_steps
        self._untimed_left = warmup_steps
        self._steps = 0
        self._timed_s = 0.0
        self._untimed_s = 0.0
        self._sorted_s: list[float] = []
        self._first_s: list[float] = []
        self._shortest_untimed_s = math.inf
        self._points: list[HeldOutPoint] = []
        self._moment = 0

    @property
    def next_step_is_timed(self) -> bool:
        return self._untimed_left == 0

    @property
    def timed_steps(self) -> int:
        return len(self._sorted_s)

    @property
    def steps(self) -> int:
        return self._steps

    @property
    def step_time_s(self) -> float:
        """Median of the timed steps; before there is one, the shortest untimed step."""
        return median(self._sorted_s) if self._sorted_s else self._shortest_untimed_s

    @property
    def spread(self) -> float:
        """Half the interquartile range of the timed steps over their median."""
        return relative_spread(self._sorted_s)

    @property
    def interval(self) -> float | None:
        """Half width of the interval of the median step time, over the median; None with too few steps."""
        return relative_interval(self._sorted_s)

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """The timed steps in order, the first `KEPT_STEPS` of them."""
        return tuple(self._first_s)

    @property
    def ended_by(self) -> EndedBy:
        return self._length.ended_by(self._trained)

    @property
    def steps_s(self) -> float:
        """All steps as they were."""
        return self._timed_s + self._untimed_s

    @property
    def training_time_s(self) -> float:
        return self._time_s(self._timed_s, self._steps - self.timed_steps)

    @property
    def evaluation_is_due(self) -> bool:
        """Whether to measure the held-out loss before the next step."""
        if self.convergence_at_s is None:
            return self._length.is_enough(self._trained) and not self._last_point_is_now
        if self._is_bracketed or self._last_point_is_now:
            return False
        return self.training_time_s + LOOK_AHEAD_STEPS * self.step_time_s >= self.convergence_at_s

    @property
    def is_over(self) -> bool:
        """Whether the step time is precise or the budget spent, and the held-out loss known at the convergence time."""
        if not self._length.is_enough(self._trained):
            return False
        return self._last_point_is_now if self.convergence_at_s is None else self._is_bracketed

    @property
    def report_is_due(self) -> bool:
        """Whether training has come to another of the moments at which it is reported."""
        return self.timed_steps > 0 and self._length.moment(self._trained) > self._moment

    @property
    def loss_before(self) -> float:
        return self._points[0].loss

    @property
    def convergence_time_s(self) -> float:
        return self.convergence_at_s if self.convergence_at_s is not None else self.training_time_s

    @property
    def loss_at_convergence_time(self) -> float:
        """Held-out loss, linear in training time between the points around the convergence time."""
        return interpolate([(self._point_time_s(point), point.loss) for point in self._points], self.convergence_time_s)

    def record_step(self, time_s: float) -> None:
        """Count a step that took `time_s` on the slowest rank."""
        self._steps += 1
        if self.next_step_is_timed:
            self._timed_s += time_s
            bisect.insort(self._sorted_s, time_s)
            if len(self._first_s) < KEPT_STEPS:
                self._first_s.append(time_s)
        else:
            self._untimed_left -= 1
            self._untimed_s += time_s
            self._shortest_untimed_s = min(self._shortest_untimed_s, time_s)

    def record_held_out(self, loss: float) -> None:
        """Keep a held-out loss, measured now."""
        untimed_steps = self._steps - self.timed_steps
        self._points.append(HeldOutPoint(timed_s=self._timed_s, untimed_steps=untimed_steps, loss=loss))
        self._untimed_left = max(self._untimed_left, self._settling_steps if self._steps else self.warmup_steps)

    def record_report(self) -> None:
        """Count what was measured so far as reported."""
        self._moment = self._length.moment(self._trained)

    def _time_s(self, timed_s: float, untimed_steps: int) -> float:
        return timed_s + (untimed_steps * self.step_time_s if untimed_steps else 0.0)

    def _point_time_s(self, point: HeldOutPoint) -> float:
        return self._time_s(point.timed_s, point.untimed_steps)

    @property
    def _last_point_is_now(self) -> bool:
        last = self._points[-1]
        return (last.timed_s, last.untimed_steps) == (self._timed_s, self._steps - self.timed_steps)

    @property
    def _is_bracketed(self) -> bool:
        return self.convergence_at_s is not None and self._point_time_s(self._points[-1]) >= self.convergence_at_s

    @property
    def _trained(self) -> Trained:
        time_s = self.training_time_s
        return Trained(
            timed_steps=self.timed_steps,
            samples=self.timed_steps * self.samples_per_step,
            budgeted_s=time_s - self.warmup_steps * self.step_time_s if self._sorted_s else 0.0,
            training_time_s=time_s,
            interval=self.interval,
        )


def interpolate(points: list[tuple[float, float]], at: float) -> float:
    """Return the value at `at`, linear between the neighbouring points (x ascending, `at` within them).

    Raises:
        ValueError: when `at` is outside the points.
    """
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= at <= x1:
            return y1 if x1 == x0 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    raise ValueError(f"at: got {at}; it must lie between {points[0][0]} and {points[-1][0]}")
