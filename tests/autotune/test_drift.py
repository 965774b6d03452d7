"""The watch over the user's configuration, and what its readings say of the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.drift import BaselineWatch, Reading, noise_ratio, readings, spells, widest_ratio
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.remeasuring import Remeasured
from autotune.report import StudySummary, steadiness
from autotune.report.findings import cautions
from autotune.searchers.optuna import OptunaSearcher
from autotune.study import StopRequest

START = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


class Silence:
    def remeasuring(self, number, text):
        pass

    def remeasured(self, number, text):
        pass


@pytest.fixture
def make(tmp_path):
    storage = storages.connect(f"sqlite:///{tmp_path}/autotune.db")

    def made(name="sim", **changes):
        raw = {
            "name": name,
            "ds_config": START,
            "evaluator": "simulated",
            "trials": 11,
            "hardware": {"accelerator": "cpu", "ranks": 2},
            "baseline_every": 3,
            **changes,
        }
        return campaigns.create(campaigns.parse(raw, where="test"), storage, name=name)

    yield made
    storage.close()


def run(stored, *, stop=None, watch=None) -> StudySummary:
    with campaigns.study(stored, stop=stop) as study:
        searcher = OptunaSearcher(study.space, sampler="random", seed=0)
        study.run(searcher, between=watch(study) if watch else campaigns.watch(stored, study, Silence()))
    return campaigns.summary(stored)


def reading(after, speed, *, failure=None):
    result = Remeasured(failure=failure) if failure else Remeasured(samples_per_second=speed, convergence_per_second=1)
    return Reading(after_trial=after, executed_trials=after + 1, result=result, at="2026-01-01T00:00:00+00:00")


def test_the_baseline_is_run_again_after_so_many_trials(make):
    summary = run(make())
    assert [(each.after_trial, each.executed_trials) for each in summary.readings] == [(2, 3), (5, 6), (8, 9)]
    first = summary.baseline.measurement.samples_per_second
    speeds = [each.result.samples_per_second / first for each in summary.readings]
    assert len({*speeds, 1.0}) == 4  # each with a noise of its own
    assert all(0.9 < speed < 1.1 for speed in speeds)
    assert len(summary.trials) == 11


@pytest.mark.parametrize("changes", [{"baseline_every": 0}, {"simulated": {"noise": 0}}], ids=["off", "exact"])
def test_it_can_be_left_out(make, changes):
    assert run(make(**changes)).readings == ()


def test_a_study_that_goes_on_goes_on_being_watched(make):
    stored, stop = make(), StopRequest()
    taken = []

    def watch(study):
        def after(reading):
            taken.append(reading)
            stop()

        return BaselineWatch(study, stored, every=3, before=lambda: None, after=after)

    run(stored, stop=stop, watch=watch)
    assert len(taken) == len(readings(stored)) == 1
    resumed = run(stored)
    assert [each.after_trial for each in resumed.readings] == [2, 5, 8]
    assert resumed.readings[0] == taken[0]


def test_a_machine_that_slows_down_is_told_of(make, monkeypatch):
    """Everything that runs from trial 5 to trial 8 takes a third longer."""
    evaluate, slow = SimulatedEvaluator.evaluate, []

    def slower(self, request, **rest):
        outcome = evaluate(self, request, **rest)
        if not request.repeat:
            slow[:] = [1] if 5 <= request.number <= 8 else []
        if outcome.measurement is None or not slow:
            return outcome
        measured = outcome.measurement
        return replace(outcome, measurement=replace(measured, samples_per_second=measured.samples_per_second / 1.33))

    monkeypatch.setattr(SimulatedEvaluator, "evaluate", slower)
    summary = run(make())
    (spell,) = spells(
        summary.readings,
        samples_per_second=summary.baseline.measurement.samples_per_second,
        noise_floor=summary.rules.noise_floor,
    )
    assert (spell.first_trial, spell.last_trial) == (3, 8)
    assert spell.speed == pytest.approx(0.75, rel=0.05)
    said = steadiness.caution(summary)
    assert "slower in trials 3 to 8 than at the start" in said
    assert said in cautions(summary)
    assert steadiness.sentence(summary) == said


def test_a_steady_machine_is_said_to_be_so(make):
    summary = run(make())
    assert steadiness.caution(summary) is None
    assert "run again 3 times during the search" in steadiness.sentence(summary)
    assert steadiness.sentence(replace(summary, readings=())) is None


def test_spells_are_neighbouring_readings_beyond_noise():
    taken = [reading(8, 99), reading(16, 80), reading(24, 0, failure="CRASH: x"), reading(32, 78), reading(40, 130)]
    found = spells(taken, samples_per_second=100, noise_floor=0.05)
    assert [(each.first_trial, each.last_trial) for each in found] == [(9, 32), (33, 40)]
    assert found[0].speed == pytest.approx((0.8 * 0.78) ** 0.5)
    assert noise_ratio(0.05) == pytest.approx(1.1025)
    assert spells([reading(8, 91), reading(16, 110)], samples_per_second=100, noise_floor=0.05) == []


def test_how_far_runs_are_seen_to_differ():
    seen = {"samples_per_second": 100, "noise_floor": 0.05}
    assert widest_ratio([], **seen) == pytest.approx(1.1025)
    assert widest_ratio([reading(8, 95), reading(16, 80), reading(24, 110)], **seen) == pytest.approx(1.25)
    assert widest_ratio([reading(8, 140), reading(16, 0, failure="CRASH: x")], **seen) == pytest.approx(1.4)


def test_what_is_kept_comes_back(make):
    stored = make()
    run(stored)
    assert readings(stored) == campaigns.summary(stored).readings
