"""The vector environment: one step proposes a batch of configurations to one study, which runs them at once."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from autotune.errors import StudyError
from autotune.space import SearchSpace
from autotune_envs.episode import Episode, Episodes, StudyFactory, TuningStudy
from autotune_envs.features import WorkloadFeatures
from autotune_envs.observation import StudyObserver, Vector, action_space
from autotune_envs.reward import Reward

_Step = tuple[Vector, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class DeepSpeedTuningVectorEnv(gymnasium.vector.VectorEnv[Vector, NDArray[np.int64], NDArray[Any]]):
    """`DeepSpeedTuningEnv` with several proposals a step: `num_envs` environments that share one study and one episode.

    Actions, rewards and infos are those of `DeepSpeedTuningEnv`, one per environment (an info that is None there is
    masked out here). Every environment sees the same observation, for there is one study. A step waits for all of its
    trials; the study runs as many of them at once as its runner has slots, so `num_envs=study.slots` suits.

    ### Reward
    Trials are rewarded in the order in which they finish, each against the best before it. So the sum over all
    environments is what the one environment's rewards sum to: the best score at the end, less the one at the start.

    ### End of an episode
    All environments end in the same step, for the same reasons as `DeepSpeedTuningEnv`: as many proposals were made in
    all as the study had trials left at `reset`, or its budget is spent, or every point of the space has run, or the
    study takes no further trial. In the last step the first environments make the proposals that are left, and the
    others none: their `trial_number` is masked out and their reward 0. Of equal proposals in one step the first leads
    to the trial and the others are `repeated`; like all repeats they spend proposals and no trial. The step after the
    end resets (`AutoresetMode.NEXT_STEP`): its actions are not looked at, and it runs at most the new study's baseline.

    Args:
        study: one study for all episodes.
        num_envs: proposals of a step.
        study_factory: makes a study for each episode instead, of the space `space`.
        space: the space of the factory's studies.
        features: what is known of the workload of `study`.
        reward: what a trial is worth.
        render_mode: None; there is nothing to render.

    Raises:
        StudyError: when not exactly one of `study` and `study_factory` (with `space`) is given, or `num_envs` is
            below 1.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(
        self,
        study: TuningStudy | None = None,
        *,
        num_envs: int,
        study_factory: StudyFactory | None = None,
        space: SearchSpace | None = None,
        features: WorkloadFeatures | None = None,
        reward: Reward | None = None,
        render_mode: None = None,
    ) -> None:
        if num_envs < 1:
            raise StudyError(f"num_envs: got {num_envs}; it must be 1 or more")
        self._episodes = Episodes(study, study_factory=study_factory, space=space, features=features, reward=reward)
        self._episode: Episode | None = None
        self.reward = self._episodes.reward
        self.render_mode = render_mode
        self.num_envs = num_envs
        self.single_action_space = action_space(self._episodes.space.sizes)
        self.single_observation_space = StudyObserver(self._episodes.space, WorkloadFeatures()).observation_space()
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._over = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Begin an episode; there are no options.

        Raises:
            SpaceError: when the factory's study is of another space.
        """
        super().reset(seed=seed)
        self._episode = self._episodes.begin(self.np_random)
        self._over = False
        return self._observations(self._episode), self._stacked([self._episode.summary] * self.num_envs)

    def step(self, actions: NDArray[np.int64]) -> _Step:
        """Propose a configuration for each environment and wait for their trials.

        Args:
            actions: level indices, shape (num_envs, dimensions).

        Raises:
            StudyError: when `reset` was not called first.
            SpaceError: when an action is outside the action space; nothing runs then.
        """
        if self._episode is None:
            raise StudyError("DeepSpeedTuningVectorEnv.step: call reset first")
        rewards, none = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        if self._over:
            observations, infos = self.reset()
            return observations, rewards, none, none.copy(), infos
        steps = self._episode.propose(actions)
        rewards[:] = [step.reward for step in steps]
        self._over = self._episode.ended is not None
        infos = self._stacked([step.info for step in steps])
        return self._observations(self._episode), rewards, np.full(self.num_envs, self._over), none, infos

    def _observations(self, episode: Episode) -> Vector:
        """Return the one observation for each environment, shape (num_envs, size), float32."""
        return np.tile(episode.observation, (self.num_envs, 1))

    def _stacked(self, infos: list[dict[str, Any]]) -> dict[str, Any]:
        """Return infos as Gymnasium stacks them: an array and a mask for each key."""
        stacked: dict[str, Any] = {}
        for environment, info in enumerate(infos):
            known = {key: value for key, value in info.items() if value is not None}
            stacked = self._add_info(stacked, known, environment)
        return stacked
