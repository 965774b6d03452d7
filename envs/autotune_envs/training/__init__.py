"""PPO on tuning studies: the one door to stable-baselines3. Importing it loads torch."""

from autotune_envs.training.callback import StopWhenStudyEnds
from autotune_envs.training.copy_gate import CopyGatePolicy
from autotune_envs.training.pretraining import Pretraining, PretrainingSettings
from autotune_envs.training.saved_policy import SavedPolicy
from autotune_envs.training.searcher import PpoSearcher
from autotune_envs.training.settings import PpoSettings
from autotune_envs.training.vec_env import StudyVecEnv

__all__ = [
    "CopyGatePolicy",
    "PpoSearcher",
    "PpoSettings",
    "Pretraining",
    "PretrainingSettings",
    "SavedPolicy",
    "StopWhenStudyEnds",
    "StudyVecEnv",
]
