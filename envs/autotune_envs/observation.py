"""The observation: all that a study's trials say so far, as one bounded vector that is kept up trial by trial."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from autotune.errors import SpaceError
from autotune.searchers import FAILED_SCORE
from autotune.space import SearchSpace
from autotune.trials import FailureKind, Point, Trial, TrialState
from autotune_envs.features import FEATURE_COUNT, WorkloadFeatures
from autotune_envs.reward import value_of

RECENT_TRIALS = 4
"""How many of the last trials are shown one by one; all of them are in the statistics by level."""
FAILURE_KINDS: tuple[FailureKind, ...] = (
    FailureKind.INVALID_CONFIG,
    FailureKind.OUT_OF_MEMORY,
    FailureKind.TIMEOUT,
    FailureKind.CRASH,
    FailureKind.DIVERGED,
)
"""The failures that say something of a configuration, in the observation's order; a cancelled trial says nothing."""

Encoding = tuple[int, ...]
Vector = NDArray[np.float32]
_LARGEST_RATIO = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A named part of the observation: `observation[start:stop]`, every entry in [low, 1]."""

    name: str
    start: int
    stop: int
    low: float
    meaning: str


def layout(sizes: Sequence[int]) -> dict[str, Field]:
    """Return the fields of the observation by name, in order; they depend on the numbers of levels only.

    Args:
        sizes: number of levels by dimension, `SearchSpace.sizes`.
    """
    levels, dimensions, kinds = sum(sizes), len(sizes), len(FAILURE_KINDS)
    parts = (
        ("incumbent_levels", levels, 0.0, "levels of the best trial inside the space, one-hot; 0 while there is none"),
        ("baseline_levels", levels, 0.0, "levels of the starting configuration, one-hot; 0 if outside the space"),
        ("best_score", 1, -1.0, "squashed best R so far, no less than that of a failed trial"),
        ("remaining_budget", 1, 0.0, "fraction of the trial budget that is left"),
        ("scored_rate", 1, 0.0, "fraction of trials that have a score; of pruned ones it is an estimate"),
        ("failure_rates", kinds, 0.0, "fraction of trials by kind of failure (FAILURE_KINDS)"),
        ("workload", 2 * FEATURE_COUNT, 0.0, "WorkloadFeatures.vector: logarithmic amounts, then whether known"),
        (
            "recent_trials",
            RECENT_TRIALS * (dimensions + 4 + kinds),
            -1.0,
            (
                "last trials, latest first, each: 1 if there is one; level index / (levels - 1) by dimension, "
                "-1 if outside the space; squashed throughput ratio, convergence ratio and R, 0 if not measured; "
                "kind of failure, one-hot"
            ),
        ),
        ("level_counts", levels, 0.0, "log(1 + trials with this level) / log(1 + trials)"),
        ("level_mean_scores", levels, -1.0, "mean squashed R of the scored trials with this level, 0 while none"),
        ("level_best_scores", levels, -1.0, "best squashed R of the scored trials with this level, 0 while none"),
        ("level_failure_rates", levels, 0.0, "fraction of trials with this level that have no score, 0 while none"),
    )
    fields, start = {}, 0
    for name, length, low, meaning in parts:
        fields[name] = Field(name=name, start=start, stop=start + length, low=low, meaning=meaning)
        start += length
    return fields


def squash(ratio: float | None) -> float:
    """Map a ratio to the baseline into (-1, 1) as x / (1 + |x|), so that 1/2 is 'as good'; 0 when not measured."""
    if ratio is None or math.isnan(ratio):
        return 0.0
    clipped = min(max(ratio, -_LARGEST_RATIO), _LARGEST_RATIO)
    return clipped / (1 + abs(clipped))


def action_space(sizes: Sequence[int]) -> gymnasium.spaces.MultiDiscrete:
    """Return the space of encodings: one level index per dimension."""
    return gymnasium.spaces.MultiDiscrete(np.array(sizes, dtype=np.int64))


class StudyObserver:
    """Hears of finished trials, oldest first, and gives the observation at any time. The table is in `layout`.

    Args:
        space: what is searched.
        features: what is known of the workload and the hardware.
    """

    def __init__(self, space: SearchSpace, features: WorkloadFeatures) -> None:
        self.fields = layout(space.sizes)
        self.best_score = FAILED_SCORE
        """Best value so far; a failed trial counts as `FAILED_SCORE`, so it is never less."""
        self.encodings: set[Encoding] = set()
        """Encodings of the trials seen that are inside the space."""
        self._space = space
        self._offsets = np.array([0, *itertools.accumulate(space.sizes)][:-1], dtype=np.intp)
        self._steps = np.array([max(1, size - 1) for size in space.sizes], dtype=np.float32)
        self._trials = 0
        self._incumbent_score = -math.inf
        self._vector = np.zeros(list(self.fields.values())[-1].stop, dtype=np.float32)
        self._counts, self._scored, self._sums = np.zeros((3, sum(space.sizes)))
        self._outcomes = np.zeros(1 + len(FAILURE_KINDS))
        self.set_features(features)

    def observation_space(self) -> gymnasium.Space[Vector]:
        """Return the bounds of the observation."""
        low = np.concatenate([np.full(field.stop - field.start, field.low) for field in self.fields.values()])
        box = gymnasium.spaces.Box(low.astype(np.float32), np.ones(len(low), dtype=np.float32), dtype=np.float32)
        return cast("gymnasium.Space[Vector]", box)

    def set_features(self, features: WorkloadFeatures) -> None:
        """Replace what is known of the workload: a baseline's measurement may tell more."""
        self._part("workload")[:] = features.vector()

    def add(self, trial: Trial) -> None:
        """Take in a finished trial; one that was cancelled says nothing of its configuration and is left out."""
        if not trial.counts:
            return
        encoding = self.encoding_of(trial.point)
        scored = trial.score is not None and math.isfinite(trial.score)
        if trial.state is not TrialState.PRUNED:  # an estimate is no claim
            self.best_score = max(self.best_score, value_of(trial))
        self._trials += 1
        kinds = [trial.failure is not None and trial.failure.kind is kind for kind in FAILURE_KINDS]
        self._outcomes += [scored, *kinds]
        self._part("scored_rate")[:] = self._outcomes[0] / self._trials
        self._part("failure_rates")[:] = self._outcomes[1:] / self._trials
        self._add_recent(trial, encoding, kinds, scored=scored)
        if encoding is not None:
            self.encodings.add(encoding)
            self._add_levels(trial, self._offsets + np.array(encoding, dtype=np.intp), scored=scored)

    def observation(self, *, remaining_budget: float) -> Vector:
        """Return a new vector, shape (size,), float32; bounds in `layout`.

        Args:
            remaining_budget: fraction of the trial budget that is left, in [0, 1].
        """
        self._part("best_score")[:] = squash(self.best_score)
        self._part("remaining_budget")[:] = remaining_budget
        return self._vector.copy()

    def _part(self, name: str) -> Vector:
        field = self.fields[name]
        return self._vector[field.start : field.stop]

    def encoding_of(self, point: Point) -> Encoding | None:
        """Return the level indices of a trial's point; None where its configuration lies outside the space."""
        try:
            self._space.check(point)
        except SpaceError:
            return None
        return self._space.encode(point)

    def _add_recent(self, trial: Trial, encoding: Encoding | None, kinds: list[bool], *, scored: bool) -> None:
        levels = -np.ones(len(self._steps)) if encoding is None else np.array(encoding) / self._steps
        ratios = (trial.throughput_ratio, trial.convergence_ratio, trial.score) if scored else (None, None, None)
        recent = self._part("recent_trials").reshape(RECENT_TRIALS, -1)
        recent[1:] = recent[:-1].copy()
        recent[0] = [1.0, *levels, *map(squash, ratios), *kinds]

    def _add_levels(self, trial: Trial, positions: NDArray[np.intp], *, scored: bool) -> None:
        if trial.is_baseline:
            self._part("baseline_levels")[positions] = 1.0
        self._counts[positions] += 1
        if scored:
            score = squash(trial.score)
            best = self._part("level_best_scores")
            best[positions] = np.where(self._scored[positions] > 0, np.maximum(best[positions], score), score)
            self._scored[positions] += 1
            self._sums[positions] += score
            if trial.state is not TrialState.PRUNED and value_of(trial) > self._incumbent_score:
                self._incumbent_score = value_of(trial)
                self._part("incumbent_levels")[:] = 0.0
                self._part("incumbent_levels")[positions] = 1.0
        self._part("level_counts")[:] = np.log1p(self._counts) / math.log1p(self._trials)
        self._part("level_mean_scores")[:] = self._sums / np.maximum(self._scored, 1)
        self._part("level_failure_rates")[:] = (self._counts - self._scored) / np.maximum(self._counts, 1)
