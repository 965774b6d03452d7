"""Simulated studies by the thousand answer and look like single ones: SimulatedEvaluator's and StudyObserver's."""

from dataclasses import replace

import numpy as np
import pytest

from autotune import ds_config as config_file
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.evaluators.simulated_workload import drawn
from autotune.objective import Objective, Reference
from autotune.study import Start
from autotune.testing.searchers import finished_trial
from autotune.trials import Budget, Failure, FailureKind, Outcome, TrialRequest
from autotune_envs import StudyObserver, WorkloadFeatures
from autotune_envs.policy_space import policy_space
from autotune_envs.simulation import HELD_OUT, TRAINING, Cases, SimulatedStudies, draw_cases
from autotune_envs.simulation.drawing import features_of
from autotune_envs.simulation.grid import canonical
from autotune_envs.training.simulated_vec_env import SimulatedVecEnv, random_masks

RANKS = 4
SECONDS = 7.0
START = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 3},
}


def random_encodings(count, seed=0):
    sizes = np.array(policy_space().sizes)
    return canonical(np.random.default_rng(seed).integers(sizes, size=(count, len(sizes))))


def usual_start():
    values = {dimension.name: dimension.default for dimension in policy_space().dimensions}
    values |= {
        "zero_optimization.stage": 3,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 4,
        "optimizer.params.lr": 1e-4,
    }
    return np.array(policy_space().encode(values))


@pytest.fixture(scope="module")
def few_cases():
    return draw_cases(TRAINING[:6])


def answers(seed, encodings):
    """Yield what `SimulatedEvaluator` says of each encoding: the score, or the kind of failure."""
    evaluator = SimulatedEvaluator(workload_seed=seed, noise=0.0)
    start = Start.of(config_file.complete(START, world_size=RANKS), policy_space())

    def outcome(settings):
        request = TrialRequest(
            number=1,
            point={},
            ds_config=config_file.build(start.ds_config, settings, world_size=RANKS),
            activation_checkpointing=bool(settings.get(config_file.ACTIVATION_CHECKPOINTING, False)),
            budget=Budget(seconds=SECONDS),
        )
        return evaluator.evaluate(request, hosts=(), progress=lambda _: None, cancelled=lambda: False)

    def settings_of(encoding):
        return dict(policy_space().settings(policy_space().decode(encoding.tolist())))

    reference = Reference.of(outcome(settings_of(usual_start())).measurement)
    for encoding in encodings:
        found = outcome(settings_of(encoding))
        yield found.failure.kind if found.failure else Objective().score(found.measurement, reference)


@pytest.mark.parametrize("seed", [3, 1004])
def test_the_world_answers_as_the_simulated_evaluator_does(seed):
    workload = drawn(seed, RANKS)
    cases = Cases.of([workload], [features_of(workload)], usual_start()[None], np.array([SECONDS]))
    encodings = random_encodings(30, seed)
    rows = np.zeros(30, dtype=np.int64)
    verdicts = cases.judge(rows, encodings)
    sure = cases.judge(rows, encodings, doubt=0.15).diverged == cases.judge(rows, encodings, doubt=-0.15).diverged
    kinds = set()
    for n, answer in enumerate(answers(seed, encodings)):
        if not sure[n]:
            continue  # the trial's own seed decides whether it diverges
        kinds.add(answer if isinstance(answer, FailureKind) else None)
        assert verdicts.out_of_memory[n] == (answer == FailureKind.OUT_OF_MEMORY)
        assert verdicts.diverged[n] == (answer == FailureKind.DIVERGED)
        if not isinstance(answer, FailureKind):
            assert verdicts.throughput_ratio[n] == pytest.approx(answer.throughput_ratio, rel=1e-9)
            assert verdicts.convergence_ratio[n] == pytest.approx(answer.convergence_ratio, rel=1e-9)
            assert verdicts.score[n] == pytest.approx(answer.value, rel=1e-9)
    assert len(kinds) > 1


def test_canonical_encodings_are_the_space_s():
    space = policy_space()
    sizes = np.array(space.sizes)
    drawn_indices = np.random.default_rng(1).integers(sizes, size=(300, len(sizes)))
    expected = [space.encode(space.decode(indices.tolist())) for indices in drawn_indices]
    assert canonical(drawn_indices).tolist() == [list(encoding) for encoding in expected]


def told(observer, number, encoding, verdict, *, is_baseline=False):
    point = policy_space().decode(encoding.tolist())
    throughput, convergence, score, out_of_memory, diverged = verdict
    if out_of_memory or diverged:
        kind = FailureKind.OUT_OF_MEMORY if out_of_memory else FailureKind.DIVERGED
        trial = finished_trial(number, point, None, is_baseline=is_baseline)
        observer.add(replace(trial, outcome=Outcome(failure=Failure(kind=kind, reason="simulated"))))
        return
    trial = finished_trial(number, point, float(score), is_baseline=is_baseline)
    observer.add(replace(trial, throughput_ratio=float(throughput), convergence_ratio=float(convergence)))


def test_observations_are_those_of_the_study_observer(few_cases):
    count, trials = 5, 12
    studies = SimulatedStudies(few_cases, count, noise=0.0, outliers=0.0)
    case = np.array([0, 5, 9, 14, 21])
    features = WorkloadFeatures(cuda=True, ranks=8, parameter_count=10**8)
    mask = np.random.default_rng(0).uniform(size=(count, sum(policy_space().sizes))) < 0.5
    studies.begin(
        np.arange(count),
        case,
        budget=np.full(count, trials + 1),
        mask=mask,
        features=np.tile(features.vector(), (count, 1)),
    )
    observers = [StudyObserver(policy_space(), features) for _ in range(count)]
    for observer, place in zip(observers, case, strict=True):
        told(observer, 0, few_cases.baseline[place], (1.0, 1.0, 1.0, False, False), is_baseline=True)
    generator = np.random.default_rng(2)
    for number in range(1, trials + 1):
        actions = random_encodings(count, number)
        if number == 3:
            actions[0] = few_cases.baseline[case[0]]  # a repeat: no trial
        state = generator.bit_generator.state
        done = studies.step(actions, generator)
        again = np.random.default_rng()
        again.bit_generator.state = state
        again.standard_normal(count)
        again.uniform(size=(2, count))
        doubt = 0.15 * again.uniform(-1.0, 1.0, count)
        verdicts = few_cases.judge(case, canonical(actions), doubt=doubt)
        for n, observer in enumerate(observers):
            assert done.repeated[n] == (n == 0 and number == 3)
            if not done.repeated[n]:
                names = ("throughput_ratio", "convergence_ratio", "score", "out_of_memory", "diverged")
                told(observer, number, canonical(actions)[n], [getattr(verdicts, name)[n] for name in names])
            expected = observer.observation(remaining_budget=1 - (1 + number) / (trials + 1))
            levels = sum(policy_space().sizes)
            np.testing.assert_allclose(studies.observations[n, :-levels], expected, atol=1e-6)
            assert (studies.observations[n, -levels:] == mask[n]).all()
            assert studies.best_score[n] == observer.best_score
        assert done.ended.all() == (number == trials)
    assert studies.best_share.max() <= 1.0


def test_the_optimum_is_no_worse_than_what_random_points_reach(few_cases):
    every = np.arange(len(few_cases))
    for seed in range(40):
        assert (few_cases.values(every, random_encodings(len(few_cases), seed)) <= few_cases.optimum_score * 1.02).all()
    again = few_cases.values(every, few_cases.optimum)
    np.testing.assert_allclose(again, few_cases.optimum_score)


def test_seeds_of_training_and_of_comparisons_are_apart():
    assert not set(TRAINING) & (set(HELD_OUT) | set(range(1000, 2000)))
    first, alone = draw_cases([7, 8]), draw_cases([8])
    np.testing.assert_array_equal(first.baseline[4:], alone.baseline)
    np.testing.assert_array_equal(first.features[4:], alone.features)


def test_masks_leave_every_dimension_a_level_and_a_cpu_neither_fp16_nor_offloading():
    generator = np.random.default_rng(0)
    baseline = random_encodings(400)
    on_cpu = np.arange(400) % 2 == 0
    masks = random_masks(baseline, on_cpu, generator)
    begin = 0
    for dimension in policy_space().dimensions:
        part = masks[:, begin : begin + len(dimension.levels)]
        begin += len(dimension.levels)
        assert part.any(axis=1).all()
        for level in {"precision": ["fp16"], "zero_optimization.offload": ["optimizer"]}.get(dimension.name, []):
            place = dimension.index(level)
            assert not part[on_cpu, place].any()
            assert part[~on_cpu, place].any()
    assert masks.all(axis=1).any()


def test_the_environment_rewards_a_rise_of_the_best_share_and_begins_again_when_a_budget_is_spent(few_cases):
    env = SimulatedVecEnv(few_cases, 16, generator=np.random.default_rng(0))
    observations = env.reset()
    assert env.observation_space.contains(observations[0])
    ended = 0
    for number in range(70):
        env.step_async(random_encodings(16, number))
        before = env.studies.best_share
        case = env.studies.case.copy()
        observations, rewards, dones, _ = env.step_wait()
        same = ~dones & (case == env.studies.case)
        after = env.studies.best_share
        rise = np.log((1.1 - before) / (1.1 - after))
        waste = np.where(rise > 0, 0.0, 0.02)
        assert (rewards[same] <= rise[same] + 1e-6).all()
        assert (rewards[same] >= (rise - waste)[same] - 1e-6).all()
        assert env.observation_space.contains(observations[0])
        ended += dones.sum()
    assert ended >= 16
