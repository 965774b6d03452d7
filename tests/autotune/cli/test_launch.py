"""Launching and resuming studies, and what they print off a terminal."""

from __future__ import annotations

import re

import pytest

from autotune.cli.exit_codes import ExitCode
from tests.autotune.cli.conftest import trials_of


def test_launch_says_what_it_does_and_what_came_of_it(cli):
    answer = cli("launch", "c.yaml")
    assert answer.code == ExitCode.OK
    for text in ("hardware", "12 dimensions", "left out", "6 trials", "random, seed 0", "sqlite:///autotune.db"):
        assert text in answer.out
    lines = [line for line in answer.out.splitlines() if re.match(r"trial +\d+  [A-Z]", line)]
    assert len(lines) == 6
    assert "R 1.000  throughput 1.00x  convergence 1.00x  your configuration" in lines[0]
    assert "the budget of 6 trials is spent" in answer.out
    assert "finals  round 3  trial   0" in answer.out
    assert "wins the finals: " in answer.out
    assert "Run again 3 times in turns with yours, trial " in answer.out
    for verb in ("report sim", "export sim"):
        assert f"autotune {verb}" in answer.out
    assert "autotune validate" not in answer.out
    assert "\x1b" not in answer.out
    assert "\r" not in answer.out
    assert answer.err == ""


def test_quiet_shows_the_result_only(cli):
    answer = cli("launch", "c.yaml", "--quiet")
    assert "trial   0" not in answer.out
    assert "left out" not in answer.out
    assert "6 of 6 trials executed" in answer.out


def test_options_override_the_campaign(cli):
    cli("launch", "c.yaml", "--study", "other", "--trials", "3", "--searcher", "tpe", "--set", "budget.seconds=5")
    assert len(trials_of("other")) == 3
    assert "searcher   tpe" in cli("status", "other").out
    assert cli("resume", "other").out.startswith("other is finished: 3 of 3 trials executed")


def test_launching_a_name_twice_is_refused(cli):
    cli("launch", "c.yaml")
    again = cli("launch", "c.yaml")
    assert again.code == ExitCode.STUDY
    assert "study 'sim' exists already" in again.err
    assert "autotune resume sim" in again.err
    assert len(trials_of("sim")) == 6


def test_resume_of_a_finished_study_says_so(cli):
    cli("launch", "c.yaml")
    answer = cli("resume", "sim")
    assert answer.code == ExitCode.OK
    assert "sim is finished: 6 of 6 trials executed" in answer.out
    assert "autotune resume sim --trials 12" in answer.out
    assert len(trials_of("sim")) == 6


def test_resume_with_a_higher_budget_goes_on_as_one_long_study_would(cli):
    cli("launch", "c.yaml")
    answer = cli("resume", "sim", "--trials", "9")
    assert answer.code == ExitCode.OK
    assert "6 of 9 trials done, 3 to run" in answer.out
    cli("launch", "c.yaml", "--study", "long", "--trials", "9")
    assert [trial.point for trial in trials_of("sim")] == [trial.point for trial in trials_of("long")]
    assert "9/9" in cli("studies").out


def test_resume_refuses_a_budget_below_what_ran(cli):
    cli("launch", "c.yaml")
    answer = cli("resume", "sim", "--trials", "2")
    assert answer.code == ExitCode.STUDY
    assert "--trials: got 2" in answer.err


def test_where_nothing_beat_the_baseline_more_trials_are_suggested(cli):
    out = cli("launch", "c.yaml", "--trials", "1").out
    assert "autotune resume sim --trials 2" in out
    assert "autotune export" not in out


def test_where_trials_failed_and_nothing_beat_the_baseline_the_reasons_are_pointed_to(cli, folder):
    with (folder / "c.yaml").open("a") as file:
        file.write("space: {narrow: {optimizer.params.lr: [0.01]}}\n")
    answer = cli("launch", "c.yaml", "--trials", "3")
    assert "2 failed" in answer.out
    assert "autotune trials sim " in answer.out
    assert "autotune resume sim --trials 6" in answer.out


def test_no_successful_trial_is_told_by_the_exit_code(cli, folder):
    (folder / "c.yaml").write_text((folder / "c.yaml").read_text().replace("3.0e-4", "1.0e+3"))
    answer = cli("launch", "c.yaml", "--trials", "1")
    assert answer.code == ExitCode.NO_RESULT
    assert "DIVERGED" in answer.out
    assert "autotune logs sim 0" in answer.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.yaml",), "there is no campaign file nowhere.yaml"),
        (("c.yaml", "--searcher", "tpy"), "searcher: got 'tpy'; did you mean tpe?"),
        (("c.yaml", "--searcher", "nothing.here:Searcher"), "can't import 'nothing.here:Searcher'"),
        (("c.yaml", "--searcher", "json:decoder"), "must be a class or a function"),
        (("c.yaml", "--set", "budget.second=5"), "did you mean seconds?"),
        (("c.yaml", "--storage", "nonsense"), "storage: got 'nonsense'"),
        (("c.yaml", "--storage", f"sqlite:///{'x' * 300}.db"), "File name too long"),
        (("c.yaml", "--trials", "0"), "Invalid value for '--trials'"),
        (("c.yaml", "--nope"), "No such option"),
        ((), "Missing argument"),
    ],
)
def test_wrong_input_is_refused_in_words(cli, folder, arguments, message):
    answer = cli("launch", *arguments)
    assert answer.code == ExitCode.WRONG_INPUT
    assert answer.err.startswith("error: ")
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""
    assert not (folder / "autotune.db").exists()


def test_resources_that_cannot_be_had_have_their_own_code(cli, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no nvidia-smi
    answer = cli("launch", "c.yaml", "--set", "hardware.accelerator=cuda")
    assert answer.code == ExitCode.RESOURCES
    assert "hardware.accelerator" in answer.err


def test_calibrated_search_knows_the_study_s_workload_and_goes_on(cli, folder):
    assert cli("launch", "c.yaml", "--searcher", "calibrated", "--trials", "3").code == 0
    assert cli("resume", "sim", "--trials", "5").code == 0
    assert "5 trials" in cli("status", "sim").out


def test_a_searcher_of_ones_own(cli, folder, monkeypatch):
    (folder / "mine.py").write_text(
        "from autotune.searchers.optuna import OptunaSearcher\n"
        "def searcher(space, *, seed, trial_budget):\n"
        "    return OptunaSearcher(space, sampler='random', seed=seed + trial_budget)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    answer = cli("launch", "c.yaml", "--searcher", "mine:searcher", "--trials", "3")
    assert answer.code == ExitCode.OK
    assert "mine:searcher" in cli("studies").out


def test_storage_from_the_environment(cli, folder, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_STORAGE", "sqlite:///mine.db")
    answer = cli("launch", "c.yaml", "--trials", "2")
    assert (folder / "mine.db").exists()
    assert "autotune report sim -o report.html " in answer.out
    assert "--storage" not in answer.out  # the next command finds it the same way
    assert cli("studies").code == ExitCode.OK


def test_commands_to_type_next_are_whole_on_a_narrow_terminal(cli, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    storage = f"sqlite:///{folder}/a-storage-whose-name-is-longer-than-most.db"
    answer = cli("launch", "c.yaml", "--trials", "2", "--storage", storage)
    commands = [line for line in answer.out.splitlines() if line.startswith("  autotune ")]
    assert commands
    assert all(line.endswith(f"--storage {storage}") for line in commands)


def test_the_plan_says_how_long_a_trial_is(cli):
    words = " ".join(cli("launch", "c.yaml", "--trials", "2", "--set", "budget.seconds=2").out.split())
    assert "each trains for 2 s, or until the step time is known within 3 %" in words
    steps = ("--set", "budget={steps: 1200, precision: 0}")
    words = " ".join(cli("launch", "c.yaml", "--trials", "2", "--study", "other", *steps).out.split())
    assert "each trains for 1,200 steps finals" in words
