"""A trained policy used as a searcher: PPO learnt elsewhere, on simulated or earlier studies, proposes here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.space import SearchSpace
from autotune_envs.features import WorkloadFeatures
from autotune_envs.reward import Reward
from autotune_envs.training import PpoSearcher, PpoSettings, SavedPolicy


def trained_searcher(
    path: Path | str,
    space: SearchSpace,
    *,
    trial_budget: int,
    seed: int = 0,
    features: WorkloadFeatures | None = None,
    reward: Reward | None = None,
    settings: PpoSettings | None = None,
) -> PpoSearcher:
    """Return a searcher that proposes by a policy saved with `model.save(path)`.

    Example:
        model = PPO(CopyGatePolicy, gymnasium.make("autotune/DeepSpeedTuning-v0", study_factory=..., space=space))
        model.learn(1_000_000)
        model.save("policy.zip")
        searcher = trained_searcher("policy.zip", space, trial_budget=16)

    Args:
        path: of the zip file.
        space: of the sizes that the policy was trained on.
        trial_budget: trials of the study, the baseline included.
        seed: of draws and updates.
        features: what is known of the workload and the hardware.
        reward: what a trial is worth, where the settings let the policy learn on.
        settings: of PPO; those of the networks come from the file. By default the policy stays as it was trained,
            and each proposal is its most probable action that is unknown, else a draw.

    Raises:
        SearcherError: when the file can't be used for this space.
    """
    policy = SavedPolicy.read(Path(path))
    chosen = replace(
        settings or PpoSettings(mode_first=True, learn=False),
        copy_gate=policy.copy_gate,
        pi_arch=policy.pi_arch,
        vf_arch=policy.vf_arch,
        activation=policy.activation,
    )
    return PpoSearcher(
        space,
        trial_budget=trial_budget,
        seed=seed,
        features=features,
        reward=reward,
        settings=chosen,
        policy=policy,
    )
