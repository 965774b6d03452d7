"""Trials, outcomes and budgets as values, and their way through JSON."""

import json
from dataclasses import replace

import pytest

from autotune.errors import CampaignError
from autotune.testing.searchers import finished_trial
from autotune.trials import (
    Budget,
    EndedBy,
    Failure,
    FailureKind,
    Intermediate,
    Outcome,
    Stage,
    TrialRequest,
    TrialState,
)


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
    with pytest.raises(ValueError, match="exactly one"):
        Outcome(measurement=measured.measurement, pruned="slow")


def test_a_pruned_trial_survives_json_counts_and_is_no_failure():
    course = tuple(
        Intermediate(training_time_s=t, timed_steps=3, samples_per_second=5.0, loss_before=2.0, training_loss=1.5)
        for t in (1.0, 2.0)
    )
    outcome = Outcome(pruned="clearly dominated", intermediates=course)
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome
    trial = replace(finished_trial(3, {}, 1.0), outcome=outcome, state=outcome.state)
    assert (trial.state, trial.counts, trial.failure, trial.measurement) == (TrialState.PRUNED, True, None, None)
    assert trial.intermediates == course


def test_a_measurement_keeps_its_floats_bit_for_bit():
    measured = finished_trial(0, {}, 1.0).outcome
    kept = replace(
        measured.measurement,
        training_losses=(1 / 3, 5.5451774597167969),
        step_times_s=(0.1 + 0.2,),
        step_time_interval=1 / 7,
        ended_by=EndedBy.PRECISION,
    )
    outcome = replace(measured, measurement=kept)
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome


def test_a_record_of_before_trials_adapted_their_length_is_read():
    data = finished_trial(0, {}, 1.0).outcome.to_json()
    for name in ("step_time_interval", "ended_by", "step_times_s", "training_losses"):
        del data["measurement"][name]
    del data["pruned"], data["intermediates"]
    old = Outcome.from_json(json.loads(json.dumps(data)))
    assert (old.measurement.step_time_interval, old.measurement.ended_by) == (None, None)
    assert old.measurement.training_losses == old.measurement.step_times_s == old.intermediates == ()


@pytest.mark.parametrize(
    ("budget", "complaint"),
    [
        ({}, "got nothing; give exactly one"),
        ({"seconds": 1, "steps": 1}, "give exactly one"),
        ({"seconds": 0}, "budget.seconds: got 0"),
        ({"seconds": float("inf")}, "budget.seconds: got inf; it must be above 0 and finite"),
        ({"steps": 5, "warmup_steps": -1}, "budget.warmup_steps: got -1"),
        ({"steps": 5, "precision": 0.0}, "budget.precision: got 0.0; it must be above 0 and below 1"),
        ({"steps": 5, "precision": 3}, "budget.precision: got 3; .* such as 0.03 for 3 %"),
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
