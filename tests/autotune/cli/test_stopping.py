"""Ctrl-C, SIGTERM, kill -9 and `autotune stop`: a study ends cleanly, and is resumed without a gap or a repeat."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.cli.exit_codes import ExitCode
from autotune.cli.stopping import StopSignals
from autotune.study import StopRequest
from autotune.trials import FailureKind, TrialState
from tests.autotune.cli.conftest import SLOW, URL, trials_of

BUDGET = 20
STAGE_S = "0.1"
"""Of 5: the whole study would take 10 s, longer than any of these tests waits before it stops it."""
LAUNCH = ("launch", "c.yaml", "--trials", str(BUDGET), "--set", "runner=local")


def complete(name="sim"):
    """Return the trials that count, after checking that they are one whole study."""
    trials = trials_of(name)
    counted = [trial for trial in trials if trial.counts]
    assert all(trial.state is not TrialState.RUNNING for trial in trials)
    assert len({trial.config_hash for trial in counted}) == len(counted)
    return counted


def finals_of(name):
    storage = storages.connect(URL)
    try:
        return campaigns.summary(storage.open(name)).finals
    finally:
        storage.close()


def is_cancelled(trial):
    return trial.failure is not None and trial.failure.kind is FailureKind.CANCELLED


@pytest.fixture(autouse=True)
def slow(monkeypatch):
    monkeypatch.setenv("SLOW_STAGE_S", STAGE_S)


def test_one_ctrl_c_lets_the_running_trial_end(launch_slowly, cli):
    launch = launch_slowly(*LAUNCH)
    launch.wait_until_running(1)
    launch.send(signal.SIGINT)
    assert launch.end() == ExitCode.STOPPED
    assert "stopping after the running trial; Ctrl-C again cancels it" in launch.output
    assert "sim: stopped as asked." in launch.output
    assert "autotune resume sim" in launch.output
    executed = len(complete())
    assert 2 <= executed < BUDGET
    assert not any(is_cancelled(trial) for trial in trials_of("sim"))
    assert cli("resume", "sim").code == ExitCode.OK
    assert len(trials_of("sim")) == len(complete()) == BUDGET


def test_after_a_stop_no_more_trials_than_asked_for_are_suggested(launch_slowly):
    launch = launch_slowly(*LAUNCH)
    launch.wait_until_running(0)
    launch.send(signal.SIGINT)
    assert launch.end() == ExitCode.STOPPED
    assert "Your own configuration has been measured; nothing else has run yet." in launch.output
    assert "Go on with it: autotune resume sim\n" in launch.output
    assert "--trials" not in launch.output


def test_two_signals_cancel_it(launch_slowly, cli):
    launch = launch_slowly(*LAUNCH)
    launch.wait_until_running(1)
    launch.send(signal.SIGINT)
    launch.wait_for("stopping after the running trial")
    launch.send(signal.SIGINT)
    assert launch.end() == ExitCode.STOPPED
    assert is_cancelled(trials_of("sim")[-1])
    assert "CANCELLED" in launch.output
    assert cli("resume", "sim").code == ExitCode.OK
    assert len(complete()) == BUDGET
    assert len(trials_of("sim")) == BUDGET + 1


def test_a_termination_cancels_it(launch_slowly, cli):
    launch = launch_slowly(*LAUNCH)
    launch.wait_until_running(1)
    launch.send(signal.SIGTERM)
    assert launch.end() == ExitCode.STOPPED
    assert is_cancelled(trials_of("sim")[-1])
    assert cli("resume", "sim").code == ExitCode.OK
    assert len(complete()) == BUDGET


def test_one_signal_ends_preparation_at_once(launch_slowly, cli, monkeypatch):
    monkeypatch.setenv("SLOW_PREPARE_S", "60")
    launch = launch_slowly(*LAUNCH)
    launch.wait_for("getting ready")
    launch.send(signal.SIGINT)
    assert launch.end() == ExitCode.STOPPED
    assert "stopped: interrupted; to go on: autotune resume sim" in launch.output
    assert trials_of("sim") == []
    assert cli("resume", "sim", "--trials", "2").code == ExitCode.OK


def test_kill_loses_nothing_that_was_measured(launch_slowly, cli):
    launch = launch_slowly(*LAUNCH)
    launch.wait_until_running(3)
    launch.send(signal.SIGKILL)
    launch.end()
    before = [trial for trial in trials_of("sim") if trial.state is TrialState.COMPLETE]
    assert "unfinished" in cli("status", "sim").out
    assert cli("resume", "sim").code == ExitCode.OK
    after = complete()
    assert len(after) == BUDGET
    assert len(trials_of("sim")) <= BUDGET + 1
    assert [trial.number for trial in before] == [trial.number for trial in after if trial in before]
    cli("launch", "c.yaml", "--study", "whole", "--trials", str(BUDGET))
    assert [trial.point for trial in after] == [trial.point for trial in complete("whole")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_finals_go_on_where_they_were(launch_slowly, cli, number):
    launch = launch_slowly("launch", "c.yaml", "--set", "runner=local")
    launch.wait_for("finals  round 1  trial   4", timeout_s=60)
    launch.send(number)
    code = launch.end()
    before = finals_of("sim")
    assert before.verdict is None
    assert before.record.runs
    told = cli("status", "sim").out
    assert "unfinished" in told
    stopped = f"The finals were stopped: {len(before.record.runs)} runs of at most 20, no winner yet."
    assert stopped in " ".join(told.split())
    assert "autotune resume sim" in told
    assert json.loads(cli("status", "sim", "--format", "json").out)["finals"] == "stopped"
    if number == signal.SIGINT:
        assert code == ExitCode.STOPPED
        assert stopped in " ".join(launch.output.split())
        assert "autotune resume sim" in launch.output
    answer = cli("resume", "sim")
    assert answer.code == ExitCode.OK
    assert "sim: 6 trials done, finals to go on with" in answer.out
    after = finals_of("sim")
    assert after.verdict is not None
    assert after.record.runs[: len(before.record.runs)] == before.record.runs
    ran = [(run.round, run.number) for run in after.record.runs]
    assert len(ran) == len(set(ran))
    assert "finished" in cli("status", "sim").out
    assert len(complete()) == 6


def test_a_study_that_is_being_run_is_left_alone(launch_slowly, cli):
    launch = launch_slowly(*LAUNCH)
    launch.wait_for("trial   0")
    answer = cli("resume", "sim")
    assert answer.code == ExitCode.STUDY
    assert f"is being run by process {launch.process.pid}" in answer.err
    assert f"process {launch.process.pid}" in cli("status", "sim").out
    assert cli("validate", "sim").code == ExitCode.STUDY


@pytest.mark.parametrize("options", [(), ("--now",)])
def test_stop_from_another_process(launch_slowly, cli, options):
    launch = launch_slowly(*LAUNCH[:3], "200", *LAUNCH[4:])
    launch.wait_for("trial   0")
    answer = cli("stop", "sim", *options)
    assert answer.code == ExitCode.OK
    assert f"asked process {launch.process.pid}" in answer.out
    assert "sim: stopped." in answer.out
    assert "autotune resume sim" in answer.out
    assert launch.end() == ExitCode.STOPPED
    assert is_cancelled(trials_of("sim")[-1]) is bool(options)
    again = cli("stop", "sim")
    assert again.code == ExitCode.OK
    assert "isn't being run" in again.out


def test_a_comparison_goes_on_where_it_was_stopped(launch_slowly, cli):
    grid = ("compare", "c.yaml", "--searchers", "tpe,random", "--trials", "4", "--seeds", "1")
    launch = launch_slowly(*grid, "--set", "runner=local")
    launch.wait_for("[2/2] sim-random-seed0  trial   1")
    launch.send(signal.SIGINT)
    assert launch.end() == ExitCode.STOPPED
    assert "the same command goes on from here" in launch.output
    answer = cli(*grid, "--set", "runner=local")
    assert answer.code == ExitCode.OK
    assert answer.out.count("finished before") == 1
    assert len(complete("sim-random-seed0")) == 4


def test_a_terminal_has_one_live_line(folder):
    """On a real terminal, with Ctrl-C as the terminal sends it."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(SLOW), *LAUNCH],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=folder,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # noqa: PLW1509 - makes it the controlling one
    )
    os.close(terminal)
    try:
        seen = _read_until(controller, rb"last R")
        os.write(controller, b"\x03")
        seen += _read_until(controller, rb"stopping after the running trial")
        seen += _read_until(controller, None)
    finally:
        os.close(controller)
        code = process.wait(timeout=30)
    text = seen.decode()
    assert code == ExitCode.STOPPED
    assert re.search(rf"trial \d/{BUDGET}  (launch|rendezvous|initialize|first step|run) \d s", text)
    assert "\x1b[?25h" in text  # the cursor is shown again
    assert "Next" in text


def _read_until(descriptor: int, pattern: bytes | None, timeout_s: float = 30.0) -> bytes:
    seen = b""
    deadline_s = time.monotonic() + timeout_s
    while pattern is None or not re.search(pattern, seen):
        assert time.monotonic() < deadline_s, seen
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        seen += chunk
    return seen


class TestSignals:
    """Handlers while a study runs, and afterwards."""

    def test_handlers_are_restored(self):
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with StopSignals(StopRequest()):
            assert signal.getsignal(signal.SIGINT) not in before
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

    def test_preparation_is_interrupted_at_once(self):
        stop = StopRequest()
        with pytest.raises(KeyboardInterrupt), StopSignals(stop):
            signal.raise_signal(signal.SIGTERM)
        assert not stop.wanted

    def test_two_ask_and_a_third_interrupts(self):
        stop = StopRequest()
        with StopSignals(stop) as signals:
            signals.trials_run()
            signal.raise_signal(signal.SIGINT)
            assert (stop.wanted, stop.at_once) == (True, False)
            signal.raise_signal(signal.SIGINT)
            assert stop.at_once
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
