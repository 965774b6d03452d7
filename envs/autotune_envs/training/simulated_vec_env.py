"""Simulated studies as Stable-Baselines3 takes them: one environment each, all of them stepped at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from autotune_envs.features import FEATURE_COUNT, FEATURE_NAMES
from autotune_envs.observation import Vector, action_space
from autotune_envs.policy_space import policy_space
from autotune_envs.simulation import Cases, SimulatedStudies, policy_observation_size
from autotune_envs.simulation.grid import Rows, offsets
from autotune_envs.training.joint_vec_env import JointVecEnv

BUDGETS = (8, 64)
"""Fewest and most trials of an episode beside the baseline; drawn between, by the logarithm."""
HIDDEN_FEATURE = 0.2
"""Probability that a feature is not known in an episode."""
NARROWED_SPACE = 0.5
"""Share of episodes whose space lacks levels."""
NARROWED_DIMENSION = 0.3
"""Share of the dimensions of such a space that lack levels; of these a third are fixed."""

DISGUISED = 0.05
"""Share of the episodes on GPUs that look like a CPU study's: `evaluator: simulated` where there is no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReward:
    """What a step of pre-training is worth: the rise of a potential of the best share so far, less what waste costs.

    The potential is -log(1 + slack - share): the last tenth is worth as much as the first two thirds, or a policy would
    stop at a good point. Discounting makes an early rise worth more.
    """

    slack: float = 0.1
    failure: float = 0.02
    repeat: float = 0.02

    def potential(self, share: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(-np.log(1.0 + self.slack - share))


class SimulatedVecEnv(JointVecEnv):
    """`count` studies of cases drawn at random; an episode is one study's budget.

    Half of the episodes are of a narrowed space, and features are hidden at random, so that the policy bears both. On
    a CPU fp16 and offloading are always masked, as in a study there.

    Args:
        cases: to draw from.
        count: of studies.
        generator: of everything random.
        reward: what a step is worth.
    """

    render_mode: str | None = None

    def __init__(
        self, cases: Cases, count: int, *, generator: np.random.Generator, reward: StepReward | None = None
    ) -> None:
        self.studies = SimulatedStudies(cases, count)
        self._cases = cases
        self._generator = generator
        self._reward = reward or StepReward()
        self._actions: Rows | None = None
        self._infos: list[dict[str, Any]] = [{} for _ in range(count)]
        bound = np.ones(policy_observation_size(), dtype=np.float32)
        observations = gymnasium.spaces.Box(-bound, bound, dtype=np.float32)
        super().__init__(count, observations, action_space(policy_space().sizes))

    def reset(self) -> Vector:
        """Begin all episodes; return the observations, shape (count, size), float32."""
        self._begin(np.arange(self.num_envs))
        return self.studies.observations.copy()

    def step_async(self, actions: Rows) -> None:
        """Keep the actions, shape (count, dimensions), for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Vector, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Run the proposals; an episode that ends begins the next in the same step."""
        if self._actions is None:
            raise RuntimeError("SimulatedVecEnv.step_wait: call step_async first")
        worth, before = self._reward, self.studies.best_share
        done = self.studies.step(self._actions, self._generator)
        rewards = worth.potential(done.best_share) - worth.potential(before)
        rewards -= worth.failure * done.failed + worth.repeat * done.repeated
        if done.ended.any():
            self._begin(np.flatnonzero(done.ended))
        return self.studies.observations.copy(), rewards.astype(np.float32), done.ended, self._infos

    def _begin(self, studies: Rows) -> None:
        generator, count = self._generator, len(studies)
        case = generator.integers(len(self._cases), size=count)
        low, high = np.log(BUDGETS)
        budget = 1 + np.rint(np.exp(generator.uniform(low, high, count))).astype(np.int64)
        features = self._cases.features[case].reshape(count, 2, FEATURE_COUNT)
        shown = generator.uniform(size=(count, 1, FEATURE_COUNT)) >= HIDDEN_FEATURE
        disguised = ~self.on_cpu(case) & (generator.uniform(size=count) < DISGUISED)
        features[disguised, 0, FEATURE_NAMES.index("cuda")] = 0.0
        for name in _OF_GPUS:
            shown[disguised, 0, FEATURE_NAMES.index(name)] = False
        mask = random_masks(self._cases.baseline[case], self.on_cpu(case) | disguised, generator)
        self.studies.begin(
            studies, case, budget=budget, mask=mask, features=(features * shown).reshape(count, -1).astype(np.float32)
        )

    def on_cpu(self, case: Rows) -> NDArray[np.bool_]:
        """Return which cases train on CPUs."""
        return np.asarray(self._cases.features[case, FEATURE_NAMES.index("cuda")] == 0.0)


def random_masks(baseline: Rows, on_cpu: NDArray[np.bool_], generator: np.random.Generator) -> NDArray[np.bool_]:
    """Return masks of levels, shape (studies, levels): all levels, or with some dimensions cut to neighbouring levels.

    A cut holds the baseline's level three times of four, since a space is mostly narrowed around it.
    """
    space, count = policy_space(), len(baseline)
    levels = np.ones((count, sum(space.sizes)), dtype=np.bool_)
    narrowed = generator.uniform(size=count) < NARROWED_SPACE
    for place, (size, offset) in enumerate(zip(space.sizes, offsets(), strict=True)):
        cut = narrowed & (generator.uniform(size=count) < NARROWED_DIMENSION)
        centre = np.where(
            generator.uniform(size=count) < 0.75, baseline[:, place], generator.integers(size, size=count)
        )
        widths = np.where(generator.uniform(size=count) < 1 / 3, 1, generator.integers(1, size + 1, size=count))
        begin = np.clip(centre - generator.integers(0, widths), 0, size - widths)
        index = np.arange(size)[None, :]
        kept = (index >= begin[:, None]) & (index < (begin + widths)[:, None])
        levels[:, offset : offset + size] = kept | ~cut[:, None]
    for name, level in (
        ("precision", "fp16"),
        *((_OFFLOAD, level) for level in ("optimizer", "optimizer_and_parameters")),
    ):
        place = space.names.index(name)
        levels[on_cpu, offsets()[place] + space.dimensions[place].index(level)] = False
    for size, offset in zip(space.sizes, offsets(), strict=True):
        empty = ~levels[:, offset : offset + size].any(axis=1)
        levels[empty, offset] = True  # fp32, and no offloading
    return levels


_OFFLOAD = "zero_optimization.offload"
_OF_GPUS = ("device_count", "device_memory_bytes", "compute_capability")
