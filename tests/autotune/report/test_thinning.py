"""Studies of many trials: what is drawn and listed is bounded, what stands out is kept, and the page says so."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import report
from autotune.report import charts, page, parallel, tables, thinning
from autotune.report.thinning import drawn, listed, spread

COPIES = 150


@pytest.fixture
def many(summary):
    """The study of 24 trials, again and again, a little better each time."""
    trials = []
    for copy in range(COPIES):
        for trial in summary.trials:
            number = copy * len(summary.trials) + trial.number
            changed = replace(trial, number=number, is_baseline=number == 0)
            later = timedelta(seconds=10 * copy)
            changed = replace(changed, started_at=trial.started_at + later, finished_at=trial.finished_at + later)
            if trial.failure is not None:
                failure = replace(trial.failure, reason=f"{trial.failure.reason}, {number % 400}")
                changed = replace(changed, outcome=replace(trial.outcome, failure=failure))
            elif copy and trial.score is not None:
                changed = replace(changed, score=trial.score * (1 + copy / 1000))
            trials.append(changed)
    return replace(summary, trials=tuple(trials), trial_budget=len(trials))


def drawn_at_most(summary):
    """As many as are spread, and those that stand out: new bests, the Pareto set with its equals, start and best."""
    standing_out = 2 * COPIES + len(report.pareto(summary.finished)) + 3
    return 2 * thinning.DRAWN_TRIALS + standing_out


@given(st.lists(st.integers()), st.integers(2, 50))
def test_a_spread_keeps_order_ends_and_bound(items, limit):
    found = spread(items, limit)
    assert len(found) == min(limit, len(items))
    assert found[:1] == items[:1]
    assert found[-1:] == items[-1:]
    places = iter(enumerate(items))
    assert all(any(item == wanted for _, item in places) for wanted in found)


def test_a_small_study_is_shown_whole(summary):
    assert drawn(summary) is summary
    assert listed(summary) is summary
    assert thinning.drawn_in_words(summary) == thinning.listed_in_words(summary) == ""


def test_what_stands_out_is_drawn(many):
    few = drawn(many)
    assert len(few.trials) < len(many.trials) / 1.5
    assert len(few.trials) <= drawn_at_most(many)
    assert (few.best, few.baseline, few.reference) == (many.best, many.baseline, many.reference)
    assert report.pareto(few.finished) == report.pareto(many.finished)
    numbers = {trial.number for trial in few.trials}
    best = None
    for trial in many.completed:
        if best is None or trial.score > best:
            best = trial.score
            assert trial.number in numbers


def test_charts_and_tables_are_bounded(many):
    few = drawn(many)
    for figure in (charts.progress(few), charts.progress_in_time(few), charts.trade_off(few)):
        assert sum(len(trace["x"]) for trace in figure["data"]) <= 2 * drawn_at_most(many)
    lines = parallel.parallel_coordinates(few)
    assert any(trace["name"] == "your start" for trace in lines["data"])
    drawn_lines = sum(trace["x"].count(None) for trace in lines["data"])
    assert drawn_lines <= thinning.LINES + 3
    assert len(tables.trials(listed(many)).rows) <= thinning.LISTED_TRIALS + len(report.pareto(many.finished)) + 3
    for table in tables.failures(many).values():
        assert len(table.rows) <= thinning.LISTED_REASONS + 1
        assert all(len(cell) < 400 for row in table.rows for cell in row)
    assert all(len(level.dots) <= thinning.DOTS for effect in report.effects(many) for level in effect.levels)


def test_totals_are_of_all_trials(many):
    counts = [sum(len(level.scores) + level.failed_count for level in effect.levels) for effect in report.effects(many)]
    assert max(counts) == len([trial for trial in many.finished if trial.point])
    text = report.to_markdown(many)
    assert f"{len(many.trials):,} trials executed" in text or f"{len(many.trials)} of " in text
    assert "other reasons" in text


def test_the_page_and_the_text_say_what_is_left_out(many, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "_plotly_js", lambda: "")
    report.write_html(many, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert thinning.drawn_in_words(many) in text
    assert thinning.listed_in_words(many) in text
    assert "at most 100 a level" in text
    assert len(text) < 10e6
    assert thinning.listed_in_words(many).split(":")[0] in report.to_markdown(many)


def test_what_a_summary_says_of_its_trials_is_worked_out_once(many):
    assert many.finished is many.finished
    assert many.completed is many.completed
