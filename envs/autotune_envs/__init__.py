"""autotune_envs: tuning as a Gymnasium environment, and agents that learn from it.

Importing this package registers `autotune/DeepSpeedTuning-v0` with Gymnasium, which reads no entry points since 1.0:

    import autotune_envs, gymnasium
    env = gymnasium.make("autotune/DeepSpeedTuning-v0", study=study)
    envs = gymnasium.make_vec("autotune/DeepSpeedTuning-v0", num_envs=study.slots, study=study)

`gymnasium.make("autotune_envs:autotune/DeepSpeedTuning-v0", study=study)` needs no import. torch and stable-baselines3
load with `autotune_envs.training` and `autotune_envs.policy` only.
"""

from __future__ import annotations

import gymnasium

from autotune_envs.episode import StudyFactory, TuningStudy
from autotune_envs.features import FEATURE_NAMES, WorkloadFeatures
from autotune_envs.observation import FAILURE_KINDS, StudyObserver, layout
from autotune_envs.reward import Improvement, RelativeScore, Reward
from autotune_envs.tuning import DeepSpeedTuningEnv
from autotune_envs.vector import DeepSpeedTuningVectorEnv

__all__ = [
    "ENV_ID",
    "FAILURE_KINDS",
    "FEATURE_NAMES",
    "DeepSpeedTuningEnv",
    "DeepSpeedTuningVectorEnv",
    "Improvement",
    "RelativeScore",
    "Reward",
    "StudyFactory",
    "StudyObserver",
    "TuningStudy",
    "WorkloadFeatures",
    "layout",
    "register",
]

ENV_ID = "autotune/DeepSpeedTuning-v0"


def register() -> None:
    """Register the environment with Gymnasium; again is harmless."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            ENV_ID,
            entry_point="autotune_envs.tuning:DeepSpeedTuningEnv",
            vector_entry_point="autotune_envs.vector:DeepSpeedTuningVectorEnv",
            nondeterministic=True,
        )


register()
