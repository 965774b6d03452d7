"""Stable-Baselines3's own PPO learns on the environment while every new step is a real DeepSpeed trial."""

import gymnasium
import pytest
from stable_baselines3 import PPO

import autotune_envs
from autotune import campaign as campaigns
from autotune import storage as storages
from autotune_envs.training import StudyVecEnv

DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "steps_per_print": 1000000,
}
CAMPAIGN = {
    "name": "env",
    "workload": {"function": "byte-gpt", "arguments": {"layers": 1, "width": 32, "held_out_sequences": 32}},
    "ds_config": DS_CONFIG,
    "hardware": {"ranks": 1, "accelerator": "cpu"},
    "budget": {"steps": 3, "warmup_steps": 1},
    "runner": "local",
    "trials": 4,
    "space": {"narrow": {"gradient_accumulation_steps": [1, 2], "train_micro_batch_size_per_gpu": [2, 4, 8]}},
}


@pytest.mark.real
def test_ppo_learns_on_real_trials(tmp_path):
    opened = storages.connect(f"sqlite:///{tmp_path}/autotune.db")
    campaign = campaigns.parse(CAMPAIGN | {"run_directory": str(tmp_path)}, where="test")
    stored = campaigns.create(campaign, opened, name="env")
    with campaigns.study(stored) as study:
        env = gymnasium.make(autotune_envs.ENV_ID, study=study)
        PPO("MlpPolicy", env, n_steps=4, batch_size=4, n_epochs=1, seed=0).learn(total_timesteps=4)
    executed = [trial for trial in stored.trials() if trial.counts]
    assert len(executed) == 4
    assert executed[0].is_baseline
    for trial in executed:
        assert trial.measurement is not None or trial.failure is not None
    assert executed[0].measurement.effective_config["train_micro_batch_size_per_gpu"] == 4
    opened.close()


@pytest.mark.real
def test_ppo_learns_on_batches_of_real_trials(tmp_path):
    """On one slot: a batch's trials run one after the other, and the last batch has room for one only."""
    opened = storages.connect(f"sqlite:///{tmp_path}/autotune.db")
    campaign = campaigns.parse(CAMPAIGN | {"run_directory": str(tmp_path)}, where="test")
    stored = campaigns.create(campaign, opened, name="envs")
    with campaigns.study(stored) as study:
        envs = StudyVecEnv(study, num_envs=2)
        PPO("MlpPolicy", envs, n_steps=2, batch_size=4, n_epochs=1, seed=0).learn(4)
    executed = [trial for trial in stored.trials() if trial.counts]
    assert len(executed) == 4
    assert len({trial.config_hash for trial in executed}) == 4
    assert all(trial.measurement is not None or trial.failure is not None for trial in executed)
    assert executed[0].measurement is not None
    opened.close()
