"""Comparisons: standings, duels, words, documents."""

from __future__ import annotations

import json
from dataclasses import replace

import plotly.graph_objects
import pytest
from markupsafe import escape

from autotune import comparison
from autotune.comparison import Contender, charts
from autotune.comparison.contest import checkpoints
from autotune.errors import StudyError
from autotune.objective import Objective
from autotune.report import page

CLEAR = [1.80, 1.82, 1.84, 1.86, 1.88, 1.90, 1.92, 1.94]
POOR = [1.10, 1.11, 1.12, 1.13, 1.14, 1.15, 1.16, 1.17]


def compared(*contenders, trial_budget=8):
    return comparison.compare(contenders, trial_budget=trial_budget, objective=Objective())


def test_a_clear_winner(contender):
    result = compared(contender("poor", POOR), contender("good", CLEAR))
    assert [standing.name for standing in result.standings] == ["good", "poor"]
    good = result.standings[0]
    assert good.final.value == pytest.approx(1.87)
    assert good.final.low <= 1.87 <= good.final.high
    assert good.area.value < good.final.value
    assert good.failed_count == 1
    assert good.duplicate_count == 0
    assert good.seconds == 80
    assert comparison.headline(result) == "good wins after 8 trials."
    last = result.duels[-1]
    assert (last.first, last.second, last.trials, last.pair_count) == ("good", "poor", 8, 8)
    assert last.probability.value == 1
    assert "good beats poor by 0.735" in comparison.verdicts(result)[-1]


def test_a_draw_is_no_win(contender):
    result = compared(contender("a", CLEAR), contender("b", CLEAR[::-1]))
    assert "can't be told" in comparison.headline(result)
    assert all(duel.p_value > 0.05 for duel in result.duels)
    assert "can't tell apart" in comparison.verdicts(result)[-1]


def test_one_seed_is_no_evidence(contender):
    result = compared(contender("good", [3.0]), contender("poor", [1.0]))
    assert "no claim can be made" in comparison.headline(result)
    assert comparison.verdicts(result)[0].startswith("No claim can be made from one seed")
    assert result.standings[0].final.low is None


def test_few_seeds_say_how_many_it_takes(contender):
    result = compared(contender("good", CLEAR[:4]), contender("poor", POOR[:4]))
    assert "can't be told" in comparison.headline(result)
    assert "at least 7 seeds" in comparison.verdicts(result)[-1]


def test_seeds_that_differ_give_no_test(contender, run):
    other = Contender(name="other", runs=(run(7, [1.0, 1.4, 1.5]), run(8, [1.0, 1.4, 1.5])))
    result = compared(contender("good", [1.5, 1.6], trials=3), other, trial_budget=3)
    assert all(duel.difference is None and duel.p_value == 1 for duel in result.duels)
    assert "no seeds in common" in comparison.verdicts(result)[-1]


def test_three_contenders(contender):
    result = compared(contender("good", CLEAR * 2), contender("also", CLEAR[::-1] * 2), contender("poor", POOR * 2))
    assert "leads after 8 trials; it beats poor" in comparison.headline(result)
    assert len(result.duels) == 3 * len(checkpoints(8))


def test_a_contender_alone(contender):
    result = compared(contender("only", [1.5, 1.6]))
    assert comparison.headline(result) == "only reaches R = 1.550 after 8 trials."
    assert comparison.verdicts(result) == []
    assert result.duels == ()


def test_the_budget_is_equal(contender, run):
    short = Contender(name="short", runs=(run(0, [1.0, 1.2, 1.3]), run(1, [1.0, 1.2, 1.3])))
    result = compared(contender("long", [1.5, 1.6]), short)
    assert result.trial_budget == 3
    assert any("3 of 8 trials, because the run of short with seed 0" in note for note in result.notes)
    assert {len(standing.by_trials.at) for standing in result.standings} == {3}
    empty = Contender(name="short", runs=(*short.runs, run(2, [])))
    assert any("1 of its studies executed no trial" in note for note in compared(empty).notes)


def test_every_run_is_scored_by_one_reference(run):
    lucky = Contender(name="lucky", runs=(run(0, [1.0, 1.5], baseline=50.0),))
    plain = Contender(name="plain", runs=(run(0, [1.0, 1.5], baseline=150.0),))
    result = compared(lucky, plain, trial_budget=2)
    assert result.reference.samples_per_second == 100.0
    assert {standing.final.value for standing in result.standings} == {1.5}
    assert "one common reference" in result.notes[0]


def test_what_cannot_be_compared_is_refused(contender, run):
    with pytest.raises(StudyError, match="has executed a trial"):
        compared(Contender(name="empty", runs=(run(0, []),)))
    with pytest.raises(StudyError, match="name of its own"):
        compared(contender("a", [1.5]), contender("a", [1.5]))
    with pytest.raises(StudyError, match="at least one"):
        compared()
    with pytest.raises(StudyError, match="each may appear once"):
        compared(Contender(name="a", runs=(run(0, [1.0]), run(0, [1.0]))))
    other = contender("b", [1.5])
    trials = tuple(replace(t, config_hash="another") if t.is_baseline else t for t in other.runs[0].trials)
    with pytest.raises(StudyError, match="different configurations"):
        compared(contender("a", [1.5]), Contender(name="b", runs=(replace(other.runs[0], trials=trials),)))


@pytest.mark.parametrize(("budget", "expected"), [(1, [1]), (2, [2]), (3, [2, 3]), (24, [6, 12, 24])])
def test_checkpoints(budget, expected):
    assert checkpoints(budget) == expected


def test_rows_are_plain(contender):
    result = compared(contender("good", CLEAR), contender("poor", POOR))
    rows = comparison.rows(result)
    assert json.loads(json.dumps(rows)) == rows
    assert len(rows) == 2 * 8
    assert sum(row["is_final"] for row in rows) == 2


def test_it_is_the_same_every_time(contender):
    contenders = [contender("good", CLEAR), contender("poor", POOR)]
    assert compared(*contenders) == compared(*contenders)


def test_documents(contender, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "_plotly_js", lambda: "")
    result = compared(contender("<b>good</b>", CLEAR), contender("po|or", POOR), contender("third", POOR[::-1]))
    for figure in (charts.by_trials(result), charts.by_seconds(result), charts.finals(result)):
        plotly.graph_objects.Figure(figure)
    comparison.write_html(result, tmp_path / "c.html")
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "<b>good</b>" not in text
    assert "src=" not in text
    assert str(escape(comparison.headline(result))) in text
    markdown = comparison.to_markdown(result)
    assert "po\\|or" in markdown
    assert "## Pairs" in markdown
    assert "Simulated" not in markdown
    assert "Simulated" in comparison.to_markdown(replace(result, is_simulated=True))


def test_a_page_of_one_seed_and_one_trial(contender, run, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "_plotly_js", lambda: "")
    timeless = tuple(replace(t, started_at=None, finished_at=None) for t in run(0, [1.0]).trials)
    result = compared(Contender(name="a", runs=(replace(run(0, [1.0]), trials=timeless),)), trial_budget=1)
    assert charts.by_seconds(result) is None
    comparison.write_html(result, tmp_path / "c.html")
    assert "a reaches R = 1.000 after 1 trial." in (tmp_path / "c.html").read_text(encoding="utf-8")
