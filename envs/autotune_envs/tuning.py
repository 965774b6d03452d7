"""The Gymnasium environment: one step proposes one configuration to a study and gets its trial back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import gymnasium
import numpy as np
from numpy.typing import NDArray

from autotune.errors import SpaceError, StudyError
from autotune.space import SearchSpace
from autotune.trials import Point, Trial
from autotune_envs.features import WorkloadFeatures
from autotune_envs.observation import StudyObserver, Vector, action_space
from autotune_envs.reward import Improvement, Reward

Action: TypeAlias = NDArray[np.int64]


class TuningStudy(Protocol):
    """What the environment needs of a study; `autotune.study.Study`, entered, is one.

    Law: `measure_baseline` is called at each reset, `evaluate` between resets, by one thread. `history` grows by the
    trials that they run, may grow by others, and never shrinks. A study with `len(history) >= trial_budget` runs no
    further trial.
    """

    @property
    def space(self) -> SearchSpace:
        """What is searched; the same all along."""
        ...

    @property
    def trial_budget(self) -> int:
        """How many trials may be executed in all, the baseline included."""
        ...

    @property
    def history(self) -> Sequence[Trial]:
        """Finished trials that count against the budget, oldest first."""
        ...

    def measure_baseline(self) -> Trial | None:
        """Run the starting configuration unless it has run; None when the study takes no further trial."""
        ...

    def evaluate(self, point: Point) -> Trial:
        """Run a canonical point and return its trial, failed or not; answer a point that has run from its record.

        Raises:
            StudyError: when the study takes no further trial (a stop was asked for).
        """
        ...


StudyFactory: TypeAlias = Callable[[np.random.Generator], tuple[TuningStudy, WorkloadFeatures]]
"""Makes the study of one episode, and says what is known of its workload; randomness comes from the generator only."""


class DeepSpeedTuningEnv(gymnasium.Env[Vector, Action]):
    """Tunes a DeepSpeed configuration: an episode is a study's budget, a step is one proposal.

    ### Action
    `MultiDiscrete(space.sizes)`: the level index of every dimension, an absolute proposal. Combinations that DeepSpeed
    runs alike are one point (`SearchSpace.decode`): a dimension without an effect may have any index.

    ### Observation
    `Box`, float32, one vector. Index ranges follow from the numbers of levels only; `layout(space.sizes)` gives them,
    and the table for the default space on a GPU (438 numbers). L = sum of the numbers of levels, D = number of
    dimensions, F = 11 features, 5 kinds of failure; a squashed x is x / (1 + abs(x)), so that 0.5 reads 'as good as the
    baseline', and 0 stands for what was not measured.

    | field | length | default | bounds | meaning |
    |---|---|---|---|---|
    | incumbent_levels | L | 0:54 | 0, 1 | levels of the best trial inside the space, one-hot; 0 while there is none |
    | baseline_levels | L | 54:108 | 0, 1 | levels of the starting configuration, one-hot; 0 if outside the space |
    | best_score | 1 | 108:109 | -1, 1 | squashed best R so far (a failed trial counts as 0) |
    | remaining_budget | 1 | 109:110 | 0, 1 | proposals left in this episode / trial budget |
    | scored_rate | 1 | 110:111 | 0, 1 | fraction of trials that have a score; of pruned ones it is an estimate |
    | failure_rates | 5 | 111:116 | 0, 1 | fraction of trials by kind of failure (`FAILURE_KINDS`) |
    | workload | 2 F | 116:138 | 0, 1 | log2 of amounts / full scale (`FEATURE_NAMES`), then whether each is known |
    | recent_trials | 4 (D + 9) | 138:222 | -1, 1 | the last 4 trials, latest first, each: 1 if there is one; level |
    | | | | | index / (levels - 1) by dimension, -1 if outside the space; squashed throughput ratio, convergence |
    | | | | | ratio and R; kind of failure, one-hot |
    | level_counts | L | 222:276 | 0, 1 | log(1 + trials with this level) / log(1 + trials) |
    | level_mean_scores | L | 276:330 | -1, 1 | mean squashed R of the scored trials with this level |
    | level_best_scores | L | 330:384 | -1, 1 | best squashed R of the scored trials with this level |
    | level_failure_rates | L | 384:438 | 0, 1 | fraction of trials with this level that have no score |

    ### Reward
    `Improvement` unless another `autotune_envs.reward.Reward` is given: by how much the trial raises the best R so far,
    else 0; in [0, inf). It is a function of the trials alone (`reward.deterministic`); trials themselves are measured,
    so the environment is registered as nondeterministic. A failed trial is worth what the reward says of it, and a
    cancelled one 0.

    ### Start of an episode
    With `study`: the same study goes on, with the trials it has. With `study_factory`: a new study. The starting
    configuration is measured first, unless it has been.

    ### End of an episode
    `terminated`: as many proposals were made as the study had trials left at `reset`, or its budget is spent, or every
    point of the space has run, or the study takes no further trial. A proposal that ran before spends a proposal of
    the episode but no trial, so that a policy that repeats itself comes to an end too, and what it left of the budget
    is there for the next episode. `truncated` is never set. A step after the end runs no trial: Stable-Baselines3 may
    round its time steps up, the number of trials stays the budget's.

    ### Info
    After `step`: `repeated` (the point had run before), `trial_number`, `state`, `score` (None if none), `failure_kind`
    and `failure_reason` (None unless it failed), `point`. After both: `best_score` and `trials_left`; and `ended`, the
    reason in words, once the episode has. A failed trial is never an exception.

    Args:
        study: one study for all episodes.
        study_factory: makes a study for each episode instead, of the space `space`.
        space: the space of the factory's studies.
        features: what is known of the workload of `study`.
        reward: what a trial is worth.
        render_mode: None; there is nothing to render.

    Raises:
        StudyError: when not exactly one of `study` and `study_factory` (with `space`) is given.
    """

    def __init__(
        self,
        study: TuningStudy | None = None,
        *,
        study_factory: StudyFactory | None = None,
        space: SearchSpace | None = None,
        features: WorkloadFeatures | None = None,
        reward: Reward | None = None,
        render_mode: None = None,
    ) -> None:
        self._make: StudyFactory
        if study is not None and study_factory is None:
            kept = (study, features or WorkloadFeatures())
            self._make, self._space = lambda _: kept, study.space
        elif study is None and study_factory is not None and space is not None:
            self._make, self._space = study_factory, space
        else:
            raise StudyError("DeepSpeedTuningEnv: give either study=..., or study_factory=... together with space=...")
        self.reward = reward or Improvement()
        self.render_mode = render_mode
        self._study: TuningStudy | None = None
        self._observer = StudyObserver(self._space, WorkloadFeatures())
        self._seen = 0
        self._proposals_left = 0
        self.action_space = action_space(self._space.sizes)
        self.observation_space = self._observer.observation_space()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Begin an episode; there are no options.

        Raises:
            SpaceError: when the factory's study is of another space.
        """
        super().reset(seed=seed)
        self._study, features = self._make(self.np_random)
        if self._study.space.sizes != self._space.sizes:
            raise SpaceError(f"study_factory: got a study of sizes {self._study.space.sizes}; not {self._space.sizes}")
        self._observer = StudyObserver(self._space, features)
        self._seen = 0
        self._study.measure_baseline()
        self._hear(self._study.history)
        self._proposals_left = self._trials_left()
        return self._observation(), self._summary()

    def step(self, action: Action) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Propose a configuration and wait for its trial.

        Raises:
            StudyError: when `reset` was not called first.
            SpaceError: when `action` is outside the action space.
        """
        if self._study is None:
            raise StudyError("DeepSpeedTuningEnv.step: call reset first")
        point = self._space.decode([int(index) for index in action])
        if self._ended() is not None:
            return self._observation(), 0.0, True, False, {**self._summary(), **_no_trial(point)}
        repeated = self._space.encode(point) in self._observer.encodings
        try:
            trial = self._study.evaluate(point)
        except StudyError as refusal:
            self._proposals_left = 0
            self._hear(self._study.history)
            ended = {**self._summary(), "ended": str(refusal)}
            return self._observation(), 0.0, True, False, {**ended, **_no_trial(point)}
        best_before = self._hear(self._study.history, until=trial)
        reward = self.reward(trial, best_before=best_before) if trial.counts else 0.0
        self._proposals_left = min(self._proposals_left - 1, self._trials_left())
        summary = self._summary()
        return self._observation(), reward, "ended" in summary, False, {**summary, **_account(trial, repeated=repeated)}

    def _hear(self, history: Sequence[Trial], *, until: Trial | None = None) -> float:
        """Take in the new trials; return the best value before `until` (now, if it is not among the new ones)."""
        best_before = None
        for trial in history[self._seen :]:
            if until is not None and trial.number == until.number:
                best_before = self._observer.best_score
            self._observer.add(trial)
        self._seen = len(history)
        return self._observer.best_score if best_before is None else best_before

    def _trials_left(self) -> int:
        return max(0, self._study.trial_budget - self._seen) if self._study else 0

    def _ended(self) -> str | None:
        """Say why no further proposal is taken in this episode; None while one is."""
        if self._trials_left() == 0:
            return "the trial budget is spent"
        if len(self._observer.encodings) >= self._space.count:
            return "every point of the space has run"
        return "the proposals of this episode are made" if self._proposals_left <= 0 else None

    def _observation(self) -> Vector:
        budget = max(1, self._study.trial_budget if self._study else 1)
        return self._observer.observation(remaining_budget=min(1.0, self._proposals_left / budget))

    def _summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = {"best_score": self._observer.best_score, "trials_left": self._trials_left()}
        ended = self._ended()
        return summary if ended is None else {**summary, "ended": ended}


def _account(trial: Trial, *, repeated: bool) -> dict[str, Any]:
    failure = trial.failure
    return {
        "repeated": repeated,
        "trial_number": trial.number,
        "state": str(trial.state),
        "score": trial.score,
        "failure_kind": str(failure.kind) if failure else None,
        "failure_reason": failure.reason if failure else None,
        "point": dict(trial.point),
    }


def _no_trial(point: Point) -> dict[str, Any]:
    """Describe a proposal that came after the end; the same keys, so that vectorised environments can stack them."""
    return {
        "repeated": False,
        "trial_number": None,
        "state": None,
        "score": None,
        "failure_kind": None,
        "failure_reason": None,
        "point": dict(point),
    }
