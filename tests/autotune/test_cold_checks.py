"""Warm trials run again cold: what is compared, when, and what is said of a difference."""

from dataclasses import replace

import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.cold_checks import ColdCheck, checks
from autotune.report import agreement
from autotune.report.findings import cautions
from autotune.searchers.optuna import OptunaSearcher
from autotune.testing.runners import measurement
from autotune.trials import Failure, FailureKind, Outcome, Trial, TrialState
from tests.autotune.evaluators.test_deepspeed import HERE

LOSSES = (5.5, 5.25, 5.0)


def outcome(*losses, before=5.6):
    measured = replace(measurement(samples_per_second=1.0), training_losses=losses, held_out_loss_before=before)
    return Outcome(measurement=measured)


def trial(result):
    return Trial(
        number=4,
        state=TrialState.COMPLETE,
        is_baseline=False,
        point={},
        ds_config={},
        activation_checkpointing=False,
        config_hash="",
        outcome=result,
    )


def check(warm, cold, tolerance=0.0):
    return ColdCheck.of(trial(warm), cold, tolerance=tolerance)


def test_equal_losses_agree_over_the_steps_that_both_have():
    found = check(outcome(*LOSSES), outcome(*LOSSES, 4.9, 4.8))
    assert found.agrees
    assert (found.compared_steps, found.difference) == (3, 0.0)


@pytest.mark.parametrize("cold", [outcome(5.5, 5.25, 5.0000000001), outcome(*LOSSES, before=5.7)])
def test_the_smallest_difference_is_one(cold):
    found = check(outcome(*LOSSES), cold)
    assert not found.agrees
    assert found.difference > 0
    assert check(outcome(*LOSSES), cold, tolerance=0.1).agrees


def test_a_cold_run_that_fails_does_not_agree():
    failed = Outcome(failure=Failure(kind=FailureKind.CRASH, reason="no such file"))
    found = check(outcome(*LOSSES), failed)
    assert not found.agrees
    assert found.failure == "CRASH: no such file"
    assert "no such file" in agreement.line(found)


@pytest.fixture
def run(tmp_path):
    storage = storages.connect(f"sqlite:///{tmp_path}/autotune.db")

    def run(function, **changes):
        raw = {
            "name": function,
            "ds_config": {
                "train_micro_batch_size_per_gpu": 4,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            },
            "workload": {"function": f"faulty_workloads:{function}"},
            "hardware": {"accelerator": "cpu", "ranks": 1},
            "space": {"fix": {"precision": "fp32"}, "remove": ["activation_checkpointing"]},
            "runner": "local",
            "budget": {"steps": 3, "precision": None},
            "finals": {"candidates": 0},
            "baseline_every": 0,
            "trials": 3,
            "run_directory": str(tmp_path / "runs"),
            "folder": str(HERE),
            **changes,
        }
        stored = campaigns.create(campaigns.parse(raw, where="test"), storage, name=function)
        heard = []

        class Listener:
            def remeasuring(self, number, text):
                heard.append((number, text))

            def remeasured(self, number, text):
                heard.append((number, text))

        with campaigns.study(stored) as study:
            searcher = OptunaSearcher(study.space, sampler="random", seed=0)
            study.run(searcher, between=campaigns.watch(stored, study, Listener()))
        return stored, heard

    yield run
    storage.close()


@pytest.mark.real
def test_a_study_checks_its_trials_and_goes_on_warm(run):
    stored, heard = run("healthy", cold_check_every=2)
    (found,) = checks(stored)
    assert found.agrees, found
    assert found.compared_steps >= 5
    assert [text for _, text in heard] == ["the same, cold", agreement.line(found)]
    summary = campaigns.summary(stored)
    assert summary.executed_count == 3
    assert agreement.sentence(summary) == "1 trial ran again in cold processes, with the same losses."
    assert agreement.caution(summary) is None
    assert not any("cold" in caution for caution in cautions(summary))


@pytest.mark.real
@pytest.mark.slow
def test_a_workload_that_differs_from_process_to_process_is_told(run):
    stored, _ = run("different_in_each_process", cold_check_every=2)
    (found,) = checks(stored)
    assert not found.agrees
    (told,) = [caution for caution in cautions(campaigns.summary(stored)) if "cold" in caution]
    assert "set execution: cold" in told
