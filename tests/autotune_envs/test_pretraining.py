"""Pre-training: what it writes, that a resumed training is the unbroken one, and its network without torch."""

import json

import numpy as np
import pytest
import torch

from autotune.errors import SearcherError
from autotune.testing.searchers import SPACE
from autotune_envs.policy_file import CARD, WEIGHTS, load
from autotune_envs.pretrained import PretrainedSearcher
from autotune_envs.simulation import policy_observation_size
from autotune_envs.training import Pretraining, PretrainingSettings
from autotune_envs.training.pretraining import CHECKPOINT, CURVE, PICTURE, network_of

TINY = PretrainingSettings(
    steps=3 * 2 * 4 * 8,
    workloads=3,
    held_out=1,
    studies=8,
    n_steps=4,
    batch_size=16,
    leg_updates=2,
    cloning_legs=2,
    cloning_updates=2,
    layers=(12, 8),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    heard = []
    rows = Pretraining(folder, TINY, told=heard.append).run()
    assert heard == rows
    return folder, rows


def test_it_leaves_a_policy_that_proposes_a_curve_and_a_picture(trained):
    folder, rows = trained
    assert [row.leg for row in rows] == [1, 2, 3, 4, 5]
    assert [row.steps for row in rows] == [0, 0, 64, 128, 192]
    for row in rows:
        assert list(row.shares) == sorted(row.shares)
        assert 0 < row.shares[0] <= row.shares[-1] <= 1
    lines = (folder / CURVE).read_text().splitlines()
    assert lines[0].startswith("leg,steps,cpu_s,share_after_1,")
    assert len(lines) == 6
    assert (folder / PICTURE).read_text().count("<polyline") == 6
    card = json.loads((folder / CARD).read_text())
    assert card["leg"] == max(rows, key=lambda row: row.mean_share).leg
    assert PretrainedSearcher(SPACE, trial_budget=8, policy=load(folder)).ask()


@pytest.mark.parametrize("cut", [pytest.param(1, marks=pytest.mark.slow), 4])  # in the cloning, in PPO
def test_a_resumed_training_is_the_unbroken_one(trained, tmp_path, cut):
    whole, rows = trained

    def break_off(row):
        if row.leg == cut:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pretraining(tmp_path, TINY, told=break_off).run()
    resumed = Pretraining(tmp_path, TINY).run()
    assert [row.shares for row in resumed] == [row.shares for row in rows]
    assert (tmp_path / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    with np.load(tmp_path / CHECKPOINT) as there, np.load(whole / CHECKPOINT) as expected:
        assert set(there.files) == set(expected.files)
        for name in expected.files:
            np.testing.assert_array_equal(there[name], expected[name])


def test_a_folder_of_another_training_is_refused(trained):
    folder, _ = trained
    with pytest.raises(SearcherError, match="other settings"):
        Pretraining(folder, PretrainingSettings(seed=1))


def test_settings_out_of_range_are_refused():
    with pytest.raises(SearcherError, match=r"pretrain\.steps: got 0"):
        PretrainingSettings(steps=0)
    with pytest.raises(SearcherError, match=r"pretrain\.workloads: got 99999"):
        PretrainingSettings(workloads=99_999)


def test_the_network_without_torch_is_torchs(tmp_path):
    training = Pretraining(tmp_path, TINY)
    from autotune_envs.simulation import TRAINING, draw_cases
    from autotune_envs.training.simulated_vec_env import SimulatedVecEnv

    env = SimulatedVecEnv(draw_cases(TRAINING[:2]), 8, generator=np.random.default_rng(0))
    policy = training._model(env).policy
    observations = env.reset()
    assert observations.shape == (8, policy_observation_size())
    with torch.no_grad():
        expected = policy.logits(torch.as_tensor(observations)).numpy()
    allowed = observations[:, -expected.shape[1] :] > 0
    np.testing.assert_allclose(network_of(policy)(observations)[allowed], expected[allowed], atol=1e-5)
    assert (expected[~allowed] < -1e8).all()
