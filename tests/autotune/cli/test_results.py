"""Exports, reports, validations and logs."""

from __future__ import annotations

import json
import re
import socket
from contextlib import closing
from dataclasses import replace

import psutil
import pytest
import yaml

from autotune import ds_config
from autotune import storage as storages
from autotune.cli.exit_codes import ExitCode
from autotune.objective import Objective
from autotune.report.rescoring import rescored
from autotune.trials import Budget, Failure, FailureKind, Outcome, TrialRequest
from tests.autotune.cli.conftest import CAMPAIGN, URL, trials_of


@pytest.mark.usefixtures("finished")
class TestFiles:
    """What is written of a finished study."""

    def test_export_writes_the_best_as_it_was_measured(self, cli, finished):
        answer = cli("export", "sim", "-o", "best.json")
        best = max((t for t in trials_of("sim") if t.score is not None), key=lambda trial: trial.score)
        assert answer.code == ExitCode.OK
        assert ds_config.complete(json.loads((finished / "best.json").read_text()), world_size=2) == best.ds_config
        assert json.loads((finished / "best.provenance.json").read_text())["trial"] == best.number

    def test_export_for_hugging_face_prints_what_to_paste(self, cli, finished):
        answer = cli("export", "sim", "--for", "hf", "-o", "best.json", "--trial", "0")
        assert answer.code == ExitCode.OK
        written, _, pasted = answer.out.partition("Give your script these TrainingArguments")
        assert written == "written  best.json\nfigures  best.provenance.json\n\n"
        assert (
            "\n  --deepspeed best.json --per_device_train_batch_size 4 --gradient_accumulation_steps 2 "
            "--learning_rate 0.0003 --gradient_checkpointing false\n"
        ) in pasted
        kept = json.loads((finished / "best.provenance.json").read_text())
        assert kept["for"] == "hf"
        assert kept["flags"]["--learning_rate"] == 3e-4

    def test_export_for_accelerate_says_how_to_launch(self, cli, finished):
        answer = cli("export", "sim", "--for", "accelerate", "--trial", "0")
        assert "launch   accelerate.yaml\n" in answer.out
        assert "\n  accelerate launch --config_file accelerate.yaml YOUR_SCRIPT.py\n" in answer.out
        launch = yaml.safe_load((finished / "accelerate.yaml").read_text())
        assert launch["deepspeed_config"] == {"deepspeed_config_file": str(finished / "ds_config.json")}

    def test_numbers_are_written_as_in_the_campaign(self, cli, folder):
        text = CAMPAIGN.replace("{stage: 1}", "{stage: 1, sub_group_size: 1.0e9}")
        (folder / "c.yaml").write_text(text.replace("lr: 3.0e-4", "lr: 3.0e-4, eps: 1e-8"))
        cli("launch", "c.yaml", "--trials", "1", "--study", "other")
        cli("export", "other", "--trial", "0")
        text = (folder / "ds_config.json").read_text()
        assert '"lr": 3.0e-4' in text
        assert '"eps": 1e-8' in text
        assert '"sub_group_size": 1.0e9' in text

    def test_export_under_other_weights(self, cli, finished):
        cli("export", "sim", "-o", "fast.json", "--alpha", "1")
        fastest = max((t for t in trials_of("sim") if t.score is not None), key=lambda trial: trial.throughput_ratio)
        assert ds_config.complete(json.loads((finished / "fast.json").read_text()), world_size=2) == fastest.ds_config

    def test_report_as_html_and_markdown(self, cli, finished):
        assert cli("report", "sim").out == "written  sim.html\n"
        assert "<html" in (finished / "sim.html").read_text()
        assert cli("report", "sim", "--markdown").out.startswith("# sim")
        cli("report", "sim", "-o", "sim.md")
        assert (finished / "sim.md").read_text().startswith("# sim")

    def test_a_validation_is_kept_and_reported(self, cli):
        assert "Measured again" not in cli("report", "sim", "--markdown").out
        answer = cli("validate", "sim", "--repeats", "3")
        assert answer.code == ExitCode.OK
        assert "pair 3/3" in answer.out
        assert "The gain holds" in answer.out
        assert "Measured again" in cli("report", "sim", "--markdown").out
        assert len(trials_of("sim")) == 12

    def test_weights_of_a_summary(self, cli):
        storage = storages.connect(URL)
        try:
            from autotune import campaign as campaigns

            summary = campaigns.summary(storage.open("sim"))
        finally:
            storage.close()
        same = rescored(summary, summary.objective)
        assert [trial.score for trial in same.trials] == pytest.approx([trial.score for trial in summary.trials])
        doubled = rescored(summary, Objective(alpha=1.0, beta=1.0))
        assert doubled.best.number == summary.best.number
        assert doubled.best.score == pytest.approx(2 * summary.best.score)
        assert rescored(replace(summary, trials=()), Objective()).trials == ()


def test_nothing_to_validate(cli):
    cli("launch", "c.yaml", "--trials", "1")
    answer = cli("validate", "sim")
    assert answer.code == ExitCode.STUDY
    assert "no gain to validate" in answer.err


class TestLogs:
    """A trial's log, from its file or from the storage."""

    @pytest.fixture
    def failed(self, cli, folder):
        cli("launch", "c.yaml", "--trials", "1")
        storage = storages.connect(URL)
        stored = storage.open("sim")
        from autotune import campaign as campaigns

        space = campaigns.summary(stored).space
        request = TrialRequest(number=1, point={}, ds_config={}, budget=Budget(seconds=1))
        number = stored.start_trial(request, space, is_baseline=False)
        failure = Failure(kind=FailureKind.CRASH, reason="it broke", rank=1, exit_code=1, log_tail=("one", "two"))
        logs = {"rank0": str(folder / "0.log"), "rank1": str(folder / "1.log")}
        outcome = Outcome(failure=failure, logs=logs, nodes={"rank0": "10.0.0.1", "rank1": "10.0.0.2"})
        stored.finish_trial(number, outcome, None)
        stored.start_trial(request, space, is_baseline=False)
        storage.close()
        return folder

    def test_the_failed_ranks_file(self, cli, failed):
        (failed / "1.log").write_text("zero\none\ntwo\n")
        answer = cli("logs", "sim", "1")
        assert answer.out == "zero\none\ntwo\n"
        assert str(failed / "1.log") in answer.err

    def test_another_rank(self, cli, failed):
        (failed / "0.log").write_text("fine\n")
        assert cli("logs", "sim", "1", "--rank", "0").out == "fine\n"
        assert cli("logs", "sim", "1", "--rank", "5").code == ExitCode.STUDY

    def test_the_stored_tail_where_the_file_is_gone(self, cli, failed):
        answer = cli("logs", "sim", "1")
        assert answer.out == "one\ntwo\n"
        assert f"{failed / '1.log'}, is not on this machine but on the node where it ran, 10.0.0.2" in answer.err

    def test_where_there_is_no_tail_the_node_is_told(self, cli, failed):
        answer = cli("logs", "sim", "1", "--rank", "0")
        assert (answer.code, answer.out) == (ExitCode.STUDY, "")
        assert f"{failed / '0.log'}, is not on this machine but on the node where it ran, 10.0.0.1" in answer.err
        assert f"rank0: {failed / '0.log'}, on 10.0.0.1" in cli("show", "sim", "1").out.replace("\n", "")

    def test_show_has_the_tail(self, cli, failed):
        out = cli("show", "sim", "1").out
        assert "rank 1, exit code 1" in out
        assert "  two\n" in out

    def test_a_running_trial_has_none_yet(self, cli, failed):
        process = psutil.Process()
        controller = {"host": socket.gethostname(), "pid": process.pid, "created_at": process.create_time()}
        with closing(storages.connect(URL)) as storage:
            storage.open("sim").set_attribute("controller", controller)
        answer = cli("logs", "sim", "2")
        assert answer.code == ExitCode.STUDY
        assert "still running" in answer.err
        assert "RUNNING" in cli("trials", "sim").out
        assert re.search(r"^running +trial 2$", cli("status", "sim").out, re.MULTILINE)
        assert "2 running" in " ".join(cli("report", "sim", "--markdown").out.replace("|", " ").split())
        assert "it has not ended yet" in cli("export", "sim", "--trial", "2").err

    def test_what_a_killed_controller_left_open_is_not_called_running(self, cli, failed):
        answer = cli("logs", "sim", "2")
        assert answer.code == ExitCode.STUDY
        assert "was interrupted" in answer.err
        assert "autotune resume sim" in answer.err
        assert "INTERRUPTED" in cli("trials", "sim").out
        assert "RUNNING" not in cli("trials", "sim").out
        assert "INTERRUPTED" in cli("show", "sim", "2").out
        status = cli("status", "sim").out
        assert re.search(r"^interrupted +trial 2$", status, re.MULTILINE)
        assert "running" not in status
        assert "2 interrupted" in " ".join(cli("report", "sim", "--markdown").out.replace("|", " ").split())
        assert "it was interrupted" in cli("export", "sim", "--trial", "2").err
