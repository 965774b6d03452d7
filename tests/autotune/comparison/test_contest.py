"""Comparisons: standings, duels, words, documents."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from xml.etree import ElementTree as ET

import numpy as np
import plotly.graph_objects
import pytest
from markupsafe import escape

from autotune import comparison
from autotune.comparison import Contender, Run, charts, wording
from autotune.comparison.contest import Mark, Unit, _duels, _Entry, doubling, marks
from autotune.errors import StudyError
from autotune.objective import Objective
from autotune.report import page

CLEAR = [1.80, 1.82, 1.84, 1.86, 1.88, 1.90, 1.92, 1.94]
POOR = [1.10, 1.11, 1.12, 1.13, 1.14, 1.15, 1.16, 1.17]


def after_all(result):
    (duel,) = [duel for duel in result.duels if duel.mark == result.last_mark]
    return duel


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
    last = after_all(result)
    assert (last.first, last.second, last.pair_count) == ("good", "poor", 8)
    assert last.probability.value == 1
    assert last.difference == pytest.approx(0.735)
    # 8 pairs all one way: 2 of 256 signs are as extreme, at whatever mark; one pair of searchers.
    assert last.p_value == pytest.approx(2 / 256)
    said = comparison.verdicts(result)
    assert said[0] == "After 2 trials: it can't be told; good over poor, 50 % (25 to 75 %), p = 1.00."
    assert said[2].startswith("After 8 trials: good over poor, 100 % (")
    assert said[2].endswith("to 100 %), by 0.735 in R (p = 0.008).")
    assert said[-1].startswith("After 1 min 20 s: good over poor, 100 %")


def test_a_draw_is_no_win(contender):
    result = compared(contender("a", CLEAR), contender("b", CLEAR[::-1]))
    assert "can't be told" in comparison.headline(result)
    assert all(duel.p_value > 0.05 for duel in result.duels)
    assert all("it can't be told" in sentence for sentence in comparison.verdicts(result))


def test_one_seed_is_no_evidence(contender):
    result = compared(contender("good", [3.0]), contender("poor", [1.0]))
    assert "no claim can be made" in comparison.headline(result)
    assert comparison.verdicts(result)[0].startswith("No claim can be made from one seed")
    assert result.standings[0].final.low is None


def test_few_seeds_say_how_many_it_takes(contender):
    result = compared(contender("good", CLEAR[:4]), contender("poor", POOR[:4]))
    assert "can't be told" in comparison.headline(result)
    assert "at least 6 seeds" in comparison.verdicts(result)[-2]
    assert "no interval of R" in comparison.verdicts(result)[-1]
    assert result.standings[0].final.low is None


def test_seeds_that_differ_give_no_test(contender, run):
    other = Contender(name="other", runs=(run(7, [1.0, 1.4, 1.5]), run(8, [1.0, 1.4, 1.5])))
    result = compared(contender("good", [1.5, 1.6], trials=3), other, trial_budget=3)
    assert all(duel.difference is None and duel.p_value == 1 for duel in result.duels)
    assert "no seeds in common" in comparison.verdicts(result)[-2]


def test_three_contenders(contender):
    result = compared(contender("good", CLEAR * 2), contender("also", CLEAR[::-1] * 2), contender("poor", POOR * 2))
    assert "leads after 8 trials; it beats poor" in comparison.headline(result)
    assert len(result.duels) == 3 * len(result.marks)
    assert "; it can't be told of good and also." in comparison.verdicts(result)[2]


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
    assert result.references[""].samples_per_second == 100.0
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


@pytest.mark.parametrize(("budget", "expected"), [(1, [1]), (2, [2]), (3, [2, 3]), (16, [2, 4, 8, 16])])
def test_marks_double(budget, expected):
    assert [mark.at for mark in marks(budget, 0.0)] == expected
    assert [mark.at for mark in marks(budget, 2.0 * budget)] == [*expected, *(2.0 * trials for trials in expected)]


def test_tables_show_the_first_trial_too():
    assert doubling(12) == [1, 2, 4, 8, 12]
    assert doubling(1) == [1]


def test_areas_by_hand(run):
    # R is 1, 1, 2, 2 and each trial takes 10 s: after 40 s it was 0, 1, 1, 2 for 10 s each.
    result = compared(Contender(name="a", runs=(run(0, [1.0, None, 2.0, 1.5]),)), trial_budget=4)
    (standing,) = result.standings
    assert [area.value for area in standing.by_trials.area] == pytest.approx([1, 1, 4 / 3, 1.5])
    assert standing.area.value == pytest.approx(1.5)
    by_seconds = standing.by_seconds
    at = {time: by_seconds.area[by_seconds.index(time)].value for time in (20.0, 40.0)}
    assert at == pytest.approx({20.0: 0.5, 40.0: 1.0})
    assert by_seconds.best[by_seconds.index(20.0)].value == pytest.approx(1.0)
    assert by_seconds.best[by_seconds.index(40.0)].value == pytest.approx(2.0)


def test_at_equal_wall_time_the_quick_one_wins(run):
    quick, slow = [], []
    for seed in range(6):
        same = run(seed, [1.0, 1.2, 1.4, 1.6 + seed / 100])
        stretched = tuple(
            replace(
                t,
                started_at=t.started_at + t.number * timedelta(seconds=10),
                finished_at=t.finished_at + (t.number + 1) * timedelta(seconds=10),
            )
            for t in same.trials
        )
        quick.append(same)
        slow.append(replace(same, trials=stretched))
    result = compared(Contender(name="quick", runs=tuple(quick)), Contender(name="slow", runs=tuple(slow)))
    assert result.time_budget_s == 40
    by_mark = {duel.mark: duel for duel in result.duels}
    assert by_mark[Mark(unit=Unit.TRIALS, at=4)].difference == 0
    at_40_s = by_mark[Mark(unit=Unit.SECONDS, at=40.0)]
    assert at_40_s.difference == pytest.approx(1.625 - 1.2)
    assert at_40_s.p_value == pytest.approx(2 / 2**6)


def test_one_of_itself_is_as_good_as_the_other(contender):
    result = compared(contender("a", CLEAR), contender("b", CLEAR))
    assert {duel.probability.value for duel in result.duels} == {0.5}
    assert {duel.p_value for duel in result.duels} == {1.0}
    assert {duel.difference for duel in result.duels} == {0.0}


def test_runs_of_several_workloads(contender):
    def on(workload, who):
        return tuple(replace(run, workload=workload) for run in who.runs)

    def both(name, one, other):
        return Contender(name=name, runs=on("one", contender(name, one)) + on("other", contender(name, other)))

    good, poor = both("good", CLEAR[:4], [4.0, 4.1, 4.2, 4.3]), both("poor", POOR[:4], [3.0, 3.1, 3.2, 3.3])
    result = compared(good, poor)
    last = after_all(result)
    assert (last.pair_count, last.probability.value) == (8, 1)
    assert last.p_value == pytest.approx(2 / 256)
    standing = result.standings[0]
    # The middle half of 1.80, 1.82, 1.84, 1.86, 4.0, 4.1, 4.2, 4.3.
    assert standing.final.value == pytest.approx((1.84 + 1.86 + 4.0 + 4.1) / 4)
    assert standing.by_workload["other"].value == pytest.approx(4.15)
    assert standing.final.low is not None
    assert "## Best R at the end, by workload" in comparison.to_markdown(result)
    assert "one reference for each of 2 workloads" in result.notes[0]
    with pytest.raises(StudyError, match="same workloads"):
        compared(good, Contender(name="poor", runs=on("one", contender("poor", POOR))))


def test_nothing_is_won_among_equals():
    """Of 400 comparisons of three equals, at 4 budgets of trials and 4 of time, at most 5 % find any winner."""
    draws = np.random.default_rng(5)
    claims = 0
    for _ in range(400):
        contenders = []
        for name in "abc":
            rises = np.cumsum(draws.exponential(size=(8, 16)) * (draws.random((8, 16)) < 0.3), axis=1)
            contenders.append(_entry(name, 1.0 + rises, draws.uniform(5, 15, size=(8, 16)).cumsum(axis=1)))
        duels = _duels(contenders, marks(16, 75.0), draws)
        claims += any(wording.is_shown(duel) for duel in duels)
    # 29 of 400 lie within what 5 % may give (binomial, 97.5 %).
    assert claims <= 29


def test_a_real_difference_is_found():
    """Seven runs with a difference of two deviations at every budget: among three contenders most of 100 find it."""
    draws = np.random.default_rng(6)
    found = 0
    for _ in range(100):
        contenders = [
            _entry(name, 1.0 + gain + 0.1 * np.maximum.accumulate(draws.normal(size=(7, 16)), axis=1), None)
            for name, gain in (("a", 0.0), ("b", 0.0), ("c", 0.2))
        ]
        duels = _duels(contenders, marks(16, 0.0), draws)
        found += any(wording.is_shown(duel) and duel.second == "c" for duel in duels)
    assert found >= 80


def _entry(name, best, ended_s):
    runs = tuple(Run(seed=seed, trials=()) for seed in range(len(best)))
    return _Entry(name=name, runs=runs, best=best, ended_s=np.zeros_like(best) if ended_s is None else ended_s)


def test_rows_are_plain(contender):
    result = compared(contender("good", CLEAR), contender("poor", POOR))
    rows = comparison.rows(result)
    assert json.loads(json.dumps(rows)) == rows
    assert len([row for row in rows if row["trials"]]) == 2 * 8
    assert [row["seconds"] for row in rows if row["seconds"]] == [20.0, 40.0, 80.0] * 2
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


def test_markdown_has_its_curves_beside_it(contender, tmp_path):
    result = compared(contender("<b>good</b>", CLEAR), contender("poor", POOR))
    comparison.write_markdown(result, tmp_path / "c d.md")
    assert "![Best R so far, by wall time](<c d-seconds.svg>)" in (tmp_path / "c d.md").read_text()
    svg = ET.fromstring((tmp_path / "c d-trials.svg").read_text())
    space = "{http://www.w3.org/2000/svg}"
    lines = svg.findall(f"{space}polyline")
    assert len(lines) == 2
    assert len(svg.findall(f"{space}polygon")) == 2
    assert "<b>good</b>" in [text.text for text in svg.findall(f"{space}text")]
    # Between the axes, and higher (a smaller y) where R is higher.
    points = [[tuple(map(float, pair.split(","))) for pair in line.get("points").split()] for line in lines]
    assert all(60 <= x <= 740 and 40 <= y <= 350 for line in points for x, y in line)
    assert points[0][-1][1] < points[1][-1][1] < points[1][0][1]


def test_a_page_of_one_seed_and_one_trial(contender, run, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "_plotly_js", lambda: "")
    timeless = tuple(replace(t, started_at=None, finished_at=None) for t in run(0, [1.0]).trials)
    result = compared(Contender(name="a", runs=(replace(run(0, [1.0]), trials=timeless),)), trial_budget=1)
    assert charts.by_seconds(result) is None
    comparison.write_html(result, tmp_path / "c.html")
    assert "a reaches R = 1.000 after 1 trial." in (tmp_path / "c.html").read_text(encoding="utf-8")
