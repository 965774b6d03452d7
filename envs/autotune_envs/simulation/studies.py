"""Many simulated studies at once: one proposal each a step, and the observations that `StudyObserver` would give."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.evaluators.simulated import DOUBT, SLOWEST
from autotune.trials import FailureKind
from autotune_envs.observation import FAILURE_KINDS, layout
from autotune_envs.policy_space import policy_space
from autotune_envs.simulation.cases import Cases, Verdicts
from autotune_envs.simulation.grid import Rows, canonical, offsets

_OUT_OF_MEMORY = FAILURE_KINDS.index(FailureKind.OUT_OF_MEMORY)
_DIVERGED = FAILURE_KINDS.index(FailureKind.DIVERGED)


def policy_observation_size() -> int:
    """Return the length of what a policy sees: the observation over its space, then the mask of levels."""
    sizes = policy_space().sizes
    return list(layout(sizes).values())[-1].stop + sum(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What a step came to, one entry per study."""

    best_share: NDArray[np.float64]
    """Best R so far as a share of the case's best known one, at most 1."""
    failed: NDArray[np.bool_]
    repeated: NDArray[np.bool_]
    """The configuration had run before: no trial ran, and the proposal is spent."""
    ended: NDArray[np.bool_]
    """The budget is spent; `begin` another."""


class SimulatedStudies:
    """Studies in lockstep, each of its own case, with its own budget and mask.

    Args:
        cases: to choose from.
        count: of studies.
        noise: relative standard deviation of the step time.
        outliers: share of trials that are slower by up to twice.
    """

    def __init__(self, cases: Cases, count: int, *, noise: float = 0.02, outliers: float = 0.01) -> None:
        self._cases = cases
        self._noise, self._outliers = noise, outliers
        space = policy_space()
        self._sizes = np.array(space.sizes)
        levels = int(self._sizes.sum())
        self._fields = layout(space.sizes)
        self._radix = np.concatenate([[1], np.cumprod(self._sizes)[:-1]]).astype(np.int64)
        self.observations = np.zeros((count, policy_observation_size()), dtype=np.float32)
        """What the policy sees of each study, shape (studies, size); the next step changes it."""
        self.case = np.zeros(count, dtype=np.int64)
        self.budget = np.ones(count, dtype=np.int64)
        """Trials in all, the baseline included."""
        self.proposals = np.zeros(count, dtype=np.int64)
        self.best_score = np.zeros(count)
        self._incumbent_score = np.zeros(count)
        self._trials = np.zeros(count)
        self._counts, self._scored, self._sums = np.zeros((3, count, levels))
        self._outcomes = np.zeros((count, 1 + len(FAILURE_KINDS)))
        self._known = np.full((count, 1), -1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.case)

    def begin(
        self,
        studies: Rows,
        case: Rows,
        *,
        budget: Rows,
        mask: NDArray[np.bool_] | None = None,
        features: NDArray[np.float32] | None = None,
    ) -> None:
        """Begin some studies anew, their baselines measured.

        Args:
            studies: their places.
            case: of each.
            budget: trials in all, the baseline included.
            mask: levels that may be proposed, shape (studies, levels); all by default.
            features: what is known of the workload; by default all that the case says.
        """
        self.case[studies], self.budget[studies], self.proposals[studies] = case, budget, 0
        self.best_score[studies], self._incumbent_score[studies], self._trials[studies] = 0.0, -math.inf, 0.0
        for statistics in (self._counts, self._scored, self._sums, self._outcomes):
            statistics[studies] = 0.0
        longest = int(self.budget.max()) + 1
        if self._known.shape[1] < longest:
            more = np.full((len(self), longest - self._known.shape[1]), -1, dtype=np.int64)
            self._known = np.concatenate([self._known, more], axis=1)
        self._known[studies] = -1
        self.observations[studies] = 0.0
        workload = self._fields["workload"]
        known = self._cases.features[case] if features is None else features
        self.observations[studies, workload.start : workload.stop] = known
        self.observations[studies, -int(self._sizes.sum()) :] = 1.0 if mask is None else mask
        baseline = self._cases.baseline[case]
        start = self._fields["baseline_levels"].start
        positions = baseline + offsets()
        self.observations[studies[:, None], start + positions] = 1.0
        ones = np.ones(len(studies))
        none = np.zeros(len(studies), dtype=np.bool_)
        as_measured = Verdicts(
            throughput_ratio=ones, convergence_ratio=ones, score=ones, out_of_memory=none, diverged=none
        )
        self._tell(studies, baseline, as_measured)

    def known(self, encodings: Rows) -> NDArray[np.bool_]:
        """Return whether each study has run its encoding, shape (studies,)."""
        return np.asarray((self._known == (encodings @ self._radix)[:, None]).any(axis=1))

    def step(self, actions: Rows, generator: np.random.Generator) -> Stepped:
        """Run a proposal of each study.

        Args:
            actions: level indices, shape (studies, dimensions); they need not be canonical.
            generator: of noise.
        """
        encodings = canonical(actions)
        repeated = self.known(encodings)
        verdicts = self._cases.judge(
            self.case,
            encodings,
            slowness=self._slowness(generator),
            doubt=DOUBT * generator.uniform(-1.0, 1.0, len(self)),
        )
        self.proposals += 1
        new = np.flatnonzero(~repeated)
        fields = ("throughput_ratio", "convergence_ratio", "score", "out_of_memory", "diverged")
        self._tell(new, encodings[new], Verdicts(**{name: getattr(verdicts, name)[new] for name in fields}))
        self._show_budget(np.arange(len(self)))
        return Stepped(
            best_share=self.best_share,
            failed=~verdicts.scored & ~repeated,
            repeated=repeated,
            ended=self.proposals >= self.budget - 1,
        )

    @property
    def best_share(self) -> NDArray[np.float64]:
        """Return each study's best R as a share of its case's best known one, at most 1."""
        return np.minimum(self.best_score / self._cases.optimum_score[self.case], 1.0)

    def _slowness(self, generator: np.random.Generator) -> NDArray[np.float64]:
        factor = np.exp(self._noise * generator.standard_normal(len(self)))
        is_outlier = generator.uniform(size=len(self)) < self._outliers
        return factor * np.where(is_outlier, 1.0 + SLOWEST * generator.uniform(size=len(self)), 1.0)

    def _tell(self, studies: Rows, encodings: Rows, verdicts: Verdicts) -> None:
        """Take in a finished trial of some studies, as `StudyObserver.add` does of one."""
        if not len(studies):
            return
        scored = verdicts.scored
        self.best_score[studies] = np.maximum(self.best_score[studies], verdicts.value)
        self._known[studies, self._trials[studies].astype(np.int64)] = encodings @ self._radix
        self._trials[studies] += 1
        kinds = np.zeros((len(studies), len(FAILURE_KINDS)))
        kinds[:, _OUT_OF_MEMORY], kinds[:, _DIVERGED] = verdicts.out_of_memory, verdicts.diverged
        self._outcomes[studies, 0] += scored
        self._outcomes[studies, 1:] += kinds
        trials = self._trials[studies]
        self._put("scored_rate", studies, self._outcomes[studies, :1] / trials[:, None])
        self._put("failure_rates", studies, self._outcomes[studies, 1:] / trials[:, None])
        self._put("best_score", studies, _squashed(self.best_score[studies])[:, None])
        self._show_budget(studies)
        ratios = np.stack([verdicts.throughput_ratio, verdicts.convergence_ratio, verdicts.score], axis=1)
        squashed = _squashed(np.where(scored[:, None], ratios, 0.0))
        self._add_recent(
            studies,
            np.concatenate([np.ones((len(studies), 1)), encodings / (self._sizes - 1), squashed, kinds], axis=1),
        )
        self._add_levels(studies, encodings, verdicts, squashed[:, 2])

    def _show_budget(self, studies: Rows) -> None:
        left = 1.0 - (1.0 + self.proposals[studies]) / self.budget[studies]
        self._put("remaining_budget", studies, np.maximum(left, 0.0)[:, None])

    def _add_recent(self, studies: Rows, latest: NDArray[np.float64]) -> None:
        part, width = self._fields["recent_trials"], latest.shape[1]
        before = self.observations[studies, part.start : part.stop - width]
        self._put("recent_trials", studies, np.concatenate([latest, before], axis=1))

    def _add_levels(self, studies: Rows, encodings: Rows, verdicts: Verdicts, squashed: NDArray[np.float64]) -> None:
        rows, positions, scored = studies[:, None], encodings + offsets(), verdicts.scored
        best_at = self._fields["level_best_scores"].start + positions
        before, seen = self.observations[rows, best_at], self._scored[rows, positions] > 0
        best = np.where(seen, np.maximum(before, squashed[:, None]), squashed[:, None])
        self.observations[rows, best_at] = np.where(scored[:, None], best, before)
        self._counts[rows, positions] += 1.0
        self._scored[rows, positions] += scored[:, None]
        self._sums[rows, positions] += np.where(scored, squashed, 0.0)[:, None]
        counts, scored_counts = self._counts[studies], self._scored[studies]
        trials = self._trials[studies][:, None]
        self._put("level_counts", studies, np.log1p(counts) / np.log1p(trials))
        self._put("level_mean_scores", studies, self._sums[studies] / np.maximum(scored_counts, 1.0))
        self._put("level_failure_rates", studies, (counts - scored_counts) / np.maximum(counts, 1.0))
        better = np.flatnonzero(scored & (verdicts.score > self._incumbent_score[studies]))
        self._incumbent_score[studies[better]] = verdicts.score[better]
        part = self._fields["incumbent_levels"]
        self.observations[studies[better], part.start : part.stop] = 0.0
        self.observations[studies[better][:, None], part.start + positions[better]] = 1.0

    def _put(self, name: str, studies: Rows, values: NDArray[np.float64]) -> None:
        part = self._fields[name]
        self.observations[studies, part.start : part.stop] = values


def _squashed(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return x / (1 + |x|), as `autotune_envs.observation.squash` does of one ratio."""
    return ratios / (1.0 + np.abs(ratios))
