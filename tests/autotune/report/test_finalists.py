"""Finals and drift as readers meet them: headline, tables, page, Markdown, export, command line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autotune import report
from autotune.finals import Entrant, Record, Run, Verdict, judge
from autotune.remeasuring import Remeasured
from autotune.report import finalists, findings, tables
from autotune.report.changes import change_count
from autotune.report.rescoring import rescored


@pytest.fixture
def held(summary):
    """Return the summary with finals of its three best, whose speeds over the baseline's are given."""

    def hold(*speeds, executed=None, runs=None):
        numbers = [trial.number for trial in sorted(summary.completed, key=lambda t: -t.score)[:3]]
        record = Record(
            entrants=tuple(Entrant(number=number, changes=3 + at, score=2.0) for at, number in enumerate(numbers)),
            reference=Entrant(number=0, changes=0, score=1.0),
            reference_is_baseline=True,
            executed_trials=executed or summary.executed_count,
            rules=replace(summary.rules, candidates=3),
            reach=1.1,
        )
        figures = dict(zip((0, *numbers), (1.0, *speeds), strict=True))
        standing = judge(record, summary.objective)
        while standing.next_run is not None and len(record.runs) != runs:
            round_, number = standing.next_run
            speed = figures[number]
            result = Remeasured(failure="CRASH: it broke")
            if speed is not None:
                result = Remeasured(samples_per_second=100 * speed * (1 + 0.001 * round_), convergence_per_second=speed)
            run = Run(round=round_, number=number, result=result, at=f"2030-01-01T00:00:{len(record.runs):02}+00:00")
            record = replace(record, runs=(*record.runs, run))
            standing = judge(record, summary.objective)
        return replace(summary, finals=standing), numbers

    return hold


def test_settings_changed_are_those_of_the_space_that_have_an_effect(summary):
    baseline, space = summary.baseline, summary.space
    assert change_count(baseline, baseline, space) == 0

    def count(**changes):
        point = space.canonical(
            {**{d.name: baseline.point.get(d.name, d.default) for d in space.dimensions}, **changes}
        )
        return change_count(baseline, replace(baseline, is_baseline=False, point=point), space)

    assert count() == 0
    assert count(**{"optimizer.params.lr": 1e-4}) == 1
    assert count(**{"optimizer.params.lr": 1e-4, "train_micro_batch_size_per_gpu": 8}) == 2
    three = {"zero_optimization.stage": 3, "zero_optimization.stage3_max_live_parameters": 10**7}
    assert count(**three) == 2
    assert count(**{**three, "zero_optimization.stage": 1}) == 1


def test_best_is_the_winner_of_the_finals(held, tmp_path):
    summary, (first, second, third) = held(1.2, 1.6, 1.1)
    assert summary.leading.number == first
    assert summary.best.number == second
    said = findings.headline(summary)
    figures = "1.60x the throughput and 1.60x the convergence speed of yours (R = 1.600)"
    assert said == f"Trial {second} wins the finals: {figures}."
    assert finalists.notes(summary)[0].startswith(f"Run again 3 times in turns with yours, trial {second} has 1.60x (")
    assert not any("autotune validate" in caution for caution in findings.cautions(summary))
    assert any(f"The search had trial {first} first" in note for note in finalists.notes(summary))
    exported = report.export(summary, tmp_path / "best.json")
    kept = json.loads(exported.provenance_path.read_text())
    assert kept["trial"] == second
    assert kept["finals"]["verdict"] == "winner"
    assert kept["finals"]["R"]["value"] == pytest.approx(1.6, rel=0.01)
    other = report.export(summary, tmp_path / "other.json", trial_number=third)
    assert json.loads(other.provenance_path.read_text())["finals"]["place"] == "out"
    assert rescored(summary, summary.objective).best.number == first


def test_a_tie_is_declared(held):
    summary, (first, second, _) = held(1.6, 1.61, 1.1)
    assert summary.best.number == first
    tied = f"trials {min(first, second)} and {max(first, second)}"
    assert findings.headline(summary) == f"A tie: {tied} can't be told apart; trial {first} is taken."
    assert f"It changes fewer of your settings (3) than trial {second}" in finalists.notes(summary)[0]
    rows = {row[0]: row[-1] for row in tables.finals(summary).rows}
    assert rows[f"trial {first}"] == "tied, taken"
    assert rows[f"trial {second}"] == "tied"
    assert rows["yours (trial 0)"] == "reference"


def test_nothing_better_is_said_plainly(held):
    summary, (first, *_) = held(1.01, 0.9, None)
    assert summary.finals.verdict is Verdict.NOTHING_BETTER
    assert summary.best.is_baseline
    said = findings.headline(summary)
    assert said.startswith("Nothing found that is faster than yours beyond noise: in ")
    assert f"trial {first}" in said
    assert {row[0]: row[-1] for row in tables.finals(summary).rows}["yours (trial 0)"] == "stays"
    assert any("failed when it was run again and is out: CRASH: it broke" in n for n in finalists.notes(summary))
    assert [row[-1] for row in tables.finals(summary).rows][-1] == "failed in round 1"


def test_finals_under_way_name_no_winner(held):
    summary, (first, *_) = held(1.2, 1.6, 1.1, runs=5)
    assert summary.best.number == first
    running = replace(summary, is_running=True)
    assert "Finals are under way: 5 runs of at most 20, no winner yet." in findings.cautions(running)


def test_finals_that_nothing_runs_are_stopped_and_how_to_go_on_is_said(held):
    summary, _ = held(1.2, 1.6, 1.1, runs=5)
    elsewhere = replace(summary, storage_url="sqlite:///other.db", finals_are_due=True)
    said = [caution for caution in findings.cautions(elsewhere) if "winner" in caution]
    (only,) = said
    assert only.startswith("The finals were stopped: 5 runs of at most 20, no winner yet. ")
    assert only.endswith("Go on with them: autotune resume sim --storage sqlite:///other.db")
    assert "under way" not in report.to_markdown(elsewhere)


def test_page_and_markdown_show_them(held, tmp_path):
    summary, (_, second, _) = held(1.2, 1.6, 1.1)
    report.write_html(summary, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Finals</h2>" in page
    assert "out in round 3" in page
    text = report.to_markdown(summary)
    assert "## Finals" in text
    assert f"| trial {second} |" in text


def test_a_round_is_told_of_as_it_runs(held):
    summary, (first, *_) = held(1.2, 1.6, 1.1, runs=5)
    assert finalists.last_run(summary.finals).startswith("finals  round 2  trial")
    assert finalists.next_run(summary.finals).startswith("finals, round 2, run 6 of at most 20: trial ")
    over, _ = held(1.2, 1.6, 1.1)
    assert "  out: 0.7" in finalists.last_run(over.finals)
    assert f"trial {first:>3}  out" in finalists.last_run(over.finals)
