"""Campaigns over a real PostgreSQL server: stopped, killed, resumed, and the server gone for a while."""

from __future__ import annotations

import multiprocessing
import signal
import time

import optuna
import pytest

from autotune import storage as storages
from autotune.cli.exit_codes import ExitCode
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.storage import patience
from autotune.trials import FailureKind, TrialState
from tests.autotune.cli.conftest import trials_of
from tests.postgres import PASSWORD

BUDGET = 12
LAUNCH = ("launch", "c.yaml", "--trials", str(BUDGET), "--set", "runner=local", "--storage")


@pytest.fixture
def url(postgres, monkeypatch):
    """A database's URL; the password comes from the environment, as it should."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("SLOW_STAGE_S", "0.06")
    return postgres.url(postgres.new_database(), with_password=False)


def complete(url, name="sim"):
    """Return the trials that count, after checking that they are one whole study, as the simulator measures it."""
    trials = trials_of(name, url)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert all(trial.state is not TrialState.RUNNING for trial in trials)
    counted = [trial for trial in trials if trial.counts]
    assert len(counted) == BUDGET
    assert len({trial.config_hash for trial in counted}) == BUDGET
    return counted


def cancelled(url):
    return [t for t in trials_of("sim", url) if t.failure is not None and t.failure.kind is FailureKind.CANCELLED]


def test_a_campaign_is_stopped_resumed_and_reported(url, launch_slowly, cli, postgres):
    launch = launch_slowly(*LAUNCH, url)
    launch.wait_until_running(2)
    refused = cli("resume", "sim", "--storage", url)
    assert refused.code == ExitCode.STUDY
    assert "is being run by process" in refused.err
    assert postgres.drop_connections() > 0
    launch.wait_until_running(4)
    assert "running" in cli("status", "sim", "--storage", url).out
    launch.send(signal.SIGINT)
    assert launch.end() == ExitCode.STOPPED
    assert "storage does not answer" not in launch.output
    assert "error" not in launch.output.lower()
    assert f"autotune resume sim --storage {url}" in launch.output

    assert cli("resume", "sim", "--storage", url).code == ExitCode.OK
    counted = complete(url)
    assert cancelled(url) == []
    assert cli("report", "sim", "-o", "r.html", "--storage", url).code == ExitCode.OK
    assert "sim" in cli("studies", "--storage", url).out
    rdb = optuna.storages.RDBStorage(url)
    study = optuna.load_study(study_name="sim", storage=rdb)
    best = max((trial for trial in counted if trial.score is not None), key=lambda trial: trial.score)
    assert (study.best_trial.number, study.best_value) == (best.number, best.score)
    assert study.best_params == best.point
    rdb.engine.dispose()


def test_a_controller_killed_without_warning_loses_nothing(url, launch_slowly, cli):
    launch = launch_slowly(*LAUNCH, url)
    launch.wait_until_running(3)
    launch.send(signal.SIGKILL)
    launch.end()
    before = [trial for trial in trials_of("sim", url) if trial.state is not TrialState.RUNNING]
    assert len(before) >= 3
    assert cli("resume", "sim", "--storage", url).code == ExitCode.OK
    assert complete(url)[: len(before)] == before
    assert len(cancelled(url)) <= 1


@pytest.mark.parametrize("time_s", [2.5, pytest.param(12.0, marks=pytest.mark.slow)])
def test_a_server_that_is_gone_for_a_while_is_waited_for(url, launch_slowly, cli, postgres, time_s):
    launch = launch_slowly(*LAUNCH, url)
    launch.wait_until_running(2)
    postgres.stop()
    try:
        begun_s = time.monotonic()
        answer = cli("status", "sim", "--storage", url)
        assert time.monotonic() - begun_s < 10
        assert answer.code == ExitCode.WRONG_INPUT
        assert "storage: can't open" in answer.err
        assert "Connection refused" in answer.err
        launch.wait_for("the storage does not answer")
        time.sleep(max(0.0, time_s - (time.monotonic() - begun_s)))
    finally:
        postgres.start()
    launch.wait_for("the storage answers again")
    assert launch.end(timeout_s=60) == ExitCode.OK
    assert launch.output.count("the storage does not answer") == 1
    assert launch.output.count("the storage answers again") == 1
    complete(url)
    assert cancelled(url) == []


def test_after_the_patience_it_ends_with_one_message_and_can_be_resumed(url, cli, postgres, monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE_S", 1.0)
    evaluate = SimulatedEvaluator.evaluate

    def stopping(self, request, **arguments):
        if request.number == 3:
            postgres.stop()
        return evaluate(self, request, **arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SimulatedEvaluator, "evaluate", stopping)
        answer = cli("launch", "c.yaml", "--trials", str(BUDGET), "--storage", url)
    postgres.start()
    assert answer.code == ExitCode.WRONG_INPUT
    assert answer.err.startswith("error: storage: postgresql+psycopg://tuner@127.0.0.1")
    assert "has not answered for 1 s" in answer.err
    assert f"autotune resume sim --storage {url}" in answer.err
    assert len(answer.err.splitlines()) == 1
    storage = storages.connect(url)
    storage.open("sim").set_attribute("controller", None)  # as if its process, which is this one, had ended
    storage.close()
    assert cli("resume", "sim", "--storage", url).code == ExitCode.OK
    counted = complete(url)
    (lost,) = cancelled(url)
    assert lost.number == 3
    assert counted[3].point == lost.point  # it was run again


def opened(url, at_once):
    at_once.wait(60)
    storages.connect(url).close()


def test_several_make_the_tables_at_once(url):
    fork = multiprocessing.get_context("fork")
    at_once = fork.Barrier(6)
    processes = [fork.Process(target=opened, args=(url, at_once)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 6
    storage = storages.connect(url)
    assert storage.names() == []
    storage.close()


def test_a_database_without_a_locale_serves_too(url, postgres, cli):
    plain = postgres.url(postgres.new_database(encoding="SQL_ASCII"))
    answer = cli("launch", "c.yaml", "--trials", "2", "--storage", plain)
    assert answer.code in (ExitCode.OK, ExitCode.NO_RESULT), answer.err
    assert PASSWORD not in answer.out + answer.err
    assert len(trials_of("sim", plain)) == 2


def test_a_wrong_password_and_a_missing_driver_say_so(url, cli, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "wrong")
    answer = cli("studies", "--storage", url)
    assert answer.code == ExitCode.WRONG_INPUT
    assert "password authentication failed" in answer.err
    answer = cli("studies", "--storage", url.replace("+psycopg", "+pg8000"))
    assert answer.code == ExitCode.WRONG_INPUT
    assert "pip install 'deepspeed-autotune[postgresql]'" in answer.err
