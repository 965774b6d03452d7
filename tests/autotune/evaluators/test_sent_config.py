"""What was sent, compared with what the engine of a script runs; no engine is made here."""

import json
import math

import pytest

from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.rank_worker.failures import TrialFailed
from autotune.evaluators.script_files import ScriptAssignment
from autotune.evaluators.script_worker.sent_config import compare
from autotune.trials import Budget, FailureKind, TrialRequest

STAGE, RATE = "zero_optimization.stage", "optimizer.params.lr"
RUNS = {STAGE: 2, RATE: 1e-3, "scheduler.type": None}


def assignment(wanted, *searched):
    request = TrialRequest(number=0, point={}, ds_config={}, budget=Budget(steps=3))
    return ScriptAssignment(
        request=request,
        command=("python",),
        directory=".",
        ranks=2,
        device="cpu",
        wanted=wanted,
        searched=searched,
        deadlines=Deadlines(),
    )


def test_what_runs_as_sent():
    config = {"zero_optimization": {"stage": 2}, "optimizer": {"type": "ADAMW", "params": {"lr": "1e-3"}}}
    sent = {STAGE: 2, "optimizer.type": "AdamW", RATE: 0.001}
    compared = compare(config, RUNS, assignment(sent, STAGE, RATE))
    assert compared.differences == ()
    assert compared.effective[STAGE] == 2
    assert compared.config_hash == compare(config, RUNS, assignment(sent)).config_hash
    other = {**config, "zero_optimization": {"stage": 2.0}}
    assert compare({**config, "x": 1}, RUNS, assignment(sent)).config_hash == compared.config_hash
    assert compare(other, RUNS, assignment(sent)).config_hash != compared.config_hash


@pytest.mark.parametrize(
    ("config", "runs"),
    [
        ({"zero_optimization": {"stage": 1}}, {**RUNS, STAGE: 1}),
        ({"zero_optimization": {"stage": 3}}, {**RUNS, STAGE: 1}),  # the engine has the last word
    ],
)
def test_a_searched_key_that_is_overridden_is_named(config, runs):
    with pytest.raises(TrialFailed) as raised:
        compare(config, runs, assignment({STAGE: 3}, STAGE))
    assert raised.value.kind is FailureKind.INVALID_CONFIG
    assert f"overrides what is searched: {STAGE} (sent 3, the engine runs 1)" in str(raised.value)


def test_a_searched_key_that_never_arrived():
    with pytest.raises(TrialFailed, match=r"sent 5, the engine runs nothing"):
        compare({}, RUNS, assignment({"zero_optimization.sub_group_size": 5}, "zero_optimization.sub_group_size"))


def test_a_key_that_is_not_searched_is_only_told():
    compared = compare({"gradient_clipping": 0.5}, RUNS, assignment({"gradient_clipping": 1.0}, STAGE))
    assert compared.differences == ("gradient_clipping (sent 1.0, the engine runs 0.5)",)


def test_what_accelerate_always_does_is_not_told():
    config = {"steps_per_print": math.inf}
    compared = compare(config, RUNS, assignment({"steps_per_print": 100}))
    assert compared.differences == ()
    assert json.dumps(dict(compared.effective), allow_nan=False)
    (told,) = compare({"steps_per_print": 7}, RUNS, assignment({"steps_per_print": 100})).differences
    assert "the engine runs 7" in told


def test_a_rate_that_a_schedule_changes_is_compared_as_it_was_given():
    config = {"optimizer": {"params": {"lr": 1e-3}}}
    warming_up = {**RUNS, RATE: 0.0, "scheduler.type": "WarmupLR"}
    compared = compare(config, warming_up, assignment({RATE: 1e-3}, RATE))
    assert compared.effective[RATE] == 1e-3
    with pytest.raises(TrialFailed, match=RATE):
        compare(config, {**RUNS, RATE: 0.0}, assignment({RATE: 1e-3}, RATE))


def test_a_searched_key_that_the_script_sets_to_null_is_named():
    config = {"train_micro_batch_size_per_gpu": None, "train_batch_size": 16}
    sent = {"train_micro_batch_size_per_gpu": 4}
    with pytest.raises(TrialFailed, match=r"train_micro_batch_size_per_gpu .sent 4, the engine runs None") as caught:
        compare(config, RUNS, assignment(sent, "train_micro_batch_size_per_gpu"))
    assert caught.value.kind is FailureKind.INVALID_CONFIG
