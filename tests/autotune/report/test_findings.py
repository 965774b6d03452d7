"""What a report says in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import report
from autotune.errors import StudyError
from autotune.objective import Objective
from autotune.report import charts, headline, tables, tally
from autotune.report.findings import SIMULATED, cautions, length, r_of
from autotune.report.rescoring import rescored
from autotune.searchers.refusals import Refusal, Refusals
from autotune.trials import EndedBy, Outcome, TrialState


def test_the_gain(summary):
    assert headline(summary).startswith(f"Trial {summary.best.number} beats your configuration")
    assert f"R = {summary.best.score:.3f}" in headline(summary)
    assert tally(summary).startswith(f"24 of 24 trials executed; {len(summary.failed)} failed (")


@pytest.mark.parametrize(
    ("throughput", "convergence", "words"),
    [
        (1.5, 1.2, "beats your configuration: 1.50x the throughput and 1.20x"),
        (0.31, 2.1, "beats your configuration in R, not in throughput: 0.31x the throughput and 2.10x"),
        (2.5, 0.8, "beats your configuration in R, not in convergence speed: 2.50x the throughput and 0.80x"),
        (1.5, None, "beats your configuration: 1.50x the throughput (R"),
        (1.29, 0.999, "beats your configuration: 1.29x the throughput and 1.00x"),
    ],
)
def test_what_the_gain_costs_is_said(summary, altered, throughput, convergence, words):
    number = summary.best.number
    ratios = {"throughput_ratio": throughput, "convergence_ratio": convergence}
    told = altered(lambda trial: replace(trial, **ratios) if trial.number == number else trial)
    assert f"Trial {number} {words}" in headline(told)


def test_nothing_beat_the_start(altered, summary):
    flat = altered(lambda t: replace(t, score=t.score and (1.0 if t.is_baseline else 0.5)))
    assert headline(flat) == "Nothing beat your own configuration in 23 trials."
    only = replace(summary, trials=summary.trials[:1], trial_budget=1)
    assert headline(only) == "Your own configuration has been measured; nothing else has run yet."
    assert tally(only) == "1 of 1 trial executed; none failed."


def test_nothing_to_report(summary, altered, as_failed):
    assert headline(replace(summary, trials=())) == "No trial has run yet."
    assert headline(altered(as_failed)).startswith("None of 24 trials completed")


def test_a_failed_start(summary, altered, as_failed):
    without = altered(lambda t: as_failed(t) if t.is_baseline else t)
    assert "Your own configuration failed (out of memory)" in headline(without)
    assert any("R is relative to trial 1" in caution for caution in cautions(without))


def test_what_was_refused_is_said(summary):
    two = [Refusal(point={}, needed_bytes=needed, capacity_bytes=80e9) for needed in (95e9, 210e9)]
    many, one = (replace(summary, refusals=Refusals.of(each)) for each in (two, two[:1]))
    assert cautions(many)[1].startswith(
        "The memory filter refused 2 configurations without a trial: by the calibrated model they need 88.5 GiB to "
        "195.6 GiB or more of a device, and there are 74.5 GiB"
    )
    assert (
        "refused 1 configuration without a trial: by the calibrated model it needs 88.5 GiB or more" in cautions(one)[1]
    )
    assert Refusals.from_json(json.loads(json.dumps(Refusals.of(two).to_json()))) == Refusals.of(two)


def test_cautions(summary, altered):
    assert cautions(summary) == [SIMULATED]
    assert any("flattered by luck" in caution for caution in cautions(replace(summary, evaluator="deepspeed")))
    running = cautions(replace(summary, evaluator="deepspeed", is_running=True))
    assert any("still running" in caution for caution in running)
    assert not any("autotune validate" in caution for caution in running)
    assert any("replay" in caution for caution in cautions(replace(summary, evaluator="recorded")))
    unlearnt = altered(lambda t: replace(t, convergence_ratio=None))
    assert any("did not learn" in caution for caution in cautions(unlearnt))


def test_a_pruned_trial_is_told_of_apart_and_is_never_the_best(summary, altered, tmp_path):
    number, why = summary.best.number, "clearly dominated after 4 s of training"

    def prune(trial):
        return replace(trial, state=TrialState.PRUNED, outcome=Outcome(pruned=why)) if trial.number == number else trial

    pruned = altered(prune)
    assert pruned.best.number != number
    assert [trial.number for trial in pruned.pruned] == [number]
    assert len(pruned.failed) == len(summary.failed)
    assert tally(pruned).startswith(f"24 of 24 trials executed; 1 pruned; {len(summary.failed)} failed (")
    assert tables.pruned(pruned).rows == ((str(number), f"~{summary.best.score:.3f}", why),)
    assert tables.pruned(summary) is None
    report.write_html(pruned, tmp_path / "report.html")
    assert why in (tmp_path / "report.html").read_text()
    assert why in report.to_markdown(pruned)
    assert "pruned (estimate)" in [trace["name"] for trace in charts.progress(pruned)["data"]]


def test_the_estimate_of_a_pruned_trial_under_other_weights(summary):
    pruned = replace(
        summary.trials[1],
        state=TrialState.PRUNED,
        outcome=Outcome(pruned="slow"),
        throughput_ratio=0.5,
        convergence_ratio=0.1,
        score=0.3,
    )
    changed = replace(summary, trials=(summary.trials[0], pruned))
    assert r_of(rescored(changed, Objective(alpha=1.0, beta=0.0)).trials[1]) == "~0.500"


@pytest.mark.parametrize(
    ("interval", "ended_by", "words"),
    [
        (0.021, EndedBy.PRECISION, "12 steps, within 2.1 %"),
        (0.058, EndedBy.BUDGET, "12 steps, within 5.8 % when the budget ended"),
        (0.058, EndedBy.SCRIPT, "12 steps, within 5.8 % when the script ended"),
        (0.021, None, "12 steps, within 2.1 %"),
        (None, EndedBy.BUDGET, "12 steps"),
    ],
)
def test_how_long_a_trial_was_measured(summary, interval, ended_by, words):
    measurement = replace(summary.best.measurement, timed_steps=12, step_time_interval=interval, ended_by=ended_by)
    assert length(measurement) == words


def test_commands_to_type_next_name_the_storage(summary):
    elsewhere = replace(summary, storage_url="sqlite:///other.db", evaluator="deepspeed")
    assert any("autotune validate sim --storage sqlite:///other.db" in caution for caution in cautions(elsewhere))
    due = cautions(replace(elsewhere, finals_are_due=True))
    assert any("autotune resume sim --storage sqlite:///other.db" in caution for caution in due)
    with pytest.raises(StudyError, match=r"autotune trials sim --storage sqlite:///other\.db"):
        report.export(replace(elsewhere, trials=()), Path("best.json"))
