"""Comparisons: a grid of studies from a campaign, resumable, and studies that have run."""

from __future__ import annotations

import csv
import io
import json

from autotune.cli.exit_codes import ExitCode
from tests.autotune.cli.conftest import trials_of

GRID = ("compare", "c.yaml", "--searchers", "tpe,random", "--trials", "5", "--seeds", "2")


def test_a_campaign_is_run_as_a_grid(cli, folder):
    answer = cli(*GRID)
    assert answer.code == ExitCode.OK
    order = [row["name"] for row in json.loads(cli("studies", "--format", "json").out)]
    assert order == ["sim-tpe-seed0", "sim-random-seed0", "sim-random-seed1", "sim-tpe-seed1"]
    assert all(len(trials_of(name)) == 5 for name in order)
    assert "Best R at the end" in answer.out
    assert "<html" in (folder / "comparison.html").read_text()


def test_running_it_again_runs_what_is_missing(cli):
    cli(*GRID)
    again = cli(*GRID)
    assert again.out.count("finished before, 5 trials") == 4
    cli(*GRID[:4], "--trials", "7", "--seeds", "2")
    assert len(trials_of("sim-tpe-seed1")) == 7
    assert len({trial.config_hash for trial in trials_of("sim-tpe-seed1")}) == 7


def test_nothing_is_cut_on_a_narrow_terminal(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    grid = ("compare", "c.yaml", "--searchers", "random,tpe,gp,cmaes", "--trials", "4", "--seeds", "2", "--quiet")
    told = cli(*grid).out
    assert "\u2026" not in told
    best = [line.split() for line in told.splitlines() if line.split()[:1] in (["Trials"], ["1"], ["2"], ["4"])]
    assert sorted(best[0][1:]) == ["cmaes", "gp", "random", "tpe"]
    assert [row[0] for row in best[:4]] == ["Trials", "1", "2", "4"]
    assert all(float(figure) >= 1.0 for row in best[1:4] for figure in row[1:])
    duels = [line.split() for line in told.splitlines() if line.split()[-1:] in (["yes"], ["no"])]
    assert [row[0] for row in duels] == ["4"] * 6


def test_formats_and_report_file(cli, folder):
    answer = cli(*GRID, "--format", "json", "-o", "c.md")
    rows = json.loads(answer.out)
    assert {row["searcher"] for row in rows} == {"tpe", "random"}
    assert (folder / "c.md").read_text().startswith("# Comparison")
    assert list(csv.DictReader(io.StringIO(cli(*GRID, "--format", "csv").out)))


def test_studies_are_compared_by_searcher_or_by_name(cli):
    cli(*GRID)
    answer = cli("compare", "sim-tpe-seed0", "sim-random-seed0", "--format", "json", "--alpha", "1")
    assert {row["searcher"] for row in json.loads(answer.out)} == {"tpe", "random"}
    cli("launch", "c.yaml", "--searcher", "tpe", "--trials", "5", "--study", "other")
    answer = cli("compare", "sim-tpe-seed0", "other", "--format", "json")
    assert {row["searcher"] for row in json.loads(answer.out)} == {"sim-tpe-seed0", "other"}


def test_another_campaign_under_the_same_name_is_refused(cli):
    cli(*GRID)
    answer = cli(*GRID, "--set", "budget.seconds=3")
    assert answer.code == ExitCode.STUDY
    assert "with budget" in answer.err


def test_wrong_input(cli, folder):
    assert "did you mean random" in cli(*GRID[:2], "--searchers", "randon").err
    assert "name every searcher once" in cli(*GRID[:2], "--searchers", "tpe,tpe").err
    assert "one campaign file, or names" in cli("compare", "c.yaml", "other").err
    assert not (folder / "autotune.db").exists()
    cli("launch", "c.yaml", "--trials", "2")
    assert "name every study once" in cli("compare", "sim", "sim").err


def test_on_80_columns_every_contender_has_its_name(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli(*GRID).out.splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("Searcher ")]
    assert "Best R at the end" in lines[head]
    assert {line.split()[0] for line in lines[head + 1 : head + 3]} == {"tpe", "random"}
    assert "…" not in "".join(lines[head : head + 3])
