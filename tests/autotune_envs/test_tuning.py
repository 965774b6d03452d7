"""The Gymnasium environment: both checkers, one trial per new proposal, never a trial beyond the budget."""

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import autotune_envs
from autotune.errors import SpaceError, StudyError
from autotune.study import StopRequest
from autotune.testing.searchers import SMALL_SPACE, SPACE
from autotune.trials import FailureKind
from autotune_envs import DeepSpeedTuningEnv, RelativeScore, WorkloadFeatures
from autotune_envs.training import CopyGatePolicy, StopWhenStudyEnds


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_import_registers_the_environment_and_loads_neither_torch_nor_sb3():
    code = "import autotune_envs, gymnasium, sys; gymnasium.spec('autotune/DeepSpeedTuning-v0'); print(*sys.modules)"
    done = run(code)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "stable_baselines3", "optuna", "ray", "deepspeed"}


def test_gymnasium_finds_it_by_module_and_name_without_an_import():
    code = """
import gymnasium
try:
    gymnasium.make("autotune_envs:autotune/DeepSpeedTuning-v0")
except Exception as error:
    print(type(error).__name__, error)
"""
    assert "give either study=" in run(code).stdout


def test_passes_gymnasiums_checker(made_up_study):
    env = gymnasium.make(autotune_envs.ENV_ID, study=made_up_study()).unwrapped
    check_env(env)


def test_passes_stable_baselines3s_checker(made_up_study):
    sb3_check_env(DeepSpeedTuningEnv(made_up_study()), warn=True, skip_render_check=False)


def test_passes_both_checkers_with_a_study_per_episode(made_up_study):
    def factory(generator):
        return made_up_study(trial_budget=int(generator.integers(5, 9))), WorkloadFeatures(ranks=2)

    env = gymnasium.make(autotune_envs.ENV_ID, study_factory=factory, space=SPACE)
    check_env(env.unwrapped)
    sb3_check_env(env.unwrapped)


def test_a_new_proposal_runs_one_trial_and_pays_by_the_reward(made_up_study):
    study = made_up_study()
    env = DeepSpeedTuningEnv(study)
    env.reset(seed=0)
    assert [trial.is_baseline for trial in study.history] == [True]
    env.action_space.seed(0)
    best = 1.0
    for _ in range(8):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        trial = study.history[-1]
        assert info["trial_number"] == trial.number
        assert info["point"] == trial.point
        assert info["repeated"] is False
        assert reward == pytest.approx(max(0.0, (trial.score or 0.0) - best))
        best = max(best, trial.score or 0.0)
        assert info["best_score"] == best
        assert not terminated
        assert not truncated
    assert study.executed == 9


def test_another_reward_may_be_given(made_up_study):
    env = DeepSpeedTuningEnv(made_up_study(failing=FailureKind.CRASH), reward=RelativeScore())
    env.reset()
    assert env.step(np.array([3, 1, 1, 1, 1]))[1] == -1.0


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_failed_trial_is_a_reward_and_an_info(made_up_study, kind):
    study = made_up_study(failing=kind, trial_budget=6)
    env = DeepSpeedTuningEnv(study)
    env.reset(seed=1)
    env.action_space.seed(1)
    for _ in range(3):
        observation, reward, _, _, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        assert reward == 0.0
        assert info["failure_kind"] == kind
        assert info["failure_reason"] == f"made up: {kind}"


def test_a_repeat_runs_nothing_and_says_so(made_up_study):
    study = made_up_study(trial_budget=6)
    env = DeepSpeedTuningEnv(study)
    env.reset()
    action = np.array([0, 3, 2, 1, 0])
    alike = np.array([0, 3, 2, 1, 2])  # the last dimension has no effect at stage 0
    first = env.step(action)
    second = env.step(alike)
    assert (first[4]["repeated"], second[4]["repeated"]) == (False, True)
    assert second[4]["trial_number"] == first[4]["trial_number"]
    assert second[1] == 0.0
    assert study.executed == 2


def test_a_policy_that_only_repeats_itself_comes_to_an_end_and_leaves_the_budget(made_up_study):
    study = made_up_study(trial_budget=6)
    env = DeepSpeedTuningEnv(study)
    env.reset()
    steps = 1
    while not env.step(np.zeros(5, dtype=np.int64))[2]:
        steps += 1
    assert steps == 5
    assert study.executed == 2
    _, info = env.reset()
    assert info["trials_left"] == 4
    assert "ended" not in info


def test_nothing_runs_after_the_budget_is_spent(made_up_study):
    study = made_up_study(trial_budget=4)
    env = DeepSpeedTuningEnv(study)
    env.reset(seed=3)
    env.action_space.seed(3)
    ends = [env.step(env.action_space.sample())[2] for _ in range(6)]
    assert ends[2:] == [True] * 4
    _, info = env.reset()
    assert info["ended"] == "the trial budget is spent"
    _, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert (reward, terminated, truncated, info["trial_number"]) == (0.0, True, False, None)
    assert study.executed == 4


def test_ends_when_every_point_of_the_space_has_run(made_up_study):
    env = DeepSpeedTuningEnv(made_up_study(space=SMALL_SPACE, trial_budget=20))
    env.reset()
    env.step(np.array([1, 0]))
    _, _, terminated, _, info = env.step(np.array([1, 1]))
    assert terminated
    assert info["ended"] == "every point of the space has run"


def test_goes_on_with_a_study_that_has_trials(made_up_study):
    study = made_up_study(trial_budget=8)
    begun = DeepSpeedTuningEnv(study)
    begun.reset(seed=0)
    begun.action_space.seed(0)
    for _ in range(3):
        last = begun.step(begun.action_space.sample())
    resumed = DeepSpeedTuningEnv(study)
    observation, info = resumed.reset()
    assert info["trials_left"] == 4
    assert info["best_score"] == last[4]["best_score"]
    assert observation.tolist() == last[0].tolist()


def test_misuse_is_refused_with_words(made_up_study):
    study = made_up_study()
    with pytest.raises(StudyError, match="either study="):
        DeepSpeedTuningEnv()
    with pytest.raises(StudyError, match="either study="):
        DeepSpeedTuningEnv(study, study_factory=lambda _: (study, WorkloadFeatures()), space=SPACE)
    with pytest.raises(StudyError, match="call reset first"):
        DeepSpeedTuningEnv(study).step(np.zeros(5, dtype=np.int64))
    other = DeepSpeedTuningEnv(study_factory=lambda _: (study, WorkloadFeatures()), space=SMALL_SPACE)
    with pytest.raises(SpaceError, match="got a study of sizes"):
        other.reset()
    env = DeepSpeedTuningEnv(study)
    env.reset()
    with pytest.raises(SpaceError, match="got index 9"):
        env.step(np.array([9, 0, 0, 0, 0]))


def test_ppo_learns_by_sb3s_own_means_and_runs_exactly_the_budget(real_study):
    with real_study(trial_budget=30) as study:
        env = gymnasium.make(autotune_envs.ENV_ID, study=study)
        model = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=2, seed=0, device="cpu")
        before = [weights.clone() for weights in model.policy.parameters()]
        model.learn(total_timesteps=50)  # SB3 rounds this up to 64
        assert model.num_timesteps == 64
        assert len(study.history) == study.trial_budget == 30
        assert any(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))
        assert len({str(trial.point) for trial in study.history}) == 30


def test_learning_ends_with_the_study_where_the_callback_is_given(made_up_study):
    study = made_up_study(trial_budget=13)
    model = PPO(CopyGatePolicy, DeepSpeedTuningEnv(study), n_steps=8, batch_size=8, seed=0, device="cpu")
    model.learn(10_000, callback=StopWhenStudyEnds())
    assert study.executed == 13
    assert model.num_timesteps < 100


def test_a_stop_request_ends_the_episode_without_an_exception(real_study):
    stop = StopRequest()
    with real_study(trial_budget=10, stop=stop) as study:
        env = DeepSpeedTuningEnv(study)
        env.reset(seed=0)
        env.action_space.seed(0)
        env.step(env.action_space.sample())
        stop()
        _, reward, terminated, _, info = env.step(np.array([3, 4, 3, 1, 2]))
        assert (reward, terminated) == (0.0, True)
        assert "stopped as asked" in info["ended"]
        assert len(study.history) == 2


def test_simulated_studies_by_a_factory_train_a_policy(made_up_study):
    env = gymnasium.make(
        autotune_envs.ENV_ID,
        study_factory=lambda generator: (made_up_study(trial_budget=6), WorkloadFeatures(ranks=2)),
        space=SPACE,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PPO("MlpPolicy", env, n_steps=16, batch_size=16, seed=0, device="cpu").learn(64)
    assert model.num_timesteps == 64
