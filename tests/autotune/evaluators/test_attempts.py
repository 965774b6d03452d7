"""Attempts on hosts that are scripted: no process runs here."""

import errno
import os
import signal

import pytest

from autotune.evaluators.attempts import Attempts
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.protocol import RankCommand, RankReport
from autotune.evaluators.rank_files import RankResult
from autotune.evaluators.script_files import CANNOT_WRITE
from autotune.trials import Budget, Failure, FailureKind, Outcome, Stage, TrialRequest


class Scripted:
    """A host whose process is as it is told from the start."""

    def __init__(self, report, error=None):
        self.report = report
        self.error = error
        self.stops = 0

    def reserve_address(self):
        return "127.0.0.1", 12345

    def start(self, command):
        if self.error is not None:
            raise self.error

    def poll(self, wait_s=0.0):
        return self.report

    def stop(self):
        self.stops += 1
        return self.report


def outcome_of(host, *, supervised_there=True):
    attempts = Attempts(
        request=TrialRequest(number=0, point={}, ds_config={}, budget=Budget(steps=5)),
        commands=lambda address, port: [RankCommand(rank=0, argv=(), environment={}, directory="/runs/trial-00000")],
        deadlines=Deadlines(),
        supervised_there=supervised_there,
    )
    outcome = attempts.run(hosts=[host], progress=lambda stage: None, cancelled=lambda: False)
    assert host.stops >= 1
    return outcome


def gone(exit_code, result=None):
    return RankReport(running=False, exit_code=exit_code, stage=Stage.RUN, result=result, log_tail=("last words",))


def test_the_rank_and_exit_code_that_the_supervisor_names_stay():
    told = Failure(kind=FailureKind.CRASH, reason="KeyError: 1", stage=Stage.RUN, rank=3, exit_code=7)
    result = RankResult(outcome=Outcome(failure=told)).to_text()
    failure = outcome_of(Scripted(gone(0, result))).failure
    assert (failure.rank, failure.exit_code, failure.reason) == (3, 7, "KeyError: 1")
    assert failure.log_tail == ("last words",)


def test_a_supervisor_that_was_killed_is_not_taken_for_a_rank():
    failure = outcome_of(Scripted(gone(-signal.SIGKILL))).failure
    assert (failure.kind, failure.rank, failure.exit_code) == (FailureKind.CRASH, None, -9)
    assert "autotune's own process beside the launcher was killed by signal 9" in failure.reason


def test_a_supervisor_that_could_not_write_says_where():
    failure = outcome_of(Scripted(gone(CANNOT_WRITE))).failure
    assert failure.reason.startswith("autotune can't write the trial's files to /runs/trial-00000: ")
    assert "run_directory" in failure.reason


def test_a_rank_that_nobody_else_supervises_is_a_rank():
    failure = outcome_of(Scripted(gone(-signal.SIGKILL)), supervised_there=False).failure
    assert (failure.kind, failure.rank) == (FailureKind.OUT_OF_MEMORY, 0)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "can't write the trial's files to /runs/trial-00000: No space left on device; make room there"),
        (errno.EAGAIN, "the trial's process can't be started in /runs/trial-00000: BlockingIOError: "),
    ],
)
def test_a_process_that_can_not_be_started_is_a_failed_trial(number, words):
    host = Scripted(RankReport(running=False), OSError(number, os.strerror(number)))
    failure = outcome_of(host).failure
    assert (failure.kind, failure.stage) == (FailureKind.CRASH, Stage.LAUNCH)
    assert words in failure.reason
