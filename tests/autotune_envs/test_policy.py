"""A policy that Stable-Baselines3 trained proposes for a study; its file is read without running code of it."""

import json
import zipfile

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

from autotune.errors import SearcherError
from autotune.testing.searchers import SMALL_SPACE, SPACE, SearcherContract, finished_trial
from autotune_envs import DeepSpeedTuningEnv, WorkloadFeatures
from autotune_envs.policy import trained_searcher
from autotune_envs.training import CopyGatePolicy, PpoSettings

KINDS = {
    "mlp": ("MlpPolicy", {}),
    "gate": (
        CopyGatePolicy,
        {"net_arch": {"pi": [24], "vf": [16, 16]}, "activation_fn": torch.nn.ReLU, "gate_init": 1.5},
    ),
}


def saved(kind, folder, study, space=SPACE):
    policy, keywords = KINDS[kind]
    env = DeepSpeedTuningEnv(
        study_factory=lambda _: (study(space, trial_budget=9), WorkloadFeatures(ranks=2)), space=space
    )
    model = PPO(policy, env, n_steps=16, batch_size=16, seed=0, device="cpu", policy_kwargs=keywords).learn(16)
    model.save(folder / f"{kind}.zip")
    return model, folder / f"{kind}.zip"


@pytest.mark.parametrize("kind", KINDS)
def test_its_first_proposal_is_the_mode_that_sb3_predicts(kind, made_up_study, tmp_path):
    model, path = saved(kind, tmp_path, made_up_study)
    study = made_up_study(trial_budget=9)
    env = DeepSpeedTuningEnv(study, features=WorkloadFeatures(ranks=2))
    observation, _ = env.reset()
    searcher = trained_searcher(path, SPACE, trial_budget=9, features=WorkloadFeatures(ranks=2))
    searcher.tell(study.history[0])
    mode = SPACE.decode(model.predict(observation, deterministic=True)[0].tolist())
    asked = searcher.ask()
    if mode != study.history[0].point:
        assert asked == mode
    assert asked != study.history[0].point


class TestTrainedPolicy(SearcherContract):
    @pytest.fixture(autouse=True)
    def _places(self, made_up_study, tmp_path):
        self.study, self.folder = made_up_study, tmp_path

    def make(self, space, seed):
        _, path = saved("gate", self.folder, self.study, space)
        return trained_searcher(path, space, trial_budget=20, seed=seed)

    def test_another_seed_other_proposals(self):
        """The mode comes first, whatever the seed; draws differ."""
        runs = []
        for seed in (1, 2):
            searcher = self.make(SPACE, seed)
            runs.append([searcher.ask() for _ in range(12)])
        assert runs[0] != runs[1]


def weights(searcher):
    return searcher.state()["networks"]


@pytest.mark.parametrize("learn", [False, True])
def test_it_stays_as_trained_unless_it_is_told_to_learn(learn, made_up_study, tmp_path):
    _, path = saved("mlp", tmp_path, made_up_study)
    settings = PpoSettings(n_steps=4, batch_size=4, mode_first=True, learn=True) if learn else None
    searcher = trained_searcher(path, SPACE, trial_budget=20, settings=settings)
    before = weights(searcher)
    for number in range(9):
        searcher.tell(finished_trial(number, searcher.ask(), float(number)))
    assert (weights(searcher) != before) == learn


def test_another_space_is_refused(made_up_study, tmp_path):
    _, path = saved("mlp", tmp_path, made_up_study)
    with pytest.raises(SearcherError, match=r"trained for levels \(4, 5, 4, 2, 3\); the space has \(2, 2\)"):
        trained_searcher(path, SMALL_SPACE, trial_budget=9)


def test_what_is_no_saved_policy_is_refused(tmp_path):
    with pytest.raises(SearcherError, match="no policy"):
        trained_searcher(tmp_path / "missing.zip", SPACE, trial_budget=9)
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(SearcherError, match="no policy"):
        trained_searcher(tmp_path / "text.zip", SPACE, trial_budget=9)
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("data", json.dumps({}))
    with pytest.raises(SearcherError, match="no policy"):
        trained_searcher(tmp_path / "empty.zip", SPACE, trial_budget=9)


def test_an_activation_that_is_not_known_is_refused(made_up_study, tmp_path):
    env = DeepSpeedTuningEnv(made_up_study())
    PPO("MlpPolicy", env, device="cpu", policy_kwargs={"activation_fn": torch.nn.Mish}).save(tmp_path / "mish.zip")
    with pytest.raises(SearcherError, match=r"got the activation .*Mish.*; it must be one of tanh"):
        trained_searcher(tmp_path / "mish.zip", SPACE, trial_budget=9)


def test_reading_a_file_runs_none_of_the_objects_in_it(made_up_study, tmp_path):
    _, path = saved("mlp", tmp_path, made_up_study)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(entries["data"])
    for value in data.values():
        if isinstance(value, dict) and ":serialized:" in value:
            value[":serialized:"] = "not a pickle: reading it would raise"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**entries, "data": json.dumps(data).encode()}.items():
            archive.writestr(name, content)
    assert trained_searcher(path, SPACE, trial_budget=9).ask()


def test_the_copy_gate_pulls_to_the_incumbents_levels():
    from gymnasium import spaces

    sizes = [3, 2]
    policy = CopyGatePolicy(
        spaces.Box(0, 1, (8,)), spaces.MultiDiscrete(sizes), lambda _: 1e-3, gate_init=2.0, net_arch=[4]
    )
    observation = torch.zeros(1, 8)
    observation[0, [1, 3]] = 1.0  # level 1 of the first dimension, level 0 of the second
    with torch.no_grad():
        first, second = policy.get_distribution(observation).distribution
    pull = np.exp(2.0)
    assert float(first.probs[0, 1]) == pytest.approx(pull / (pull + 2), abs=0.02)
    assert float(second.probs[0, 0]) == pytest.approx(pull / (pull + 1), abs=0.02)
    with pytest.raises(TypeError, match="MultiDiscrete"):
        CopyGatePolicy(spaces.Box(0, 1, (8,)), spaces.Discrete(3), lambda _: 1e-3)
