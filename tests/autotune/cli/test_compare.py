"""Comparisons: a grid of studies from a campaign, resumable, and studies that have run."""

from __future__ import annotations

import csv
import io
import itertools
import json

import pytest

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
    assert [row[:2] for row in duels] == [["4", "trials"]] * 6


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


def test_simulated_workloads(cli, folder):
    answer = cli(*GRID[:6], "--seeds", "3", "--workloads", "2", "--raw", "raw.csv", "-o", "c.md", "--quiet")
    assert answer.code == ExitCode.OK
    names = [row["name"] for row in json.loads(cli("studies", "--format", "json").out)]
    # Searchers take turns in going first.
    assert names[:5] == [
        "sim-workload6-tpe-seed0",
        "sim-workload6-random-seed0",
        "sim-workload7-random-seed0",
        "sim-workload7-tpe-seed0",
        "sim-workload6-tpe-seed1",
    ]
    assert len(names) == 2 * 3 * 2
    rows = list(csv.DictReader((folder / "raw.csv").read_text().splitlines()))
    assert len(rows) == 12 * 5
    assert {row["workload"] for row in rows} == {"simulated workload 6", "simulated workload 7"}
    for name in names:
        _, workload, searcher, seed = name.split("-")
        run = [
            row
            for row in rows
            if (row["searcher"], row["seed"], f"workload{row['workload'][-1]}") == (searcher, seed[4:], workload)
        ]
        assert [int(row["executed"]) for row in run] == [1, 2, 3, 4, 5]
        assert [row["config_hash"] for row in run] == [trial.config_hash for trial in trials_of(name)]
        seconds = [float(row["duration_s"]) + float(row["searcher_s"] or 0) for row in run]
        assert [float(row["seconds"]) for row in run] == pytest.approx(list(itertools.accumulate(seconds)))
        scores = [float(row["R"] or 0) for row in run]
        assert [float(row["best_R"]) for row in run] == pytest.approx(list(itertools.accumulate(scores, max)))
    report = (folder / "c.md").read_text()
    assert "| simulated workload 7 |" in report
    assert "](<c-trials.svg>)" in report
    assert (folder / "c-seconds.svg").read_text().startswith("<svg")
    again = cli("compare", *names, "--format", "json")
    assert {(row["runs"], row["workloads"]) for row in json.loads(again.out)} == {(6, 2)}


def test_campaigns_are_workloads(cli, folder):
    (folder / "d.yaml").write_text(
        (folder / "c.yaml")
        .read_text()
        .replace("sim", "other", 1)
        .replace("{workload_seed: 6}", "{workload_seed: 6, noise: 0.1}")
    )
    answer = cli("compare", "c.yaml", "d.yaml", *GRID[2:], "--format", "json")
    assert {(row["runs"], row["workloads"]) for row in json.loads(answer.out)} == {(4, 2)}
    assert "simulated workload 6 (2)" in (folder / "comparison.html").read_text()
    answer = cli("compare", "sim-tpe-seed0", "other-random-seed0")
    assert answer.code == ExitCode.STUDY
    assert "compare studies of the same workloads" in answer.err
    (folder / "d.yaml").write_text((folder / "c.yaml").read_text() + "objective: {alpha: 1}\n")
    assert "2 campaigns of the name sim" in cli("compare", "c.yaml", "d.yaml", *GRID[2:]).err
    (folder / "d.yaml").write_text((folder / "c.yaml").read_text().replace("sim", "d", 1) + "objective: {alpha: 1}\n")
    assert "different objective" in cli("compare", "c.yaml", "d.yaml", *GRID[2:]).err


def test_the_evaluator_is_overridden(cli, folder):
    cli("launch", "c.yaml", "--trials", "12", "--quiet")
    (folder / "measured.json").write_text(cli("trials", "sim", "--format", "json").out)
    real = (folder / "c.yaml").read_text().replace("evaluator: simulated\n", "")
    (folder / "c.yaml").write_text(real)
    grid = (*GRID, "--quiet")
    assert "recorded.path: missing" in cli(*grid, "--evaluator", "recorded").err
    replayed = cli(*grid, "--evaluator", "recorded", "--set", "recorded.path=measured.json", "--set", "name=again")
    assert replayed.code == ExitCode.OK
    assert "No trial ran here" in replayed.out
    assert trials_of("again-tpe-seed0")[0].measurement == trials_of("sim")[0].measurement
    assert cli(*grid, "--evaluator", "simulated", "--set", "name=made-up").code == ExitCode.OK
    assert "only simulated workloads can be made up" in cli(*grid, "--workloads", "2").err


def test_raw_data_go_where_they_can(cli, folder, monkeypatch):
    assert "must end with .csv or .parquet" in cli(*GRID, "--raw", "raw.txt").err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = cli(*GRID, "--raw", "raw.parquet")
    assert "takes pyarrow" in answer.err
    assert answer.code == ExitCode.STUDY
    assert not (folder / "autotune.db").exists()


def test_raw_data_as_parquet(cli, folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    cli(*GRID, "--quiet", "--raw", "raw.csv")
    cli(*GRID, "--quiet", "--raw", "raw.parquet")
    rows = parquet.read_table(folder / "raw.parquet").to_pylist()
    in_text = [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows]
    assert in_text == list(csv.DictReader((folder / "raw.csv").read_text().splitlines()))


def test_wrong_input(cli, folder):
    assert "did you mean random" in cli(*GRID[:2], "--searchers", "randon").err
    assert "name every searcher once" in cli(*GRID[:2], "--searchers", "tpe,tpe").err
    assert "campaign files, or names" in cli("compare", "c.yaml", "other").err
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
