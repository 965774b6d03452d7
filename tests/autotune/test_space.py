"""The search space: canonical points, conditions, and the bijection with MultiDiscrete."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import SpaceError
from autotune.hardware import Hardware
from autotune.space import ACCUMULATION, MICRO_BATCH, Categorical, Condition, Float, GlobalBatch, Integer, SearchSpace
from autotune.testing.searchers import SMALL_SPACE, SPACE
from autotune_spaces import SpaceChanges, build

GPU = Hardware(
    accelerator="cuda",
    device_name="A",
    device_count=8,
    device_memory_bytes=80 * 2**30,
    host_memory_bytes=2**40,
    cpu_count=96,
    ranks=8,
    compute_capability=8.0,
)
DEFAULT = build(SpaceChanges(), GPU, start={})
STAGE = "zero_optimization.stage"
OFFLOAD = "zero_optimization.offload"


def values(space, indices):
    return {d.name: d.levels[i] for d, i in zip(space.dimensions, indices, strict=True)}


@settings(max_examples=300)
@given(st.data())
def test_encoding_is_a_bijection_on_canonical_points(data):
    indices = tuple(data.draw(st.integers(0, size - 1)) for size in DEFAULT.sizes)
    point = DEFAULT.decode(indices)
    DEFAULT.check(point)
    encoding = DEFAULT.encode(point)
    assert DEFAULT.decode(encoding) == point
    assert DEFAULT.encode(DEFAULT.decode(encoding)) == encoding
    assert all(0 <= index < size for index, size in zip(encoding, DEFAULT.sizes, strict=True))


def test_equal_encodings_are_equal_points_and_the_count_is_exact():
    for space in (SPACE, SMALL_SPACE):
        every = [space.decode(indices) for indices in itertools.product(*(range(n) for n in space.sizes))]
        distinct = {tuple(sorted(point.items())) for point in every}
        assert len(distinct) == len({space.encode(point) for point in every}) == space.count
        assert list(space.points()) == sorted(space.points(), key=space.encode)
        assert len(list(space.points())) == space.count


def test_the_default_space_counts_its_points():
    # micro 7 x accumulation 5 x rate 7 x precision 3 x checkpointing 2 = 1470 for each of:
    # stage 0: 1; stages 1, 2: offload 2 x reduce 6 x allgather 6 x overlap 2; stage 3: offload 3 x 6 x 2 x 5 x 4
    assert DEFAULT.count == 1470 * (1 + 2 * (2 * 6 * 6 * 2) + 3 * 6 * 2 * 5 * 4)


def test_knobs_without_effect_are_left_out_of_the_point():
    point = DEFAULT.canonical(values(DEFAULT, [0] * 12) | {STAGE: 0})
    assert not [name for name in point if "bucket" in name or "stage3" in name or "overlap" in name]
    at_three = DEFAULT.canonical(values(DEFAULT, [0] * 12) | {STAGE: 3})
    assert "zero_optimization.allgather_bucket_size" not in at_three
    assert "zero_optimization.stage3_max_live_parameters" in at_three


@pytest.mark.parametrize(
    ("stage", "asked", "effective"),
    [
        (0, "optimizer", "none"),
        (0, "optimizer_and_parameters", "none"),
        (2, "optimizer", "optimizer"),
        (2, "optimizer_and_parameters", "optimizer"),
        (3, "optimizer_and_parameters", "optimizer_and_parameters"),
    ],
)
def test_offload_falls_back_to_what_deepspeed_does(stage, asked, effective):
    point = DEFAULT.canonical(values(DEFAULT, [0] * 12) | {STAGE: stage, OFFLOAD: asked})
    assert point[OFFLOAD] == effective


def test_a_point_outside_is_refused_by_name():
    good = SPACE.decode([0] * 5)
    with pytest.raises(SpaceError, match=r"precision: got 'int8'; it must be one of \['fp32', 'bf16'\]"):
        SPACE.check(good | {"precision": "int8"})
    with pytest.raises(SpaceError, match="colour: no such dimension"):
        SPACE.check(good | {"colour": 1})
    with pytest.raises(SpaceError, match="train_micro_batch_size_per_gpu: missing"):
        SPACE.check({STAGE: 0})
    with pytest.raises(SpaceError, match=r"stage3_max_live_parameters: got 1000000000; here it has no effect"):
        SPACE.check(good | {"zero_optimization.stage3_max_live_parameters": 10**9})
    with pytest.raises(SpaceError, match="got 2 indices; the space has 5 dimensions"):
        SPACE.decode([0, 0])
    with pytest.raises(SpaceError, match=r"precision: got index 2; it has levels 0 to 1"):
        SPACE.decode([0, 0, 0, 2, 0])


@pytest.mark.parametrize("number", [True, 1.0])
def test_levels_of_other_types_are_told_apart(number):
    flag = Categorical(name="flag", levels=(False, True), default=False)
    if number is True:
        assert flag.index(True) == 1
    else:
        with pytest.raises(SpaceError):
            flag.index(number)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Integer(name="n", levels=(), default=0), "no levels"),
        (lambda: Integer(name="n", levels=(1, 1), default=1), "every level may appear once"),
        (lambda: Integer(name="n", levels=(2, 1), default=1), "numbers must rise"),
        (lambda: Integer(name="n", levels=(1.5,), default=1.5), "it must be a whole number"),
        (lambda: Integer(name="n", levels=(0, 1), default=0, log=True), "must be above 0"),
        (lambda: Integer(name="n", levels=(1, 10**30), default=1), "may go up to 9007199254740992"),
        (lambda: Float(name="n", levels=(1.0, 10**400), default=1.0), "may go up to 9007199254740992"),
        (lambda: Float(name="n", levels=(float("nan"),), default=1.0), "finite number"),
        (lambda: Categorical(name="n", levels=("a",), default="b"), "default 'b' is not one of its levels"),
        (lambda: Categorical(name="n", levels=(("a", "b"),), default="a"), "numbers, texts or booleans"),
    ],
)
def test_a_malformed_dimension_is_refused(make, complaint):
    with pytest.raises(SpaceError, match=complaint):
        make()


def test_conditions_look_back_only():
    late = Condition(dimension="late", allowed=(1,))
    early = Integer(name="early", levels=(1, 2), default=1, conditions=(late,))
    with pytest.raises(SpaceError, match="early: its condition names 'late'"):
        SearchSpace(dimensions=(early, Integer(name="late", levels=(1,), default=1)))
    assert SearchSpace(dimensions=(early,), fixed={"late": 1}).count == 2
    assert SearchSpace(dimensions=(early,), given={"late": 2}).count == 1
    with pytest.raises(SpaceError, match="appears twice"):
        SearchSpace(dimensions=(early,), fixed={"late": 1, "early": 1})


def test_a_fixed_global_batch_derives_accumulation():
    micro = Integer(name=MICRO_BATCH, levels=(1, 2, 4), default=1)
    space = SearchSpace(dimensions=(micro,), global_batch=GlobalBatch(samples=16, data_parallel_size=2))
    assert [space.settings({MICRO_BATCH: m})[ACCUMULATION] for m in (1, 2, 4)] == [8, 4, 2]
    with pytest.raises(SpaceError, match="12 = micro-batch 4 x accumulation x 2 ranks has no whole solution"):
        SearchSpace(dimensions=(micro,), global_batch=GlobalBatch(samples=12, data_parallel_size=2))
    accumulation = Integer(name=ACCUMULATION, levels=(1,), default=1)
    with pytest.raises(SpaceError, match="derived from the global batch"):
        SearchSpace(dimensions=(accumulation,), global_batch=GlobalBatch(samples=16, data_parallel_size=2))


def test_sampling_covers_the_space_and_follows_its_generator():
    draws = [SMALL_SPACE.sample(np.random.default_rng(seed)) for seed in range(60)]
    assert len({tuple(sorted(point.items())) for point in draws}) == 3
    assert SPACE.sample(np.random.default_rng(5)) == SPACE.sample(np.random.default_rng(5))


def test_restrict_moves_the_default_to_the_nearest_level():
    rate = Float(name="lr", levels=(1e-5, 1e-4, 1e-3), default=1e-3, log=True)
    assert rate.restrict([1e-5, 2e-4]).default == 2e-4
    assert Categorical(name="c", levels=("a", "b"), default="a").restrict(["b"]).default == "b"


def test_what_never_reaches_the_training_can_not_be_changed():
    unavailable = {MICRO_BATCH: "the script sets it"}
    assert MICRO_BATCH not in build(SpaceChanges(), GPU, start={}, unavailable=unavailable).names
    for change in ({"fix": {MICRO_BATCH: 4}}, {"narrow": {MICRO_BATCH: [4]}}, {"global_batch_size": 64}):
        with pytest.raises(SpaceError, match=r"space\.(fix|narrow|global_batch_size).*: the script sets it"):
            build(SpaceChanges.model_validate(change), GPU, start={}, unavailable=unavailable)


def test_what_a_space_decides_is_searched_fixed_or_derived():
    changes = {"global_batch_size": 64, "fix": {"precision": "bf16"}}
    space = build(SpaceChanges.model_validate(changes), GPU, start={})
    assert set(space.decided) == {*space.names, "precision", ACCUMULATION}
    assert len(space.decided) == len(space.names) + 2
