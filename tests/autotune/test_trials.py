"""Trials, outcomes and budgets as values, and their way through JSON."""

import json
from dataclasses import replace

import pytest

from autotune.errors import CampaignError
from autotune.testing.searchers import finished_trial
from autotune.trials import Budget, Failure, FailureKind, Outcome, Stage, TrialRequest


@pytest.mark.parametrize("score", [1.5, None])
def test_an_outcome_survives_json(score):
    outcome = replace(finished_trial(3, {}, score).outcome, duration_s=2.5, stage_s={"run": 2.0}, logs={"rank0": "/x"})
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome


def test_a_failure_survives_json_whole():
    failure = Failure(
        kind=FailureKind.TIMEOUT, reason="late", stage=Stage.RENDEZVOUS, rank=1, exit_code=-9, log_tail=("a", "b")
    )
    assert Outcome.from_json(json.loads(json.dumps(Outcome(failure=failure).to_json()))).failure == failure


def test_keys_of_a_newer_version_are_ignored():
    data = finished_trial(0, {}, 1.0).outcome.to_json()
    data["new"] = data["measurement"]["newer"] = 1
    assert Outcome.from_json(data) == finished_trial(0, {}, 1.0).outcome


def test_an_outcome_is_one_thing():
    measured = finished_trial(0, {}, 1.0).outcome
    failed = finished_trial(0, {}, None).outcome
    with pytest.raises(ValueError, match="exactly one"):
        Outcome()
    with pytest.raises(ValueError, match="exactly one"):
        Outcome(measurement=measured.measurement, failure=failed.failure)


@pytest.mark.parametrize(
    ("budget", "complaint"),
    [
        ({}, "got nothing; give exactly one"),
        ({"seconds": 1, "steps": 1}, "give exactly one"),
        ({"seconds": 0}, "budget.seconds: got 0"),
        ({"seconds": float("inf")}, "budget.seconds: got inf; it must be above 0 and finite"),
        ({"steps": 5, "warmup_steps": -1}, "budget.warmup_steps: got -1"),
    ],
)
def test_a_budget_is_one_positive_length(budget, complaint):
    with pytest.raises(CampaignError, match=complaint):
        Budget(**budget)


def test_equal_effective_configurations_have_equal_hashes():
    def request(**changes):
        given = {"number": 0, "point": {}, "ds_config": {"a": 1, "b": 2}, "budget": Budget(steps=1)}
        return TrialRequest(**given | changes)

    assert request().config_hash == request(number=5, point={"a": 1}, ds_config={"b": 2, "a": 1}).config_hash
    assert request().config_hash != request(ds_config={"a": 1, "b": 3}).config_hash
    assert request().config_hash != request(activation_checkpointing=True).config_hash
