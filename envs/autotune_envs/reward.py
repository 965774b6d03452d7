"""The reward: what one trial is worth to the agent that proposed it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from autotune.searchers import FAILED_SCORE
from autotune.trials import Trial, TrialState


def value_of(trial: Trial) -> float:
    """Return the score R of a trial, and `FAILED_SCORE` for one that has none (it failed, or nothing is comparable).

    Of a pruned trial that is an estimate.
    """
    return trial.score if trial.score is not None and math.isfinite(trial.score) else FAILED_SCORE


class Reward(Protocol):
    """Turns one finished trial into a number. Called once per trial, in the order in which trials finish."""

    @property
    def deterministic(self) -> bool:
        """Whether equal trials after equal histories are worth the same (the measurement itself is noisy)."""
        ...

    def __call__(self, trial: Trial, *, best_before: float) -> float:
        """Return the reward of `trial`; `best_before` is the best value of the trials before it, at least 0."""
        ...


@dataclass(frozen=True, slots=True)
class Improvement:
    """By how much a trial raises the best score so far; 0 when it doesn't. In units of R, in [0, inf).

    An episode's rewards sum to the best score it ended with, less the one it began with. A failed trial is worth 0,
    and a pruned one, whose score is an estimate.
    An agent that is trained over many episodes goes on exploring with it; with R itself it stops at a good point.
    """

    deterministic: ClassVar[bool] = True

    def __call__(self, trial: Trial, *, best_before: float) -> float:
        return 0.0 if trial.state is TrialState.PRUNED else max(0.0, value_of(trial) - best_before)


@dataclass(frozen=True, slots=True)
class RelativeScore:
    """How a trial compares with the best so far: `value / best - 1`, in [-1, inf) but for negative scores.

    A failed trial is worth -1, one as good as the best 0. Every trial teaches, not only the rare improvement, so an
    agent that learns from one study alone gets more out of it. Without a positive best so far it is the value itself.
    """

    deterministic: ClassVar[bool] = True

    def __call__(self, trial: Trial, *, best_before: float) -> float:
        return value_of(trial) / best_before - 1.0 if best_before > 0 else value_of(trial)
