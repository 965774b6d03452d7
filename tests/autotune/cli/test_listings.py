"""Listings parse in every format and agree with the storage."""

from __future__ import annotations

import csv
import io
import json
import re
from contextlib import closing

import pytest

from autotune import storage as storages
from autotune.cli.exit_codes import ExitCode
from autotune.evaluators.recorded import RecordedEvaluator
from autotune.trials import Budget, Outcome, TrialRequest
from tests import recorded_trials
from tests.autotune.cli.conftest import trials_of

pytestmark = pytest.mark.usefixtures("finished")
LISTINGS = [("studies",), ("status", "sim"), ("trials", "sim"), ("show", "sim", "1"), ("space", "c.yaml"), ("doctor",)]


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: listing[0])
def test_every_listing_has_three_formats(cli, listing):
    json.loads(cli(*listing, "--format", "json").out)
    rows = list(csv.DictReader(io.StringIO(cli(*listing, "--format", "csv").out)))
    assert rows
    assert all(None not in row and None not in row.values() for row in rows)
    table = cli(*listing)
    assert table.code == ExitCode.OK
    assert "\x1b" not in table.out
    assert all(line == line.rstrip() for line in table.out.splitlines())


def test_trials_as_json_are_whole(cli):
    rows = json.loads(cli("trials", "sim", "--format", "json").out)
    trials = trials_of("sim")
    assert [row["number"] for row in rows] == [trial.number for trial in trials]
    for row, trial in zip(rows, trials, strict=True):
        assert row["point"] == dict(trial.point)
        assert row["ds_config"] == dict(trial.ds_config)
        assert row["is_baseline"] is trial.is_baseline
        assert row["activation_checkpointing"] is trial.activation_checkpointing
        assert (row["score"], row["throughput_ratio"]) == (trial.score, trial.throughput_ratio)
        assert Outcome.from_json(row["outcome"]) == trial.outcome
        assert row["started_at"] < row["finished_at"]


def test_trials_as_json_are_what_the_recorded_evaluator_reads(cli, finished):
    (finished / "recorded.json").write_text(cli("trials", "sim", "--format", "json").out)
    trial = trials_of("sim")[3]
    request = TrialRequest(number=3, point=trial.point, ds_config=trial.ds_config, budget=Budget(seconds=1))
    evaluator = RecordedEvaluator(path=str(finished / "recorded.json"))
    outcome = evaluator.evaluate(request, hosts=(), progress=lambda stage: None, cancelled=lambda: False)
    assert outcome == trial.outcome
    answer = cli(
        "launch", "c.yaml", "--study", "replay", "--set", "evaluator=recorded", "--set", "recorded.path=recorded.json"
    )
    assert answer.code == ExitCode.OK


def test_other_weights_give_another_r(cli):
    rows = json.loads(cli("trials", "sim", "--format", "json", "--alpha", "1").out)
    assert all(row["score"] == pytest.approx(row["throughput_ratio"]) for row in rows if row["score"] is not None)
    rows = json.loads(cli("trials", "sim", "--format", "json", "--beta", "1").out)
    assert all(row["score"] == pytest.approx(row["convergence_ratio"]) for row in rows if row["score"] is not None)
    both = json.loads(cli("status", "sim", "--format", "json", "--alpha", "0.2", "--beta", "0.3").out)
    assert (both["alpha"], both["beta"]) == (0.2, 0.3)
    assert cli("status", "sim", "--alpha", "-1").code == ExitCode.WRONG_INPUT
    assert json.loads(cli("status", "sim", "--format", "json").out)["alpha"] == 0.5


def test_status_names_the_best(cli):
    best = max((t for t in trials_of("sim") if t.score is not None), key=lambda trial: trial.score)
    assert f"Best (trial {best.number})" in cli("status", "sim").out
    assert json.loads(cli("status", "sim", "--format", "json").out)["best_trial"] == best.number


def test_show_tells_why_a_trial_failed(cli):
    failed = next(trial for trial in trials_of("sim") if trial.failure is not None)
    out = cli("show", "sim", str(failed.number)).out
    assert failed.failure.kind in out
    assert failed.failure.reason in out


def test_space_tells_what_is_left_out(cli):
    data = json.loads(cli("space", "c.yaml", "--format", "json").out)
    assert len(data["dimensions"]) == 12
    assert {"precision", "zero_optimization.offload"} <= {out["name"] for out in data["left_out"]}
    assert data["start"]["zero_optimization.stage"] == 1
    assert "left out: precision = fp16" in cli("space", "c.yaml").out
    narrowed = cli("space", "c.yaml", "--format", "json", "--set", "space.fix={precision: bf16}")
    assert json.loads(narrowed.out)["fixed"] == {"precision": "bf16"}


def test_a_start_outside_the_space_is_told_of(cli):
    inside = json.loads(cli("space", "c.yaml", "--format", "json").out)
    assert inside["start_outside"] is None
    assert "outside" not in cli("space", "c.yaml").out
    offload = "ds_config.zero_optimization={stage: 3, offload_param: {device: cpu}}"
    data = json.loads(cli("space", "c.yaml", "--format", "json", "--set", offload).out)
    assert data["start"] == {}
    rows = {row["name"]: row["start"] for row in data["dimensions"]}
    assert rows["zero_optimization.offload"] == "parameters"
    remark = "outside the space (zero_optimization.offload: got 'parameters'; it must be one of ['none']): it is"
    assert f"your configuration lies {remark}" in " ".join(cli("space", "c.yaml", "--set", offload).out.split())
    launched = cli("launch", "c.yaml", "--study", "offloaded", "--trials", "1", "--set", offload).out
    assert remark in " ".join(launched.split())
    fixed = json.loads(cli("space", "c.yaml", "--format", "json", "--set", "space.fix={precision: bf16}").out)
    assert fixed["start_outside"] == "precision: got 'fp32'; the campaign fixes it at 'bf16'"


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize(
    "listing", [("trials", "sim"), ("studies",), ("show", "sim", "2"), ("space", "c.yaml")], ids=lambda item: item[0]
)
def test_tables_fit_narrow_screens(cli, monkeypatch, width, listing):
    monkeypatch.setenv("COLUMNS", str(width))
    assert all(len(line) <= width for line in cli(*listing).out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("status", "nothing"), "study 'nothing' is not in"),
        (("show", "sim", "99"), "study 'sim' has no trial 99; it has 0 to 11"),
        (("logs", "sim", "1"), "has no log: it is simulated"),
        (("export", "sim", "--trial", "99"), "99"),
    ],
)
def test_what_does_not_exist_is_refused(cli, arguments, message):
    answer = cli(*arguments)
    assert answer.code == ExitCode.STUDY
    assert message in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("finals", [{"entrants": [{"number": 1, "changes": 2}]}], "record of the finals"),
        ("hardware", {"gpu": 1}, "hardware"),
        ("baseline_readings", [{}], "readings of the machine"),
        ("cold_checks", [{}], "cold checks"),
    ],
)
def test_a_study_of_another_version_is_refused_and_hides_no_other(cli, key, value, what):
    assert cli("launch", "c.yaml", "--study", "newer").code == ExitCode.OK
    with closing(storages.connect("sqlite:///autotune.db")) as storage:
        storage.open("sim").set_attribute(key, value)
    for arguments in (("status", "sim"), ("report", "sim"), ("export", "sim"), ("resume", "sim", "--trials", "9")):
        answer = cli(*arguments)
        assert answer.code == ExitCode.STUDY
        assert f"study 'sim': its {what} can't be read" in answer.err
        assert "another version of autotune" in answer.err
    answer = cli("studies", "--format", "json")
    assert answer.code == ExitCode.OK
    assert [study["name"] for study in json.loads(answer.out)] == ["newer"]
    assert answer.err.startswith(f"left out: study 'sim': its {what}")


def test_a_missing_storage_is_not_made(cli, finished):
    (finished / "autotune.db").unlink()
    answer = cli("studies")
    assert answer.code == ExitCode.WRONG_INPUT
    assert "there is no file autotune.db here" in answer.err
    assert not (finished / "autotune.db").exists()


def test_a_pruned_trial_is_shown_with_its_reason_and_its_figures_so_far(cli, folder):
    opened = storages.connect("sqlite:///autotune.db")
    name = "replayed"
    replayed = recorded_trials.study(
        opened, "quickstart", searcher="cmaes", seed=1, pruner="percentile", trial_budget=12, name=name
    )
    opened.close()
    number = replayed.pruned[0]
    shown = " ".join(cli("show", name, str(number)).out.split())
    trial = replayed.trials[number]
    assert "state PRUNED" in shown
    assert f"R ~{trial.score:.3f}, estimated" in shown
    assert trial.outcome.pruned in shown
    assert f"{trial.intermediates[-1].timed_steps} timed step" in shown
    assert f"~{trial.score:.3f}" in cli("trials", name).out
    assert f"{len(replayed.pruned)} pruned" in cli("status", name).out
    rows = json.loads(cli("trials", name, "--format", "json").out)
    assert rows[number]["outcome"]["pruned"] == trial.outcome.pruned
    answer = cli("export", name, "--trial", str(number))
    assert answer.code != ExitCode.OK
    assert "it was pruned: clearly dominated" in answer.err


def test_a_long_table_shows_the_last_trials_and_says_where_all_are(finished, cli, monkeypatch):
    monkeypatch.setattr("autotune.cli.listings._LAST_TRIALS", 5)
    lines = cli("trials", "sim").out.splitlines()
    assert lines[-1] == "7 earlier trials left out; all of them: autotune trials sim --format csv"
    weighted = " ".join(cli("trials", "sim", "--alpha", "0.25").out.split())
    assert weighted.endswith("all of them: autotune trials sim --alpha 0.25 --format csv")
    numbers = [found[1] for line in lines if (found := re.match(r" *(\d+)  [A-Z]+", line))]
    assert numbers == ["7", "8", "9", "10", "11"]
    assert len(cli("trials", "sim", "--format", "csv").out.splitlines()) == 1 + 12


def test_a_name_can_be_copied_from_80_columns(cli, monkeypatch):
    name = "quickstart-20261201-094735"
    cli("launch", "c.yaml", "--trials", "2", "--study", name, "-q")
    monkeypatch.setenv("COLUMNS", "80")
    assert any(line.startswith(f"{name}  ") for line in cli("studies").out.splitlines())


def test_settings_are_not_broken_within_a_word(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = cli("show", "sim", "3").out.split()
    for name in changes_of(cli, 3):
        assert name in words or {f"{name.rpartition('.')[0]}.", name.rpartition(".")[2]} <= set(words), name


def changes_of(cli, number: int) -> list[str]:
    """Return the names of the first column of `show`, from a terminal that is wide enough for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        out = cli("show", "sim", str(number)).out
    names = re.findall(r"^(\w+(?:\.\w+)+) ", out, re.MULTILINE)
    assert max(map(len, names)) > 40
    return names
