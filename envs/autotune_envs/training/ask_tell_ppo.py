"""PPO without an environment's loop: Stable-Baselines3's policy, rollout buffer and update, driven from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv

from autotune.errors import SearcherError
from autotune_envs.observation import Vector
from autotune_envs.training.array_text import Arrays
from autotune_envs.training.settings import PpoSettings
from autotune_envs.training.transition import Transition

_REWARD_CLIP = 10.0
_REWARD_EPSILON = 1e-8
"""Both: defaults of `stable_baselines3.common.vec_env.VecNormalize`."""


class AskTellPpo:
    """A `stable_baselines3.PPO` that is told of its steps instead of taking them; the update is its own `train`.

    Rewards are divided by the running standard deviation of the discounted return, as `VecNormalize` does; observations
    are bounded by construction and pass as they are. The caller isolates every call, and the constructor, from global
    randomness.

    Args:
        observation_space: of the environment.
        action_space: of the environment.
        settings: of PPO.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Vector],
        action_space: gymnasium.Space[NDArray[np.int64]],
        settings: PpoSettings,
    ) -> None:
        self._settings = settings
        self._progress = 0.0
        self._discounted = 0.0
        self._returns = RunningMeanStd(shape=())
        spaces = _SpacesOnly(observation_space, action_space)
        self._ppo = PPO(
            settings.policy_class,
            DummyVecEnv([lambda: spaces]),
            learning_rate=lambda _: self._learning_rate(),
            n_steps=settings.n_steps,
            batch_size=settings.batch_size,
            n_epochs=settings.n_epochs,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            clip_range=settings.clip_range,
            ent_coef=settings.ent_coef,
            vf_coef=settings.vf_coef,
            max_grad_norm=settings.max_grad_norm,
            policy_kwargs=settings.policy_kwargs,
            device="cpu",
        )
        self._ppo.set_logger(Logger(folder=None, output_formats=[]))

    def propose(self, observation: Vector) -> list[Transition]:
        """Draw `candidates` actions from the policy, the most probable one first where `mode_first` says so."""
        policy = self._ppo.policy
        policy.set_training_mode(False)
        batch = torch.as_tensor(observation)[None].expand(self._settings.candidates, -1)
        with torch.no_grad():
            actions, values, log_probs = policy(batch)
            if self._settings.mode_first:
                actions[:1], _, log_probs[:1] = policy(batch[:1], deterministic=True)
        value = float(values[0])
        return [
            Transition(observation=observation, action=action, value=value, log_prob=float(log_prob))
            for action, log_prob in zip(actions.numpy(), log_probs, strict=True)
        ]

    def transition(self, observation: Vector, action: NDArray[np.int64]) -> Transition:
        """Return the transition of an action that the policy did not draw."""
        policy = self._ppo.policy
        policy.set_training_mode(False)
        with torch.no_grad():
            batch, actions = torch.as_tensor(observation)[None], torch.as_tensor(action)[None]
            value, log_prob, _ = policy.evaluate_actions(batch, actions)
        return Transition(observation=observation, action=action, value=float(value), log_prob=float(log_prob))

    def update(self, rollout: Sequence[Transition], observation: Vector, *, progress: float) -> None:
        """Train the policy on one rollout.

        Args:
            rollout: `n_steps` transitions with their rewards, in order.
            observation: after the last of them.
            progress: fraction of the trial budget that is spent; the learning rate goes by it, and 1 is the end.
        """
        self._progress = progress
        buffer = self._ppo.rollout_buffer
        buffer.reset()
        for step, reward in zip(rollout, self._normalised(rollout), strict=True):
            value, log_prob = torch.tensor([step.value]), torch.tensor([step.log_prob])
            buffer.add(step.observation[None], step.action[None], np.array([reward]), np.zeros(1), value, log_prob)
        with torch.no_grad():
            last_value = self._ppo.policy.predict_values(torch.as_tensor(observation)[None])
        buffer.compute_returns_and_advantage(last_values=last_value, dones=np.array([progress >= 1]))
        self._ppo.train()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return weights, the optimizer's moments and the reward statistics by name; `load_arrays` reads them back."""
        arrays = {f"policy/{name}": weights.numpy().copy() for name, weights in self._ppo.policy.state_dict().items()}
        for position, moments in self._ppo.policy.optimizer.state_dict()["state"].items():
            for name, moment in moments.items():
                arrays[f"optimizer/{position}/{name}"] = moment.numpy().copy()
        returns = self._returns
        arrays["returns"] = np.array([returns.mean, returns.var, returns.count, self._discounted], dtype=np.float64)
        return arrays

    def load_arrays(self, arrays: Arrays) -> None:
        """Go on from what `arrays` returned.

        Raises:
            SearcherError: when they are of a policy of another shape.
        """
        weights = {name.removeprefix("policy/"): torch.tensor(a) for name, a in arrays.items() if name[:7] == "policy/"}
        self.load_weights(weights)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name in arrays:
            if name.startswith("optimizer/"):
                _, position, moment = name.split("/")
                moments.setdefault(int(position), {})[moment] = torch.tensor(arrays[name])
        optimizer = self._ppo.policy.optimizer
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        mean, variance, count, self._discounted = (float(number) for number in arrays["returns"])
        self._returns.mean, self._returns.var, self._returns.count = np.array(mean), np.array(variance), count

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Take the weights of a trained policy.

        Raises:
            SearcherError: when they are of a policy of another shape.
        """
        try:
            self._ppo.policy.load_state_dict(weights)
        except RuntimeError as problem:
            raise SearcherError(f"policy: its weights don't fit this space and these settings: {problem}") from problem

    def _normalised(self, rollout: Sequence[Transition]) -> NDArray[np.float64]:
        """Return the rewards to learn from; the statistics take in the whole rollout first, so that few are enough."""
        discounted = []
        for step in rollout:
            self._discounted = self._discounted * self._settings.gamma + step.reward
            discounted.append(self._discounted)
        self._returns.update(np.array(discounted))
        rewards = np.array([step.reward for step in rollout]) / np.sqrt(self._returns.var + _REWARD_EPSILON)
        clipped: NDArray[np.float64] = np.clip(rewards, -_REWARD_CLIP, _REWARD_CLIP)
        return clipped

    def _learning_rate(self) -> float:
        fall = 1 - self._settings.learning_rate_floor
        return self._settings.learning_rate * (1 - fall * min(1.0, self._progress))


class _SpacesOnly(gymnasium.Env[Vector, NDArray[np.int64]]):
    """Stands where PPO wants an environment, of which it reads the spaces; it is never stepped."""

    def __init__(
        self, observation_space: gymnasium.Space[Vector], action_space: gymnasium.Space[NDArray[np.int64]]
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
