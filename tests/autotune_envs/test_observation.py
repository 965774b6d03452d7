"""The observation stays in its bounds whatever happens, and says what its table says."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune_envs
from autotune.hardware import Hardware
from autotune.testing.searchers import SPACE, finished_trial
from autotune.trials import Failure, FailureKind, Outcome, TrialState
from autotune_envs import DeepSpeedTuningEnv, StudyObserver, WorkloadFeatures, layout
from autotune_envs.observation import squash
from tests.autotune.test_space import DEFAULT

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def trials(draw):
    """Any trial of the space or outside it, measured or failed by any kind, with any numbers."""
    encoding = [draw(st.integers(0, size - 1)) for size in SPACE.sizes]
    point = draw(st.sampled_from([SPACE.decode(encoding), {}, {"precision": "fp64"}]))
    trial = finished_trial(draw(st.integers(0, 99)), point, 1.0, is_baseline=draw(st.booleans()))
    if draw(st.booleans()):
        trial = replace(trial, outcome=Outcome(pruned="made up"), state=TrialState.PRUNED)
    kind = draw(st.sampled_from([None, *FailureKind]))
    if kind is not None:
        failed = Outcome(failure=Failure(kind=kind, reason="made up"))
        return replace(trial, outcome=failed, score=None, throughput_ratio=None, convergence_ratio=None)
    return replace(
        trial,
        score=draw(st.none() | NUMBERS),
        throughput_ratio=draw(st.none() | NUMBERS),
        convergence_ratio=draw(st.none() | NUMBERS),
    )


@given(history=st.lists(trials(), max_size=12), remaining=st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_every_observation_is_finite_and_within_the_box(history, remaining):
    observer = StudyObserver(SPACE, WorkloadFeatures())
    space = observer.observation_space()
    for trial in [*history, None]:
        observation = observer.observation(remaining_budget=remaining)
        assert np.isfinite(observation).all()
        assert space.contains(observation)
        assert observation.dtype == np.float32
        if trial is not None:
            observer.add(trial)


amounts = st.none() | st.integers(0, 10**18)


@given(
    features=st.builds(
        WorkloadFeatures,
        cuda=st.none() | st.booleans(),
        ranks=amounts,
        device_memory_bytes=amounts,
        compute_capability=st.none() | st.floats(0, 100),
        parameter_count=amounts,
    )
)
def test_features_are_bounded_and_say_what_is_known(features):
    vector = features.vector()
    values, known = vector[: len(vector) // 2], vector[len(vector) // 2 :]
    assert ((vector >= 0) & (vector <= 1)).all()
    for name, value, is_known in zip(autotune_envs.FEATURE_NAMES, values, known, strict=True):
        assert is_known == (getattr(features, name) is not None)
        assert is_known or value == 0


def test_features_of_hardware_grow_with_it():
    small = Hardware(
        accelerator="cuda",
        device_name="A100",
        device_count=4,
        device_memory_bytes=40 * 2**30,
        host_memory_bytes=2**39,
        cpu_count=64,
        ranks=4,
        compute_capability=8.0,
    )
    big = replace(small, device_memory_bytes=80 * 2**30, ranks=64)
    few, many = (WorkloadFeatures.of(hardware, parameter_count=7 * 10**9).vector() for hardware in (small, big))
    grown = [name for name, a, b in zip(autotune_envs.FEATURE_NAMES, few, many, strict=False) if b > a]
    assert grown == ["ranks", "device_memory_bytes"]


@given(ratio=st.floats(-1e5, 1e5))
def test_squash_keeps_order_and_reads_a_half_at_the_baseline(ratio):
    assert squash(1.0) == 0.5
    assert -1 < squash(ratio) < 1
    assert squash(ratio + 1) > squash(ratio)


def test_fields_follow_each_other():
    fields = list(layout(SPACE.sizes).values())
    assert fields[0].name == "incumbent_levels"  # the copy gate relies on it
    assert [field.start for field in fields] == [0, *(field.stop for field in fields[:-1])]
    observer = StudyObserver(SPACE, WorkloadFeatures())
    assert observer.observation_space().shape == (fields[-1].stop,)


def test_the_docstring_gives_every_field_with_its_range_and_bounds():
    documented = []
    for line in DeepSpeedTuningEnv.__doc__.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 7 and ":" in cells[3]:
            documented.append((cells[1], cells[3], cells[4]))
    fields = layout(DEFAULT.sizes).values()
    assert documented == [(f.name, f"{f.start}:{f.stop}", f"{f.low:.0f}, 1") for f in fields]


def part(observer, name):
    field = observer.fields[name]
    return observer.observation(remaining_budget=0.5)[field.start : field.stop]


def one_hot(point):
    return np.concatenate([np.eye(size)[index] for size, index in zip(SPACE.sizes, SPACE.encode(point), strict=True)])


def test_the_observation_shows_incumbent_baseline_last_trials_and_levels():
    slow, best, lost = SPACE.decode([0, 0, 2, 0, 2]), SPACE.decode([3, 1, 2, 1, 0]), SPACE.decode([3, 4, 2, 1, 0])
    observer = StudyObserver(SPACE, WorkloadFeatures())
    for number, (point, score) in enumerate([(slow, 1.0), (best, 3.0), (lost, None)]):
        observer.add(finished_trial(number, point, score, is_baseline=number == 0))
    assert part(observer, "incumbent_levels").tolist() == one_hot(best).tolist()
    assert part(observer, "baseline_levels").tolist() == one_hot(slow).tolist()
    assert part(observer, "best_score") == 0.75
    assert part(observer, "remaining_budget") == 0.5
    assert part(observer, "scored_rate") == pytest.approx(2 / 3)
    assert part(observer, "failure_rates").tolist() == pytest.approx([0, 1 / 3, 0, 0, 0])
    recent = part(observer, "recent_trials").reshape(4, -1)
    assert recent[:, 0].tolist() == [1, 1, 1, 0]
    assert recent[0, 1:6].tolist() == pytest.approx([1, 1, 2 / 3, 1, 0])
    assert recent[:3, 8].tolist() == [0, 0.75, 0.5]
    assert recent[0, 9:].tolist() == [0, 1, 0, 0, 0]
    assert part(observer, "level_mean_scores")[2 + 9 : 4 + 9].tolist() == [0.625, 0]  # the learning rate's last two
    assert part(observer, "level_best_scores")[3] == 0.75
    assert part(observer, "level_failure_rates")[:4].tolist() == [0, 0, 0, 0.5]
    assert part(observer, "level_counts")[3] == pytest.approx(math.log(3) / math.log(4))


def test_a_baseline_outside_the_space_sets_the_best_score_but_no_levels():
    observer = StudyObserver(SPACE, WorkloadFeatures())
    observer.add(finished_trial(0, {}, 1.0, is_baseline=True))
    assert part(observer, "best_score") == 0.5
    assert not part(observer, "incumbent_levels").any()
    assert part(observer, "recent_trials")[1 : 1 + len(SPACE.sizes)].tolist() == [-1] * len(SPACE.sizes)
    assert observer.encodings == set()


def test_a_cancelled_trial_is_left_out():
    observer = StudyObserver(SPACE, WorkloadFeatures())
    before = observer.observation(remaining_budget=1)
    cancelled = Outcome(failure=Failure(kind=FailureKind.CANCELLED, reason="stopped"))
    observer.add(replace(finished_trial(1, SPACE.decode([0] * 5), None), outcome=cancelled))
    assert observer.observation(remaining_budget=1).tolist() == before.tolist()


@given(encoding=st.tuples(*(st.integers(0, size - 1) for size in SPACE.sizes)))
def test_action_point_encoding_agree(encoding):
    """What the observer keeps of an action's point is its canonical encoding, and decoding it gives the point back."""
    point = SPACE.decode(encoding)
    kept = StudyObserver(SPACE, WorkloadFeatures()).encoding_of(json.loads(json.dumps(point)))
    assert kept == SPACE.encode(point)
    assert SPACE.decode(kept) == point


def test_the_estimate_of_a_pruned_trial_counts_for_its_levels_and_never_as_the_best():
    observer = StudyObserver(SPACE, WorkloadFeatures())
    first, other = SPACE.decode([0] * len(SPACE.sizes)), SPACE.decode([1] * len(SPACE.sizes))
    observer.add(finished_trial(0, first, 1.0, is_baseline=True))
    pruned = replace(finished_trial(1, other, 3.0), outcome=Outcome(pruned="slow"), state=TrialState.PRUNED)
    observer.add(pruned)
    assert observer.best_score == 1.0
    assert (part(observer, "incumbent_levels") == one_hot(first)).all()
    assert part(observer, "scored_rate") == 1.0
    assert part(observer, "failure_rates").sum() == 0
    assert part(observer, "level_best_scores").max() == pytest.approx(squash(3.0))
