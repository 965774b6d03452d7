"""The memory filter in a launch, `autotune calibrate`, and calibrations that one study takes over from another."""

from __future__ import annotations

import csv
import io
import json

import pytest

from autotune import storage as storages
from autotune.campaign.calibrating import kept_calibration, prior_of
from autotune.cli.exit_codes import ExitCode
from autotune.performance.calibration import WORKLOAD, calibration_priors
from tests.autotune.cli.conftest import CAMPAIGN, URL, trials_of

CROWDED = ("--set", "simulated.workload_seed=3", "--trials", "10")
"""Of a workload whose first ten random points hold two that can't fit."""


def attributes(name):
    storage = storages.connect(URL)
    try:
        stored = storage.open(name)
        return kept_calibration(stored), prior_of(stored)
    finally:
        storage.close()


def test_what_cannot_fit_costs_no_trial_and_is_told(cli):
    launched = cli("launch", "c.yaml", *CROWDED, "-q")
    assert launched.code == ExitCode.OK
    assert "The memory filter refused 2 configurations without a trial" in launched.out
    assert "The memory filter refused 2 configurations" in cli("status", "sim").out
    assert json.loads(cli("status", "sim", "--format", "json").out)["refused_configurations"] == 2
    assert "The memory filter refused 2 configurations" in cli("report", "sim", "--markdown").out

    cli("launch", "c.yaml", *CROWDED, "-q", "--study", "without", "--set", "memory_filter=off")
    assert json.loads(cli("status", "without", "--format", "json").out)["refused_configurations"] == 0
    assert len(trials_of("without")) == len(trials_of("sim")) == 10


def test_a_study_that_was_interrupted_goes_on_with_its_filter_as_if_it_had_not_been(cli):
    for name, budgets in (("whole", ("10",)), ("parts", ("3", "7", "10"))):
        cli("launch", "c.yaml", *CROWDED[:2], "-q", "--study", name, "--trials", budgets[0])
        for budget in budgets[1:]:
            cli("resume", name, "-q", "--trials", budget)
    assert [trial.point for trial in trials_of("parts")] == [trial.point for trial in trials_of("whole")]
    refused = [
        json.loads(cli("status", name, "--format", "json").out)["refused_configurations"] for name in ("whole", "parts")
    ]
    assert refused == [2, 2]


@pytest.mark.usefixtures("finished")
class TestCalibrate:
    """Of the finished study `sim`."""

    def test_a_finished_launch_keeps_its_calibration(self):
        kept, prior = attributes("sim")
        assert kept.fitted.trials == len([t for t in trials_of("sim") if t.measurement or t.failure])
        assert prior is None

    def test_the_table_says_what_was_learnt_and_how_well_trials_left_out_are_foretold(self, cli):
        answer = cli("calibrate", "sim")
        assert answer.code == ExitCode.OK
        for text in ("fitted to", "the table's", "step time error", "in 8 folds", "noise", "Coefficient", "Moved by"):
            assert text in answer.out

    def test_csv_has_a_row_for_each_measured_trial(self, cli):
        rows = list(csv.DictReader(io.StringIO(cli("calibrate", "sim", "--format", "csv").out)))
        measured = {t.number: t.measurement for t in trials_of("sim") if t.measurement}
        assert [int(row["number"]) for row in rows] == list(measured)
        for row in rows:
            real, after = float(row["step_time_s_measured"]), float(row["step_time_s_after"])
            assert real == measured[int(row["number"])].step_time_s
            assert float(row["step_time_s_error_after"]) == pytest.approx(abs(after / real - 1))

    def test_json_has_every_coefficient(self, cli):
        said = json.loads(cli("calibrate", "sim", "--format", "json").out)
        assert {each["name"] for each in said["coefficients"]} == set(calibration_priors(is_cpu=False))
        assert said["calibrated_from"] is None
        assert said["observations"]["step_time"] == len(said["checks"])

    def test_another_study_takes_it_over(self, cli):
        launched = cli("launch", "c.yaml", "-q", "--study", "next", "--trials", "2", "--calibrate-from", "sim")
        assert launched.code == ExitCode.OK
        (kept, _), (_, prior) = attributes("sim"), attributes("next")
        table = calibration_priors(is_cpu=False)
        assert {name for name in prior if prior[name] != table[name]} == set(table) - WORKLOAD
        assert prior["context_bytes"].mean == pytest.approx(kept.coefficients().context_bytes)
        assert "study sim's calibration" in cli("calibrate", "next").out

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (("simulated.workload_seed=0",), "was measured with device of the hardware table"),
            (("evaluator=recorded", "recorded.path=x.json"), "was measured with evaluator 'simulated', and here"),
            (("calibrate_from=nobody",), "study 'nobody' is not in"),
        ],
    )
    def test_what_says_nothing_here_is_refused_and_no_study_made(self, cli, changes, words):
        given = [word for change in ("calibrate_from=sim", *changes) for word in ("--set", change)]
        answer = cli("launch", "c.yaml", "-q", "--study", "next", *given)
        assert answer.code == ExitCode.STUDY
        assert words in answer.err
        assert "next" not in cli("studies").out


def test_a_study_without_trials_that_tell_has_no_calibration_to_take_over(cli, folder):
    (folder / "c.yaml").write_text(CAMPAIGN.replace("lr: 3.0e-4", "lr: 1.0e+6"))
    assert cli("launch", "c.yaml", "-q", "--trials", "1").code == ExitCode.NO_RESULT
    storage = storages.connect(URL)
    storage.open("sim").set_attribute("calibration", None)
    storage.close()
    answer = cli("launch", "c.yaml", "-q", "--study", "next", "--calibrate-from", "sim")
    assert answer.code == ExitCode.STUDY
    assert "study 'sim' has no calibration; make one: autotune calibrate sim" in answer.err
