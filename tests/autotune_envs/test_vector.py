"""Several proposals a step to one study: Gymnasium's vector environment and Stable-Baselines3's."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

import autotune_envs
from autotune.errors import SpaceError, StudyError
from autotune.evaluators.recorded import RecordedEvaluator
from autotune.runners import InlineRunner
from autotune.study import Silence, StopRequest
from autotune.testing.searchers import SMALL_SPACE, SPACE
from autotune.trials import Budget, FailureKind
from autotune_envs import DeepSpeedTuningEnv, DeepSpeedTuningVectorEnv, RelativeScore, WorkloadFeatures
from autotune_envs.training import CopyGatePolicy, StopWhenStudyEnds, StudyVecEnv

UNEQUAL = Budget(steps=20)
"""Equal steps take unequal time, so that trials finish in another order than they were started in."""


class Watch(Silence):
    def __init__(self, stop_at=None, stop=None):
        self.open = self.most = 0
        self.finished = []
        self.stop_at, self.stop = stop_at, stop

    def trial_started(self, trial):
        self.open += 1
        self.most = max(self.most, self.open)

    def trial_finished(self, trial):
        self.open -= 1
        self.finished.append(trial.number)
        if len(self.finished) == self.stop_at:
            self.stop()


def batches(envs, seed=0):
    envs.action_space.seed(seed)
    while True:
        yield np.array([envs.action_space.sample() for _ in range(envs.num_envs)])


def to_the_end(envs):
    """Reset and step until the episode ends; return the steps."""
    envs.reset()
    actions, steps = batches(envs), []
    while not steps or not steps[-1][2].any():
        steps.append(envs.step(next(actions)))
    return steps


def test_one_environment_is_the_single_environment(made_up_study):
    single, vector = DeepSpeedTuningEnv(made_up_study(trial_budget=8)), made_up_study(trial_budget=8)
    envs = StudyVecEnv(vector, num_envs=1)
    observation, _ = single.reset(seed=0)
    assert envs.reset().tolist() == [observation.tolist()]
    for actions in batches(envs):
        observation, reward, terminated, _, info = single.step(actions[0])
        _, rewards, dones, infos = envs.step(actions)
        ending = {"terminal_observation": observation, "TimeLimit.truncated": False} if terminated else {}
        assert rewards.tolist() == [np.float32(reward)]
        assert dones.tolist() == [terminated]
        assert infos[0].keys() == {**info, **ending}.keys()
        assert {key: infos[0][key] for key in info} == info
        if terminated:
            assert infos[0]["terminal_observation"].tolist() == observation.tolist()
            break


@pytest.mark.parametrize("slots", [1, 4])
def test_a_batch_runs_at_once_and_the_budget_is_exact(real_study, slots):
    watch = Watch()
    with real_study(trial_budget=30, slots=slots, budget=UNEQUAL, listener=watch) as study:
        steps = to_the_end(StudyVecEnv(study, num_envs=8))
        assert watch.most == slots
        repeats = sum(info["repeated"] for step in steps for info in step[3])
        assert len(study.history) == 30 - repeats > 25
    assert len(steps) == 4
    for observations, rewards, dones, infos in steps:
        assert observations.shape == (8, observations.shape[1])
        assert (observations == observations[0]).all()
        assert dones.all() or not dones.any()
        assert rewards.dtype == np.float32
        assert {info["trials_left"] for info in infos} == {infos[0]["trials_left"]}
    # 29 proposals after the baseline: three full batches and the first five of the last.
    last = [info["trial_number"] for info in steps[-1][3]]
    assert [number is None for number in last] == [False] * 5 + [True] * 3
    assert steps[-1][1][5:].tolist() == [0.0] * 3
    numbers = [info["trial_number"] for step in steps for info in step[3] if not info["repeated"]]
    assert sorted(number for number in numbers if number is not None) == [*range(1, len(study.history))]


def test_rewards_follow_the_order_of_results_and_sum_to_the_improvement(real_study):
    watch = Watch()
    with real_study(trial_budget=41, slots=8, budget=UNEQUAL, listener=watch) as study:
        steps = to_the_end(StudyVecEnv(study, num_envs=8))
        assert watch.finished != sorted(watch.finished)
        total = sum(float(rewards.sum()) for _, rewards, _, _ in steps)
        best = max(trial.score for trial in study.history if trial.score is not None)
        assert total == pytest.approx(best - study.baseline.score, rel=1e-5)
        assert best > study.baseline.score
        paid = {}
        for _, rewards, _, infos in steps:
            paid |= {info["trial_number"]: r for r, info in zip(rewards, infos, strict=True) if not info["repeated"]}
        running = study.baseline.score
        for trial in study.history[1:]:
            assert paid[trial.number] == pytest.approx(max(0.0, (trial.score or 0.0) - running), rel=1e-5, abs=1e-7)
            running = max(running, trial.score or 0.0)


def test_equal_proposals_of_one_step_run_once(made_up_study):
    study = made_up_study(trial_budget=10)
    envs = StudyVecEnv(study, num_envs=4)
    envs.reset()
    point, other = [0, 3, 2, 1, 0], [1, 3, 2, 1, 0]
    alike = [0, 3, 2, 1, 2]  # the last dimension has no effect at stage 0
    _, rewards, _, infos = envs.step(np.array([point, alike, other, point]))
    assert [info["repeated"] for info in infos] == [False, True, False, True]
    assert [info["trial_number"] for info in infos] == [1, 1, 2, 1]
    assert rewards[1] == rewards[3] == 0.0
    assert study.executed == 3


def test_a_repeat_is_worth_what_the_reward_says_of_it(made_up_study):
    study = made_up_study(failing=FailureKind.CRASH)
    envs = StudyVecEnv(study, num_envs=2, reward=RelativeScore())
    envs.reset()
    assert envs.step(np.array([[3, 1, 1, 1, 1]] * 2))[1].tolist() == [-1.0, -1.0]


def test_a_policy_that_only_repeats_itself_comes_to_an_end_and_leaves_the_budget(made_up_study):
    study = made_up_study(trial_budget=8)
    envs = StudyVecEnv(study, num_envs=3)
    envs.reset()
    ends = [envs.step(np.zeros((3, 5), dtype=np.int64))[2].all() for _ in range(3)]
    assert ends == [False, False, True]
    assert study.executed == 2
    assert envs.reset_infos[0]["trials_left"] == 6
    assert "ended" not in envs.reset_infos[0]


def test_a_stop_while_a_batch_runs_ends_the_episode(real_study):
    stop = StopRequest()
    watch = Watch(stop_at=3, stop=stop)
    with real_study(trial_budget=30, slots=2, stop=stop, listener=watch) as study:
        envs = StudyVecEnv(study, num_envs=6)
        envs.reset()
        _, _, dones, infos = envs.step(next(batches(envs)))
        assert dones.all()
        assert [info["trial_number"] for info in infos] == [1, 2, 3, None, None, None]
        assert {info["ended"] for info in infos} == {"stopped as asked"}
        _, rewards, dones, infos = envs.step(next(batches(envs, seed=1)))
        assert dones.all()
        assert not rewards.any()
        assert len(study.history) == 4


def test_ends_when_every_point_of_the_space_has_run(made_up_study):
    study = made_up_study(space=SMALL_SPACE)
    envs = StudyVecEnv(study, num_envs=4)
    envs.reset()
    _, _, dones, infos = envs.step(np.array([[1, 0], [1, 1], [0, 0], [0, 1]]))
    assert dones.all()
    assert {info["ended"] for info in infos} == {"every point of the space has run"}
    assert study.executed == 3


def test_ppo_learns_on_several_slots_runs_exactly_the_budget_and_is_the_same_by_seed(real_study):
    records = []
    for name in ("one", "two"):
        watch = Watch()
        with real_study(trial_budget=22, slots=4, budget=UNEQUAL, listener=watch, name=name) as study:
            envs = StudyVecEnv(study, num_envs=study.slots)
            model = PPO("MlpPolicy", envs, n_steps=4, batch_size=8, n_epochs=2, seed=0, device="cpu")
            before = [weights.clone() for weights in model.policy.parameters()]
            model.learn(10_000, callback=StopWhenStudyEnds())
            assert any(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))
            assert len(study.history) == 22
            assert len({trial.config_hash for trial in study.history}) == 22
            assert watch.most == 4
            assert model.num_timesteps < 100
            records.append([(trial.number, trial.point, trial.score) for trial in study.history])
    assert records[0] == records[1]


def test_recorded_trials_may_run_at_once_too(real_study, tmp_path):
    with real_study(trial_budget=16, name="recorded") as study:
        to_the_end(StudyVecEnv(study, num_envs=1))
        rows = [
            {"point": dict(trial.point), "is_baseline": trial.is_baseline, "outcome": trial.outcome.to_json()}
            for trial in study.history
        ]
    path = tmp_path / "trials.json"
    path.write_text(json.dumps(rows))
    runner = InlineRunner(RecordedEvaluator(path=str(path)), slots=2)
    with real_study(trial_budget=9, name="replayed", runner=runner) as study:
        PPO("MlpPolicy", StudyVecEnv(study, num_envs=2), n_steps=4, batch_size=8, seed=0, device="cpu").learn(8)
        assert len(study.history) == 9


def test_stable_baselines3s_wrappers_take_it(made_up_study):
    envs = StudyVecEnv(made_up_study(trial_budget=13), num_envs=3)
    wrapped = VecNormalize(VecMonitor(envs), norm_obs=False)
    PPO(CopyGatePolicy, wrapped, n_steps=4, batch_size=12, n_epochs=1, seed=0, device="cpu").learn(12)
    assert envs.get_attr("num_envs", [0, 2]) == [3, 3]
    assert not is_wrapped(envs, Monitor)
    assert not envs.has_attr("nothing")
    envs.set_attr("label", "x")
    assert envs.get_attr("label") == ["x"] * 3
    assert len(envs.env_method("reset", indices=1)) == 1
    wrapped.close()


def factory(made_up_study):
    return lambda generator: (made_up_study(trial_budget=int(generator.integers(6, 20))), WorkloadFeatures(ranks=2))


def test_a_study_per_episode_by_seed(made_up_study):
    lengths = []
    for seed in (5, 5, 6):
        envs = StudyVecEnv(num_envs=2, study_factory=factory(made_up_study), space=SPACE)
        envs.seed(seed)
        lengths.append([len(to_the_end(envs)) for _ in range(6)])
    assert lengths[0] == lengths[1] != lengths[2]
    PPO("MlpPolicy", envs, n_steps=8, batch_size=16, seed=0, device="cpu").learn(32)


def test_gymnasium_makes_it_and_it_has_the_spaces_of_copies_side_by_side(made_up_study):
    study = made_up_study(trial_budget=9)
    envs = gymnasium.make_vec(autotune_envs.ENV_ID, num_envs=3, study=study)
    assert isinstance(envs, DeepSpeedTuningVectorEnv)
    copies = SyncVectorEnv([lambda: DeepSpeedTuningEnv(made_up_study())] * 3)
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(envs, name) == getattr(copies, name)
    assert envs.metadata["autoreset_mode"] is copies.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observations, infos = envs.reset(seed=1)
    assert envs.observation_space.contains(observations)
    assert infos["trials_left"].tolist() == [8] * 3
    envs.action_space.seed(1)
    ends = []
    for _ in range(3):
        observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
        assert envs.observation_space.contains(observations)
        assert rewards.shape == terminations.shape == truncations.shape == (3,)
        assert not truncations.any()
        ends.append(terminations.tolist())
    assert ends == [[False] * 3, [False] * 3, [True] * 3]
    assert infos["_trial_number"].tolist() == [True, True, False]
    assert infos["trial_number"].tolist()[:2] == [7, 8]
    assert study.executed == 9
    _, rewards, terminations, _, infos = envs.step(envs.action_space.sample())  # begins again; nothing is left to run
    assert not terminations.any()
    assert infos["ended"].tolist() == ["the trial budget is spent"] * 3
    assert envs.step(envs.action_space.sample())[2].all()
    assert study.executed == 9
    envs.close()
    copies.close()


@pytest.mark.parametrize("made", [StudyVecEnv, DeepSpeedTuningVectorEnv])
def test_misuse_is_refused_with_words(made_up_study, made):
    study = made_up_study()
    with pytest.raises(StudyError, match="num_envs: got 0; it must be 1 or more"):
        made(study, num_envs=0)
    with pytest.raises(StudyError, match="either study="):
        made(num_envs=2)
    with pytest.raises(StudyError, match="call reset"):
        made(study, num_envs=2).step(np.zeros((2, 5), dtype=np.int64))
    with pytest.raises(SpaceError, match="got a study of sizes"):
        made(num_envs=2, study_factory=lambda _: (study, WorkloadFeatures()), space=SMALL_SPACE).reset()
    envs = made(study, num_envs=2)
    envs.reset()
    with pytest.raises(SpaceError, match="got index 9"):
        envs.step(np.array([[0, 0, 0, 0, 0], [9, 0, 0, 0, 0]]))
    assert study.executed == 1
