"""An episode of tuning: what a study's budget has left, proposed one by one or in batches, and what each was worth."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.errors import SpaceError, StudyError
from autotune.space import SearchSpace
from autotune.trials import Point, Trial
from autotune_envs.features import WorkloadFeatures
from autotune_envs.observation import StudyObserver, Vector
from autotune_envs.reward import Improvement, Reward

Action: TypeAlias = NDArray[np.int64]


class TuningStudy(Protocol):
    """What the environments need of a study; `autotune.study.Study`, entered, is one.

    Law: `measure_baseline` is called at each reset, `evaluate_all` between resets, by one thread. `history` grows by
    the trials that they run, may grow by others, and never shrinks. A study with `len(history) >= trial_budget` runs
    no further trial.
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
        """Finished trials that count against the budget, in the order in which they finished."""
        ...

    def measure_baseline(self) -> Trial | None:
        """Run the starting configuration unless it has run; None when the study takes no further trial."""
        ...

    def evaluate_all(self, points: Sequence[Point]) -> Sequence[Trial | None]:
        """Run canonical points, as many at once as it can; return the trial of each, failed or not.

        A point that has run is answered from its record, one that comes twice runs once. None stands where the study
        takes no further trial: its budget is spent, or a stop was asked for.
        """
        ...


StudyFactory: TypeAlias = Callable[[np.random.Generator], tuple[TuningStudy, WorkloadFeatures]]
"""Makes the study of one episode, and says what is known of its workload; randomness comes from the generator only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one proposal came to."""

    reward: float
    info: dict[str, Any]
    """As `DeepSpeedTuningEnv` describes it."""


class Episode:
    """Takes proposals until the episode ends; see "End of an episode" in `DeepSpeedTuningEnv`. Made by `begin`.

    Args:
        study: entered, its baseline measured.
        observer: of the study's space; has seen no trial.
        reward: what a trial is worth.
    """

    def __init__(self, study: TuningStudy, *, observer: StudyObserver, reward: Reward) -> None:
        self._study = study
        self._observer = observer
        self._reward = reward
        self._seen = 0
        self._hear(proposed=())
        self._proposals_left = self._trials_left()
        self._refused = False

    @classmethod
    def begin(cls, study: TuningStudy, *, features: WorkloadFeatures, reward: Reward) -> Self:
        """Measure the baseline, unless it has been, and begin."""
        study.measure_baseline()
        return cls(study, observer=StudyObserver(study.space, features), reward=reward)

    @property
    def ended(self) -> str | None:
        """Say why no further proposal is taken in this episode; None while one is."""
        if self._trials_left() == 0:
            return "the trial budget is spent"
        if len(self._observer.encodings) >= self._study.space.count:
            return "every point of the space has run"
        if self._refused:
            return "stopped as asked"
        return "the proposals of this episode are made" if self._proposals_left <= 0 else None

    @property
    def observation(self) -> Vector:
        """What the trials so far say; a new vector, as `DeepSpeedTuningEnv` describes it."""
        return self._observer.observation(
            remaining_budget=min(1.0, self._proposals_left / max(1, self._study.trial_budget))
        )

    @property
    def summary(self) -> dict[str, Any]:
        """The part of the info that is about the study, not about one proposal."""
        summary: dict[str, Any] = {"best_score": self._observer.best_score, "trials_left": self._trials_left()}
        return summary if self.ended is None else {**summary, "ended": self.ended}

    def propose(self, actions: Iterable[Action]) -> list[Step]:
        """Run a batch of proposals, and wait for all of them; those after the end of the episode run nothing.

        Raises:
            SpaceError: when one is outside the action space; nothing runs then.
        """
        space = self._study.space
        points = [space.decode([int(index) for index in action]) for action in actions]
        taken = points[: self._proposals_left] if self.ended is None else []
        known = set(self._observer.encodings)
        trials = self._study.evaluate_all(taken) if taken else []
        worth = self._hear(proposed={trial.number for trial in trials if trial is not None})
        self._refused = self._refused or None in trials
        self._proposals_left = min(self._proposals_left - len(taken), self._trials_left())
        summary = self.summary
        steps = []
        for point, trial in itertools.zip_longest(points, trials):
            if trial is None:
                steps.append(Step(reward=0.0, info={**summary, **_no_trial(point)}))
                continue
            encoding = space.encode(point)
            info = {**summary, **_account(trial, repeated=encoding in known)}
            known.add(encoding)
            steps.append(Step(reward=self._worth(trial, worth), info=info))
        return steps

    def _hear(self, *, proposed: Iterable[int]) -> dict[int, float]:
        """Take in the new trials as they finished; return what those proposed are worth, by number."""
        worth = {}
        for trial in self._study.history[self._seen :]:
            if trial.number in proposed:
                worth[trial.number] = self._reward(trial, best_before=self._observer.best_score)
            self._observer.add(trial)
            self._seen += 1
        return worth

    def _worth(self, trial: Trial, worth: dict[int, float]) -> float:
        """Return the reward of a proposal: its trial's, for the first that led to it; else that of a repeat."""
        if trial.number in worth:
            return worth.pop(trial.number)
        return self._reward(trial, best_before=self._observer.best_score) if trial.counts else 0.0

    def _trials_left(self) -> int:
        return max(0, self._study.trial_budget - self._seen)


class Episodes:
    """Begins episodes: of one study again and again, or of a new study each.

    Args:
        study: one study for all episodes.
        study_factory: makes a study for each episode instead, of the space `space`.
        space: the space of the factory's studies.
        features: what is known of the workload of `study`.
        reward: what a trial is worth.

    Raises:
        StudyError: when not exactly one of `study` and `study_factory` (with `space`) is given.
    """

    def __init__(
        self,
        study: TuningStudy | None,
        *,
        study_factory: StudyFactory | None,
        space: SearchSpace | None,
        features: WorkloadFeatures | None,
        reward: Reward | None,
    ) -> None:
        self._make: StudyFactory
        if study is not None and study_factory is None:
            kept = (study, features or WorkloadFeatures())
            self._make, self.space = lambda _: kept, study.space
        elif study is None and study_factory is not None and space is not None:
            self._make, self.space = study_factory, space
        else:
            raise StudyError("give either study=..., or study_factory=... together with space=...")
        self.reward = reward or Improvement()

    def begin(self, generator: np.random.Generator) -> Episode:
        """Begin an episode; `generator` goes to the factory.

        Raises:
            SpaceError: when the factory's study is of another space.
        """
        study, features = self._make(generator)
        if study.space.sizes != self.space.sizes:
            raise SpaceError(f"study_factory: got a study of sizes {study.space.sizes}; not {self.space.sizes}")
        return Episode.begin(study, features=features, reward=self.reward)


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
