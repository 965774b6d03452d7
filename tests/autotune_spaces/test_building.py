"""Search spaces as data: the default one, hardware limits, and a user's changes."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from autotune.errors import SpaceError
from autotune.space import ACCUMULATION, MICRO_BATCH
from autotune_spaces import SpaceChanges, build
from tests.autotune.test_space import GPU

STAGE = "zero_optimization.stage"
CPU = replace(GPU, accelerator="cpu", device_count=1, compute_capability=None, ranks=2)
TURING = replace(GPU, compute_capability=7.5)


def space(hardware=GPU, start=None, **changes):
    return build(SpaceChanges.model_validate(changes), hardware, start=start or {})


def test_the_default_space_has_exactly_these_dimensions():
    assert sorted(space().names) == sorted(
        [
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            "optimizer.params.lr",
            "zero_optimization.stage",
            "zero_optimization.offload",
            "precision",
            "activation_checkpointing",
            "zero_optimization.reduce_bucket_size",
            "zero_optimization.allgather_bucket_size",
            "zero_optimization.overlap_comm",
            "zero_optimization.stage3_param_persistence_threshold",
            "zero_optimization.stage3_max_live_parameters",
        ]
    )
    assert 1_000_000 in space()["zero_optimization.stage3_param_persistence_threshold"].levels
    assert space()["optimizer.params.lr"].log
    assert space()[STAGE].levels == (0, 1, 2, 3)
    for dimension in space().dimensions:
        assert dimension.description
        assert dimension.source.endswith(".py")


def test_what_the_hardware_cannot_do_is_left_out_with_a_reason():
    on_cpu = space(CPU)
    assert on_cpu["precision"].levels == ("fp32", "bf16")
    assert on_cpu["zero_optimization.offload"].levels == ("none",)
    reasons = {(left.name, left.level): left.reason for left in on_cpu.left_out}
    assert "fp16" in reasons["precision", "fp16"]
    assert "nothing to offload to" in reasons["zero_optimization.offload", "optimizer"]
    assert space(TURING)["precision"].levels == ("fp32", "fp16")
    assert space().left_out == ()


def test_what_cannot_run_is_refused_when_asked_for():
    with pytest.raises(SpaceError, match=r"space.narrow.precision: 'fp16' can't run here: it isn't searched on a CPU"):
        space(CPU, narrow={"precision": ["fp16"]})
    with pytest.raises(SpaceError, match=r"space.fix.precision: 'fp16' can't run here"):
        space(CPU, fix={"precision": "fp16"})


def test_a_start_between_levels_becomes_a_level():
    assert 12 in space(start={MICRO_BATCH: 12})[MICRO_BATCH].levels
    assert 2e-4 in space(start={"optimizer.params.lr": 2e-4})["optimizer.params.lr"].levels
    assert 12 not in space(start={MICRO_BATCH: 12}, narrow={MICRO_BATCH: [4, 8]})[MICRO_BATCH].levels


def test_fixing_a_dimension_takes_it_out_and_sets_it():
    fixed = space(fix={STAGE: 2, "gradient_clipping": 1.0})
    assert STAGE not in fixed.names
    assert "zero_optimization.stage3_max_live_parameters" not in fixed.names
    point = fixed.decode([0] * len(fixed.dimensions))
    assert fixed.settings(point)[STAGE] == 2
    assert fixed.settings(point)["gradient_clipping"] == 1.0
    with pytest.raises(SpaceError, match="got 7; it must be one of"):
        space(fix={STAGE: 7})


def test_the_whole_batch_is_fixed_by_its_own_key_only():
    with pytest.raises(SpaceError, match=r"train_batch_size follows from .*; to fix it, give space.global_batch_size"):
        space(fix={"train_batch_size": 64})


def test_removing_the_stage_keeps_what_has_an_effect_at_the_users_own():
    at_one = space(remove=[STAGE], start={STAGE: 1})
    assert "zero_optimization.allgather_bucket_size" in at_one.names
    assert "zero_optimization.stage3_max_live_parameters" not in at_one.names
    reasons = {left.name: left.reason for left in at_one.left_out}
    assert "here it is 1" in reasons["zero_optimization.stage3_max_live_parameters"]
    assert STAGE not in at_one.settings(at_one.decode([0] * len(at_one.dimensions)))


@pytest.mark.parametrize("name", ["precision", "zero_optimization.offload"])
def test_a_dimension_that_is_not_searched_is_left_out_once(name):
    """A CPU runs neither fp16 nor offload, which is no news where nothing of the dimension is searched."""
    assert len([out for out in space(CPU).left_out if out.name == name]) >= 1
    (removed,) = [out for out in space(CPU, remove=[name]).left_out if out.name == name]
    assert (removed.level, removed.reason) == (None, "removed by the campaign (space.remove)")
    level = space(CPU)[name].levels[0]
    assert [out for out in space(CPU, fix={name: level}).left_out if out.name == name] == []


def test_narrowing_by_list_and_by_range():
    assert space(narrow={MICRO_BATCH: [8, 4]})[MICRO_BATCH].levels == (4, 8)
    assert space(narrow={MICRO_BATCH: {"low": 4, "high": 16}})[MICRO_BATCH].levels == (4, 8, 16)
    with pytest.raises(SpaceError, match="no level of"):
        space(narrow={MICRO_BATCH: {"low": 1000}})
    with pytest.raises(SpaceError, match="a range needs numbers"):
        space(narrow={"precision": {"low": 1}})
    with pytest.raises(SpaceError, match="it takes numbers"):
        space(narrow={MICRO_BATCH: ["four"]})


def test_adding_a_dimension():
    added = {
        "name": "zero_optimization.sub_group_size",
        "type": "integer",
        "levels": [10**8, 10**9],
        "log": True,
        "when": {STAGE: [3]},
    }
    wider = space(add=[added])
    assert wider.names[-1] == "zero_optimization.sub_group_size"
    point = wider.decode([0] * len(wider.dimensions))
    assert "zero_optimization.sub_group_size" not in point
    with pytest.raises(SpaceError, match="is in the base space already"):
        space(add=[added | {"name": STAGE, "when": {}}])
    assert space(base="empty", add=[added | {"when": {}}]).count == 2


def test_a_fixed_global_batch_keeps_the_micro_batches_that_divide_it():
    fixed = space(CPU, global_batch_size=48)
    assert ACCUMULATION not in fixed.names
    assert fixed[MICRO_BATCH].levels == (1, 2, 4, 8)
    reasons = {(left.name, left.level): left.reason for left in fixed.left_out}
    assert "16 x 2 ranks does not divide" in reasons[MICRO_BATCH, 16]
    assert "derived" in reasons[ACCUMULATION, None]
    for micro in (1, 2, 4, 8):
        assert fixed.settings({MICRO_BATCH: micro})[ACCUMULATION] * micro * 2 == 48
    with pytest.raises(SpaceError, match="choose a multiple of 8"):
        space(GPU, global_batch_size=12)


@pytest.mark.parametrize("where", ["remove", "narrow"])
def test_a_typo_is_met_with_the_nearest_name(where):
    changes = (
        {"remove": ["zero_optimization.stages"]} if where == "remove" else {"narrow": {"zero_optimization.stages": [1]}}
    )
    with pytest.raises(SpaceError, match=r"did you mean zero_optimization.stage\?"):
        space(**changes)


def test_unknown_base_and_unknown_keys_are_refused():
    with pytest.raises(SpaceError, match="it must be one of deepspeed, empty"):
        space(base="megatron")
    with pytest.raises(ValidationError):
        SpaceChanges.model_validate({"narow": {}})
