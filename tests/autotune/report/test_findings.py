"""What a report says in words."""

from __future__ import annotations

from dataclasses import replace

from autotune.report import headline, tally
from autotune.report.findings import SIMULATED, cautions


def test_the_gain(summary):
    assert headline(summary).startswith(f"Trial {summary.best.number} beats your configuration: ")
    assert f"R = {summary.best.score:.3f}" in headline(summary)
    assert tally(summary).startswith(f"24 of 24 trials executed; {len(summary.failed)} failed (")


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


def test_cautions(summary, altered):
    assert cautions(summary) == [SIMULATED]
    assert any("flattered by luck" in caution for caution in cautions(replace(summary, evaluator="deepspeed")))
    assert any("still running" in caution for caution in cautions(replace(summary, is_running=True)))
    assert any("replay" in caution for caution in cautions(replace(summary, evaluator="recorded")))
    unlearnt = altered(lambda t: replace(t, convergence_ratio=None))
    assert any("did not learn" in caution for caution in cautions(unlearnt))
