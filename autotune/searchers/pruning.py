"""The pruner: it ends a running trial that is clearly dominated, by one of Optuna's pruners.

Optuna's pruner looks at the intermediate values of an Optuna study of its own, in memory: R as far as each trial had
come (`Objective.score_so_far`) at the same shares of the time at which convergence is compared. Of Optuna's pruners
`PercentilePruner` fits: it compares a trial with many others at the same moment. `WilcoxonPruner` would end a trial
for being surely, however little, worse than the best; halving prunes a fixed share, whether it is bad or not; and
`PatientPruner` waits for a fall, where the R of a bad trial is flat.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import optuna
from optuna.pruners import BasePruner, PercentilePruner
from optuna.samplers import RandomSampler
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from autotune.evaluators.length import MOMENTS
from autotune.objective import Objective, Reference, interpolated
from autotune.trials import Intermediate, Trial, TrialRequest

LEADERS_PERCENT = 25.0
"""The leaders are this share of the measured trials; a trial is compared with the least of them."""
CLEARLY = 0.6
"""A trial is clearly dominated where its R so far, at its highest, is below this share of the leaders'."""
STARTUP_TRIALS = 5
"""Trials that are measured to their ends before any is pruned (Optuna's own default)."""
FIRST_MOMENT = 2
"""Of `MOMENTS`: the loss has hardly fallen before."""


class TrialPruner:
    """Judges running trials by those that were measured. `judge` may be called from any thread.

    Never pruned: the reference and its configuration, re-measurements, and whatever runs before `STARTUP_TRIALS` trials
    were measured.

    Args:
        objective: of the study.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._pruner: BasePruner = PercentilePruner(
            LEADERS_PERCENT, n_startup_trials=STARTUP_TRIALS, n_warmup_steps=FIRST_MOMENT
        )
        self._study = optuna.create_study(direction="maximize", sampler=RandomSampler(seed=0), pruner=self._pruner)
        self._lock = threading.Lock()
        self._reference: Reference | None = None
        self._reference_hash = ""
        self._convergence_time_s = 0.0

    def hear(self, trial: Trial) -> None:
        """Learn from a trial that has ended, in the order of the study; the first measured one is the reference."""
        if trial.measurement is None or not trial.intermediates:
            return
        with self._lock:
            if self._reference is None:
                self._reference = Reference.of(trial.measurement, course=trial.intermediates)
                self._reference_hash = trial.config_hash
                self._convergence_time_s = trial.measurement.convergence_time_s
            points = self._points(trial.intermediates, self._reference)
            if not points:
                return
            values = {
                moment: interpolated(points, moment / MOMENTS * self._convergence_time_s)
                for moment in range(1, MOMENTS + 1)
            }
            self._study.add_trial(
                create_trial(state=OptunaState.COMPLETE, value=trial.score, intermediate_values=values)
            )

    def judge(self, request: TrialRequest, course: Sequence[Intermediate]) -> str | None:
        """Return why a running trial is to end, None while it is to go on; an `autotune.runners.protocol.Judge`.

        Args:
            request: of the trial.
            course: what it has measured on the way, the latest last.
        """
        with self._lock:
            if self._reference is None or request.repeat or request.config_hash == self._reference_hash:
                return None
            points = self._points(course, self._reference)
            if not points or points[-1][0] != course[-1].training_time_s:  # nothing to compare at this moment
                return None
            moment = self._moment(points[-1][0])
            values = {self._moment(time_s): value / CLEARLY for time_s, value in points}
            running = create_trial(state=OptunaState.RUNNING, intermediate_values=values)
            if not self._pruner.prune(self._study, running):
                return None
            leader = max(trial.intermediate_values[moment] for trial in self._study.get_trials(deepcopy=False))
            return (
                f"clearly dominated after {points[-1][0]:.3g} s of training: its R so far is {points[-1][1]:.2f}, "
                f"and the best had {leader:.2f} there"
            )

    def _points(self, course: Sequence[Intermediate], reference: Reference) -> list[tuple[float, float]]:
        """Return (training time, R so far) wherever it can be told."""
        scores = [
            (course[i].training_time_s, self._objective.score_so_far(course[: i + 1], reference))
            for i in range(len(course))
        ]
        return [(time_s, score.value) for time_s, score in scores if score is not None]

    def _moment(self, time_s: float) -> int:
        return min(MOMENTS, int(MOMENTS * time_s / self._convergence_time_s))
