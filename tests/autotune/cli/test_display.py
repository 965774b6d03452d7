"""The live line and the line of a finished trial."""

from __future__ import annotations

import io
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.cli.displays import LiveDisplay, clock, finished_line, live_line
from autotune.cli.progress import Progress
from autotune.cli.settings import in_short
from autotune.study import StopRequest
from autotune.trials import Stage, TrialState
from tests.autotune.cli.conftest import URL


@pytest.fixture
def summary(finished):
    storage = storages.connect(URL)
    try:
        yield campaigns.summary(storage.open("sim"))
    finally:
        storage.close()


def test_progress_counts_what_it_is_told(summary):
    progress = Progress(replace(summary, trials=()), stop=StopRequest())
    assert progress.stage == "preparing"
    for trial in summary.trials:
        progress.started(replace(trial, state=TrialState.RUNNING, outcome=None, score=None))
        progress.entered(trial.number, Stage.FIRST_STEP)
        assert progress.stage == "first step"
        assert progress.number == trial.number + 1
        progress.finished(trial)
    assert progress.executed == len(summary.trials) == summary.executed_count
    assert progress.failures == len(summary.failed)
    assert progress.best == summary.best
    assert progress.baseline == summary.baseline
    assert progress.left_s == 0
    assert progress.stage == "choosing the next"


def test_a_resumed_study_starts_with_what_it_has(summary):
    progress = Progress(summary, stop=StopRequest())
    assert progress.executed == summary.executed_count
    assert progress.best == summary.best
    assert progress.left_s is None


def test_what_happens_to_nodes_while_trials_run_stays_above_the_line(summary):
    out = StringIO()
    progress = Progress(summary, stop=StopRequest())
    display = LiveDisplay(Console(file=out, width=100), progress)
    display.note("preparing node 10.0.0.1")
    assert (progress.stage, out.getvalue()) == ("preparing node 10.0.0.1", "")
    progress.started(replace(summary.trials[1], state=TrialState.RUNNING))
    display.note("trial 1: its node died; it is measured again")
    assert progress.stage == "starting"
    assert "its node died" in out.getvalue()


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_the_live_line_fits_and_keeps_what_matters(summary, width):
    progress = Progress(summary, stop=StopRequest(), title="[2/9] sim  " if width > 60 else "")
    progress.started(replace(summary.trials[1], state=TrialState.RUNNING))
    progress.entered(1, Stage.RUN)
    line = live_line(progress, width=width)
    assert len(line) < width
    assert f"trial 12/{summary.trial_budget}" in line
    assert "run 0 s" in line
    assert ("best R" in line) is (width >= 60)


def test_preparation_is_shown_alone(summary):
    progress = Progress(summary, stop=StopRequest(), title="[1/2] ")
    progress.preparing = "starting Ray"
    assert live_line(progress, width=80) == "[1/2] starting Ray"


def test_a_wish_to_stop_is_shown(summary):
    stop = StopRequest()
    progress = Progress(summary, stop=stop)
    progress.started(replace(summary.trials[1], state=TrialState.RUNNING))
    stop()
    assert "stopping after the running trial; Ctrl-C again cancels it" in live_line(progress, width=120)
    stop()
    assert "cancelling the running trial" in live_line(progress, width=120)


def test_a_wish_to_stop_several_trials_is_shown(summary):
    stop = StopRequest()
    progress = Progress(summary, stop=stop)
    for trial in summary.trials[1:3]:
        progress.started(replace(trial, state=TrialState.RUNNING))
    stop()
    assert "stopping after the running trials; Ctrl-C again cancels them" in live_line(progress, width=120)
    stop()
    assert "cancelling the running trials" in live_line(progress, width=120)


def test_a_finished_trial_in_one_line(summary):
    progress = Progress(summary, stop=StopRequest())
    line = finished_line(summary.best, progress)
    assert f"R {summary.best.score:.3f}" in line
    assert f"throughput {summary.best.throughput_ratio:.2f}x" in line
    failed = finished_line(summary.failed[0], progress)
    assert summary.failed[0].failure.reason in failed
    assert summary.failed[0].failure.kind in failed


@pytest.mark.parametrize(
    ("value", "text"),
    [(500_000_000, "5e8"), (10_000, "1e4"), (12_000, "12000"), (0, "0"), (1e-05, "1e-05"), (True, "true"), ("a", "a")],
)
def test_settings_in_short(value, text):
    assert in_short(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0 s"), (59.9, "59 s"), (60, "1:00"), (3605, "1:00:05")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_a_note_while_a_trial_runs_stands_above_the_line_and_does_not_take_it(summary):
    progress = Progress(replace(summary, trials=()), stop=StopRequest())
    console = Console(file=io.StringIO(), width=100)
    display = LiveDisplay(console, progress)
    display.note("getting ready")
    assert progress.stage == "getting ready"
    display.trial_started(replace(summary.trials[0], state=TrialState.RUNNING, outcome=None, score=None))
    display.note("the storage does not answer")
    assert progress.stage == "starting"
    assert console.file.getvalue() == "the storage does not answer\n"
