"""What is compared: contenders (searchers), each with runs over workloads and seeds, and what one run comes to."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from autotune.errors import StudyError
from autotune.objective import Objective, Reference
from autotune.trials import Trial, TrialState

PAUSE_S = 120.0
"""A gap without a running trial longer than this is taken for a stopped study, and is no time of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One study: one searcher with one seed on one workload."""

    seed: int
    workload: str = ""
    """Name of what is trained; runs of one workload share their starting configuration."""
    trials: tuple[Trial, ...]
    """All of the study's; those that don't count (cancelled, running) are passed over."""
    replay_slots: int | None = None
    """How many trials went on at once where none ran for real (simulated or recorded): their time is what they say
    that they took. None: they ran, and time is what the clock said."""

    @property
    def executed(self) -> list[Trial]:
        """Trials that count against the budget, in the order in which they ended."""
        finished = [trial for trial in self.trials if trial.counts and trial.state is not TrialState.RUNNING]
        return sorted(finished, key=lambda trial: (trial.finished_at is None, trial.finished_at, trial.number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One searcher, by the name that the comparison shows."""

    name: str
    runs: tuple[Run, ...]


def common_reference(runs: Sequence[Run]) -> Reference:
    """Return the median over runs of what their baselines measured.

    Each study divides by its own baseline, measured once, so that the noise of one trial would scale a whole run.
    Where no baseline could be measured, each run's first measured trial stands in.

    Raises:
        StudyError: when no run measured anything.
    """
    baselines = [t.measurement for run in runs for t in run.executed if t.is_baseline and t.measurement is not None]
    if not baselines:
        firsts = [next((t.measurement for t in run.executed if t.measurement is not None), None) for run in runs]
        baselines = [first for first in firsts if first is not None]
    if not baselines:
        raise StudyError("no trial of these studies completed, so there is nothing to compare; see: autotune trials")
    convergence = float(np.median([measurement.convergence_per_second for measurement in baselines]))
    return Reference(
        samples_per_second=float(np.median([measurement.samples_per_second for measurement in baselines])),
        convergence_per_second=convergence if math.isfinite(convergence) and convergence > 0 else None,
    )


def best_so_far(run: Run, objective: Objective, reference: Reference) -> NDArray[np.float64]:
    """Return the best R after each executed trial, shape (trials,), never falling, 0 until something trains."""
    scores = [
        objective.score(trial.measurement, reference).value if trial.measurement is not None else 0.0
        for trial in run.executed
    ]
    return np.maximum.accumulate(np.maximum(np.asarray(scores, dtype=float), 0.0))


def elapsed_s(run: Run) -> NDArray[np.float64]:
    """Return the wall seconds at which each executed trial ended, shape (trials,), without the study's pauses.

    The time in which the searcher thinks counts; gaps longer than `PAUSE_S` don't. A replay's seconds are those that
    its trials say they took, each after what the searcher really took to propose it.
    """
    return _by_the_clock(run) if run.replay_slots is None else _as_replayed(run, run.replay_slots)


def _by_the_clock(run: Run) -> NDArray[np.float64]:
    times: list[float] = []
    elapsed, last = 0.0, None
    for trial in run.executed:
        started, finished = trial.started_at, trial.finished_at
        if started is not None and finished is not None:
            elapsed += _advance_s(last, started, finished)
            last = finished if last is None else max(last, finished)
        times.append(elapsed)
    return np.asarray(times, dtype=float)


def _as_replayed(run: Run, slots: int) -> NDArray[np.float64]:
    """Return when trials would have ended, each started where the first slot was free; the baseline runs alone."""
    ended: dict[int, float] = {}
    free_s = [0.0]
    for trial in sorted(run.executed, key=lambda trial: trial.number):
        end_s = heapq.heappop(free_s) + (trial.searcher_s or 0.0) + taken_s(trial)
        ended[trial.number] = end_s
        if len(ended) == 1:
            free_s = [end_s] * slots
        else:
            heapq.heappush(free_s, end_s)
    return np.maximum.accumulate([ended[trial.number] for trial in run.executed])


def taken_s(trial: Trial) -> float:
    """Return how long an executed trial took; simulated failures take no time."""
    return trial.outcome.taken_s if trial.outcome else 0.0


def searcher_s(run: Run, trial_budget: int) -> float | None:
    """Return what the searcher took to propose a trial, mean over those of the first that it did propose, in seconds.

    None where that was not recorded.
    """
    known = [trial.searcher_s for trial in run.executed[:trial_budget] if trial.searcher_s is not None]
    return float(np.mean(known)) if known else None


def _advance_s(last: datetime | None, started: datetime, finished: datetime) -> float:
    if last is None:
        return max(0.0, (finished - started).total_seconds())
    gap_s = (started - last).total_seconds()
    since = started if gap_s > PAUSE_S else last
    return max(0.0, (finished - since).total_seconds())


def failed_count(run: Run, trial_budget: int) -> int:
    """Return how many of the first trials failed."""
    return sum(trial.failure is not None for trial in run.executed[:trial_budget])


def failed_s(run: Run, trial_budget: int) -> float:
    """Return how many seconds of the first trials went into those that failed."""
    return sum(taken_s(trial) for trial in run.executed[:trial_budget] if trial.failure is not None)


def pruned_count(run: Run, trial_budget: int) -> int:
    """Return how many of the first trials were ended early."""
    return sum(trial.state is TrialState.PRUNED for trial in run.executed[:trial_budget])


def duplicate_count(run: Run, trial_budget: int) -> int:
    """Return how many of the first trials ran a configuration that the run had executed before."""
    hashes = [trial.config_hash for trial in run.executed[:trial_budget]]
    return len(hashes) - len(set(hashes))
