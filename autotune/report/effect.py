"""The effect of a dimension: R by level over the trials of a study, and how much of its variance the level explains.

The share explained is epsilon-squared (T. L. Kelley, "An unbiased correlation ratio measure", PNAS 21, 1935), that is
the adjusted R-squared of a one-way analysis of variance. Plain eta-squared would be near (levels - 1) / (trials - 1)
for a dimension without any effect, which with few trials is much. It looks at one dimension at a time: it can't tell
an effect of the dimension from one of what the searcher tried together with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.report.summary import StudySummary
from autotune.report.thinning import DOTS, spread
from autotune.space import Dimension
from autotune.trials import Trial, Value

ROUGH_BELOW_TRIALS = 30
"""Completed trials below which a report calls the shares rough (a convention, as a sample of 30 is called large)."""


_LEAST_FREEDOM = 5
"""Figures beyond the number of levels below which no share is given: with fewer it is chance (a convention)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelEffect:
    """What came of the trials with one level of a dimension."""

    level: Value
    scores: tuple[float, ...]
    """R of the completed ones, and the estimates of pruned ones: without them a bad level would look better."""
    failed_count: int

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.scores)) if self.scores else None

    @property
    def dots(self) -> list[float]:
        """The scores that a page draws: of many some, evenly spread by size."""
        return spread(sorted(self.scores), DOTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a dimension did to R, over the trials in which it has an effect."""

    dimension: Dimension
    levels: tuple[LevelEffect, ...]
    """Every level of the dimension, tried or not."""
    explained: float | None
    """Share of the variance of R, 0 to 1; None where too few trials differ in it."""

    @property
    def completed_count(self) -> int:
        return sum(len(level.scores) for level in self.levels)


def effects(summary: StudySummary) -> list[Effect]:
    """Return the effect of every dimension of the space, the one that explains most first."""
    found = [_effect(dimension, summary.finished) for dimension in summary.space.dimensions]
    return sorted(found, key=lambda effect: -1.0 if effect.explained is None else effect.explained, reverse=True)


def _effect(dimension: Dimension, trials: Sequence[Trial]) -> Effect:
    levels = []
    by_level: dict[Value | None, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_level[trial.point.get(dimension.name)].append(trial)
    for level in dimension.levels:
        alike = by_level[level]
        scores = tuple(trial.score for trial in alike if trial.score is not None)
        failed_count = sum(trial.failure is not None for trial in alike)
        levels.append(LevelEffect(level=level, scores=scores, failed_count=failed_count))
    return Effect(
        dimension=dimension, levels=tuple(levels), explained=explained_variance([level.scores for level in levels])
    )


def explained_variance(groups: Sequence[Sequence[float]]) -> float | None:
    """Return Kelley's epsilon-squared of groups of figures, at least 0.

    Args:
        groups: any number, some may be empty.

    Returns:
        None with fewer than two groups, too few figures, or figures that are all equal.
    """
    arrays = [np.asarray(group, dtype=float) for group in groups if len(group)]
    figures = np.concatenate(arrays) if arrays else np.empty(0)
    if len(arrays) < 2 or len(figures) < len(arrays) + _LEAST_FREEDOM:
        return None
    total = float(np.sum((figures - figures.mean()) ** 2)) / (len(figures) - 1)
    if total == 0:
        return None
    within = sum(float(np.sum((group - group.mean()) ** 2)) for group in arrays) / (len(figures) - len(arrays))
    return max(0.0, 1 - within / total)
