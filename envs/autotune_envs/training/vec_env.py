"""The vectorised environment as Stable-Baselines3 takes it: several proposals a step to one study."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from autotune.errors import StudyError
from autotune.space import SearchSpace
from autotune_envs.episode import Episode, Episodes, StudyFactory, TuningStudy
from autotune_envs.features import WorkloadFeatures
from autotune_envs.observation import StudyObserver, Vector, action_space
from autotune_envs.reward import Reward
from autotune_envs.training.joint_vec_env import JointVecEnv

_Step = tuple[Vector, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]


class StudyVecEnv(JointVecEnv):
    """`DeepSpeedTuningVectorEnv` for Stable-Baselines3: `num_envs` environments that share one study and one episode.

    Observations, rewards, infos and the end of an episode are those that `DeepSpeedTuningVectorEnv` describes; as
    Stable-Baselines3 wants it, the step that ends an episode begins the next and returns its observation, with the last
    one as `terminal_observation` in the infos. `step_async` keeps the actions and `step_wait` runs and awaits their
    trials: one thread drives the study, and Stable-Baselines3 does nothing between the two.

    Example:
        with campaign.study(stored) as study:
            envs = StudyVecEnv(study, num_envs=study.slots)
            PPO(CopyGatePolicy, envs, n_steps=4, batch_size=8).learn(10_000, callback=StopWhenStudyEnds())

    Args:
        study: one study for all episodes; whoever entered it leaves it.
        num_envs: proposals of a step.
        study_factory: makes a study for each episode instead, of the space `space`.
        space: the space of the factory's studies.
        features: what is known of the workload of `study`.
        reward: what a trial is worth.

    Raises:
        StudyError: when not exactly one of `study` and `study_factory` (with `space`) is given, or `num_envs` is
            below 1.
    """

    render_mode: str | None = None

    def __init__(
        self,
        study: TuningStudy | None = None,
        *,
        num_envs: int,
        study_factory: StudyFactory | None = None,
        space: SearchSpace | None = None,
        features: WorkloadFeatures | None = None,
        reward: Reward | None = None,
    ) -> None:
        if num_envs < 1:
            raise StudyError(f"num_envs: got {num_envs}; it must be 1 or more")
        self._episodes = Episodes(study, study_factory=study_factory, space=space, features=features, reward=reward)
        self._episode: Episode | None = None
        self._generator = np.random.default_rng()
        self._actions: NDArray[np.int64] | None = None
        sizes = self._episodes.space.sizes
        observations = StudyObserver(self._episodes.space, WorkloadFeatures()).observation_space()
        super().__init__(num_envs, observations, action_space(sizes))

    def reset(self) -> Vector:
        """Begin an episode; return its observation for each environment, shape (num_envs, size), float32.

        Raises:
            SpaceError: when the factory's study is of another space.
        """
        if self._seeds[0] is not None:
            self._generator, _ = seeding.np_random(self._seeds[0])
        self._reset_seeds()
        self._reset_options()
        self._actions = None
        self._episode = self._episodes.begin(self._generator)
        self.reset_infos = [self._episode.summary for _ in range(self.num_envs)]
        return self._observations(self._episode)

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Keep the actions, shape (num_envs, dimensions), for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> _Step:
        """Propose a configuration for each environment and wait for their trials.

        Raises:
            StudyError: when `reset` or `step_async` was not called first.
            SpaceError: when an action is outside the action space; nothing runs then.
        """
        if self._episode is None or self._actions is None:
            raise StudyError("StudyVecEnv.step_wait: call reset, then step_async first")
        actions, self._actions = self._actions, None
        steps = self._episode.propose(actions)
        rewards = np.array([step.reward for step in steps], dtype=np.float32)
        infos = [step.info for step in steps]
        over = self._episode.ended is not None
        observations = self._observations(self._episode)
        if over:
            ends = [{"terminal_observation": last, "TimeLimit.truncated": False} for last in observations]
            infos = [{**info, **end} for info, end in zip(infos, ends, strict=True)]
            observations = self.reset()
        return observations, rewards, np.full(self.num_envs, over), infos

    def _observations(self, episode: Episode) -> Vector:
        return np.tile(episode.observation, (self.num_envs, 1))
