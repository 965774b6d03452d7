"""The Gymnasium environment: one step proposes one configuration to a study and gets its trial back."""

from __future__ import annotations

from typing import Any

import gymnasium

from autotune.errors import StudyError
from autotune.space import SearchSpace
from autotune_envs.episode import Action, Episode, Episodes, StudyFactory, TuningStudy
from autotune_envs.features import WorkloadFeatures
from autotune_envs.observation import StudyObserver, Vector, action_space
from autotune_envs.reward import Reward


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
        self._episodes = Episodes(study, study_factory=study_factory, space=space, features=features, reward=reward)
        self._episode: Episode | None = None
        self.reward = self._episodes.reward
        self.render_mode = render_mode
        self.action_space = action_space(self._episodes.space.sizes)
        self.observation_space = StudyObserver(self._episodes.space, WorkloadFeatures()).observation_space()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Begin an episode; there are no options.

        Raises:
            SpaceError: when the factory's study is of another space.
        """
        super().reset(seed=seed)
        self._episode = self._episodes.begin(self.np_random)
        return self._episode.observation, self._episode.summary

    def step(self, action: Action) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Propose a configuration and wait for its trial.

        Raises:
            StudyError: when `reset` was not called first.
            SpaceError: when `action` is outside the action space.
        """
        if self._episode is None:
            raise StudyError("DeepSpeedTuningEnv.step: call reset first")
        (step,) = self._episode.propose([action])
        return self._episode.observation, step.reward, self._episode.ended is not None, False, step.info
