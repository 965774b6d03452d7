"""The main job on real trials, as a user does it: launch, killed and resumed, validated, exported, reported."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import psutil
import pytest

from autotune import campaign as campaigns
from autotune import ds_config
from autotune import storage as storages
from autotune.evaluators import op_cache

pytestmark = [pytest.mark.real, pytest.mark.ray]

AUTOTUNE = [sys.executable, "-c", "from autotune.cli import main; main()"]
CAMPAIGN = Path(__file__).parents[1] / "experiments" / "quickstart" / "campaign.yaml"
LOADS = """
import os, sys
import deepspeed, deepspeed.comm.torch, torch
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # takes a minute to compile; for inference only
deepspeed.init_distributed(dist_backend="gloo")
model = torch.nn.Linear(4, 4)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=sys.argv[1])
if engine.global_rank == 0:
    print("loaded", engine.zero_optimization_stage(), engine.train_batch_size(), flush=True)
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("campaign")


def autotune(*arguments, folder, check=True):
    """Run the command line in `folder`, with the storage there."""
    environment = os.environ | {"AUTOTUNE_STORAGE": f"sqlite:///{folder}/autotune.db"}
    done = subprocess.run(
        [*AUTOTUNE, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def trials(folder):
    opened = storages.connect(f"sqlite:///{folder}/autotune.db")
    try:
        return opened.open("real").trials()
    finally:
        opened.close()


def summary(folder):
    opened = storages.connect(f"sqlite:///{folder}/autotune.db")
    try:
        return campaigns.summary(opened.open("real"))
    finally:
        opened.close()


def test_a_campaign_killed_in_its_third_trial_is_resumed(folder):
    short = ["--set", "budget.seconds=1", "--set", "space.narrow.gradient_accumulation_steps=[1, 4]"]
    short += ["--set", "finals={candidates: 1, runs: 6}"]
    arguments = ["launch", str(CAMPAIGN), "--study", "real", "--trials", "4", *short]
    environment = os.environ | {"AUTOTUNE_STORAGE": f"sqlite:///{folder}/autotune.db"}
    launched = subprocess.Popen(
        [*AUTOTUNE, *arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        time.sleep(0.5)
        # A rank of the third trial is there: the kill falls into the middle of it.
        if list((folder / "autotune_runs" / "real" / "trial-00002").glob("rank*/stage")):
            break
    children = psutil.Process(launched.pid).children(recursive=True)
    launched.send_signal(signal.SIGKILL)
    launched.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []

    before = trials(folder)
    assert [trial.state.value for trial in before] == ["COMPLETE", "COMPLETE", "RUNNING"]
    resumed = autotune("resume", "real", folder=folder)
    assert "2 of 4 trials done, 2 to run" in resumed.stdout
    after = trials(folder)
    assert [trial.number for trial in after if trial.counts] == [0, 1, 3, 4]
    assert after[:2] == before[:2]
    assert dict(after[3].point) == dict(before[2].point)
    assert after[2].failure.reason == "the controller ended before the trial did"


def test_the_leader_was_run_again_before_it_was_named(folder):
    held = summary(folder)
    if not held.leaders:
        assert held.finals is None
        return
    finals = held.finals
    assert finals.verdict is not None
    assert [(run.round, run.number) for run in finals.record.runs[:4]] == [
        (1, 0),
        (1, finals.record.entrants[0].number),
        (2, finals.record.entrants[0].number),
        (2, 0),
    ]
    assert all(run.result.samples_per_second > 0 for run in finals.record.runs if run.result.failure is None)
    assert held.best.number == finals.winner
    status = json.loads(autotune("status", "real", "--format", "json", folder=folder).stdout)
    assert (status["state"], status["finals"], status["best_trial"]) == ("finished", finals.verdict, finals.winner)


def test_every_real_trial_says_what_it_measured(folder):
    for trial in trials(folder):
        if trial.measurement is None:
            continue
        measured = trial.measurement
        assert measured.samples_per_second == pytest.approx(measured.samples_per_step / measured.step_time_s)
        assert 5.4 < measured.held_out_loss_before < 5.7  # untrained: about ln 256 = 5.55 nats a byte
        assert measured.held_out_loss_after < measured.held_out_loss_before or not trial.is_baseline
        assert len(measured.peak_memory_bytes) == 2
        assert measured.communication_s > 0
        assert measured.effective_config["train_batch_size"] == trial.ds_config["train_batch_size"]
        assert measured.versions["deepspeed"]


def test_the_export_is_what_was_measured_and_deepspeed_loads_it(folder):
    autotune("export", "real", "-o", "best.json", folder=folder)
    exported = json.loads((folder / "best.json").read_text())
    best = summary(folder).best
    assert ds_config.complete(exported, world_size=2) == best.ds_config
    provenance = json.loads((folder / "best.provenance.json").read_text())
    assert provenance
    (folder / "loads.py").write_text(LOADS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    built = os.environ | {"TORCH_EXTENSIONS_DIR": str(op_cache.directory("cpu"))}
    loaded = subprocess.run(
        [*launcher, "loads.py", "best.json"], cwd=folder, env=built, capture_output=True, text=True, timeout=200
    )
    assert loaded.returncode == 0, loaded.stderr
    (line,) = (line for line in loaded.stdout.splitlines() if line.startswith("loaded"))
    assert line == f"loaded {exported['zero_optimization']['stage']} {best.ds_config['train_batch_size']}"


def test_the_best_is_measured_against_the_start_again(folder):
    best = summary(folder).best
    validated = autotune("validate", "real", "--repeats", "3", folder=folder, check=False)
    if best.is_baseline:
        assert "nothing beat it" in validated.stdout + validated.stderr
        return
    assert validated.returncode in (0, 1), validated.stdout + validated.stderr
    assert len(trials(folder)) == 5
    opened = storages.connect(f"sqlite:///{folder}/autotune.db")
    assert len(opened.open("real").attribute("validation")["pairs"]) == 3
    opened.close()


def test_reports_and_logs_are_there(folder):
    autotune("report", "real", "-o", "report.html", folder=folder)
    assert "real" in (folder / "report.html").read_text()
    assert "| " in autotune("report", "real", "--markdown", folder=folder).stdout
    assert autotune("logs", "real", "0", folder=folder).stdout
    rows = json.loads(autotune("trials", "real", "--format", "json", folder=folder).stdout)
    assert [row["number"] for row in rows] == [0, 1, 2, 3, 4]


def test_optuna_reads_the_same_storage(folder):
    study = optuna.load_study(study_name="real", storage=f"sqlite:///{folder}/autotune.db")
    completed = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    assert completed
    assert all("zero_optimization.stage" in trial.params for trial in completed)
    assert study.best_value >= 1.0
