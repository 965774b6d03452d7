"""One new SQLite storage and many processes at once: those that make and fill it, and those that look meanwhile."""

from __future__ import annotations

import subprocess
import sys

from autotune import storage as storages
from autotune.trials import TrialState

WRITERS = 12
TRIALS = 3
URL = "sqlite:///autotune.db"
CAMPAIGN = """\
evaluator: simulated
searcher: random
hardware: {ranks: 2, accelerator: cpu}
ds_config: {train_micro_batch_size_per_gpu: 4, optimizer: {type: AdamW, params: {lr: 3.0e-4}}}
"""
NURSERY = f"""
import multiprocessing, os, sys, time
from pathlib import Path
import optuna
from autotune.cli.app import app
from autotune.cli.border import run
from autotune import campaign as campaigns, storage as storages
from autotune.cli import listings  # what takes long to load, before all begin at once
from autotune.study import Start
from autotune.trials import Budget, Failure, FailureKind, Outcome, TrialRequest

fork = multiprocessing.get_context("fork")
at_once, ended = fork.Barrier({WRITERS} + 2), fork.Event()

storages.connect("sqlite:///warm.db").close()  # loads alembic
campaign = campaigns.load("c.yaml")
hardware = campaigns.hardware_of(campaign)
space = campaigns.space_of(campaign, hardware)
config, _ = campaigns.start_config(campaign, hardware)
point = Start.of(config, space).point
request = TrialRequest(number=0, point=point, ds_config=config, budget=Budget(seconds=1))
outcome = Outcome(failure=Failure(kind=FailureKind.CRASH, reason="made up"))

def write(name):
    at_once.wait()
    storage = storages.connect({URL!r})
    study = campaigns.create(campaign, storage, name=name)
    for number in range({TRIALS}):
        assert study.start_trial(request, space, is_baseline=number == 0) == number
        study.finish_trial(number, outcome, None)
    storage.close()

def look():
    at_once.wait()
    looks = 0
    while not (ended.is_set() and looks):
        if Path("autotune.db").exists():
            for arguments in (["studies", "--format", "json"], ["status", "s0"]):
                code = run(app, [*arguments, "--debug"])
                if code not in (0, 3):  # 3: there is no such study yet
                    sys.exit(f"autotune {{arguments}} ended with {{code}}")
            looks += 1
        time.sleep(0.1)

def look_with_optuna():
    at_once.wait()
    while not Path("autotune.db").exists():
        pass
    looks = 0
    while not (ended.is_set() and looks):
        for name in optuna.get_all_study_names({URL!r}):
            looks += len(optuna.load_study(study_name=name, storage={URL!r}).trials)
        time.sleep(0.1)

writers = {{f"s{{i}}": fork.Process(target=write, args=(f"s{{i}}",)) for i in range({WRITERS})}}
readers = {{"status": fork.Process(target=look), "load_study": fork.Process(target=look_with_optuna)}}
for process in (*writers.values(), *readers.values()):
    process.start()
for process in writers.values():
    process.join()
ended.set()
for process in readers.values():
    process.join()
codes = {{name: process.exitcode for name, process in (writers | readers).items()}}
sys.exit(f"exit codes: {{codes}}" if any(codes.values()) else 0)
"""


def test_twelve_open_a_new_storage_at_once_while_others_read(tmp_path):
    (tmp_path / "c.yaml").write_text(CAMPAIGN)
    names = [f"s{index}" for index in range(WRITERS)]
    command = [sys.executable, "-c", NURSERY]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert not [line for line in answer.stderr.splitlines() if "s0" not in line], answer.stderr

    storage = storages.connect(f"sqlite:///{tmp_path}/autotune.db")
    assert sorted(storage.names()) == sorted(names)
    for name in names:
        trials = storage.open(name).trials()
        assert [trial.number for trial in trials] == list(range(TRIALS))
        assert all(trial.state is TrialState.FAIL for trial in trials)
    storage.close()
