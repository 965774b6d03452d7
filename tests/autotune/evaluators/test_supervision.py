"""Verdicts over ranks that are scripted: no process runs here."""

import json
import signal
from dataclasses import replace

import pytest

from autotune.errors import CampaignError
from autotune.evaluators import diagnosis
from autotune.evaluators.deadlines import RUN_FLOOR_S, Deadlines, samples_per_step
from autotune.evaluators.protocol import RankReport, never_prune
from autotune.evaluators.rank_files import RankAssignment, RankResult, intermediates_to_text
from autotune.evaluators.supervision import GRACE_S, Supervision, node_addresses, with_final_logs
from autotune.trials import Budget, Failure, FailureKind, Intermediate, Measurement, Outcome, Stage, TrialRequest
from autotune.workload import WorkloadReference

MEASUREMENT = Measurement(
    samples_per_second=1.0,
    samples_per_second_spread=0.0,
    step_time_s=1.0,
    timed_steps=3,
    warmup_steps=2,
    samples_per_step=1,
    training_time_s=5.0,
    held_out_loss_before=2.0,
    held_out_loss_after=1.0,
    convergence_time_s=5.0,
    training_loss_last=1.0,
)
DEADLINES = Deadlines()
RUNNING = RankReport(running=True, stage=Stage.RUN)


class Scripted:
    """A host whose rank reports what it is told, the last report for ever."""

    def __init__(self, *reports):
        self.reports = list(reports)

    def poll(self, wait_s=0.0):
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]


def request(**more):
    return TrialRequest(**({"number": 0, "point": {}, "ds_config": {}, "budget": Budget(steps=5)} | more))


def verdict(*hosts, deadlines=None, cancelled=lambda: False, progress=lambda stage: None, should_prune=never_prune):
    supervision = Supervision(
        hosts=hosts,
        request=request(),
        deadlines=deadlines or Deadlines(),
        progress=progress,
        cancelled=cancelled,
        should_prune=should_prune,
    )
    return supervision.run()


def delivered(*, failure=None, measurement=None, running=False, exit_code=0, **more):
    outcome = Outcome(failure=failure, measurement=measurement) if failure or measurement else None
    return RankReport(
        running=running,
        exit_code=None if running else exit_code,
        stage=Stage.RUN,
        result=RankResult(outcome=outcome, **more).to_text(),
        log_tail=("last words",),
    )


def crash(reason="KeyError: 'x'"):
    return Failure(kind=FailureKind.CRASH, reason=reason, stage=Stage.RUN)


@pytest.mark.parametrize("exit_code", [0, 1, -signal.SIGABRT, -signal.SIGKILL])
def test_a_delivered_measurement_outranks_every_exit_code(exit_code):
    gone = RankReport(running=False, exit_code=-signal.SIGSEGV)
    assert verdict(Scripted(delivered(measurement=MEASUREMENT, exit_code=exit_code)), Scripted(gone)).measurement


def test_the_rank_that_failed_is_told_rather_than_its_peer():
    peer = delivered(failure=crash("connection closed"), follows_a_peer=True, exit_code=1)
    culprit = delivered(failure=crash(), exit_code=1)
    failure = verdict(Scripted(peer), Scripted(RUNNING, RUNNING, culprit)).failure
    assert (failure.rank, failure.reason, failure.exit_code) == (1, "KeyError: 'x'", 1)
    assert failure.log_tail == ("last words",)


@pytest.mark.parametrize(
    ("exit_code", "kind", "words"),
    [
        (-9, FailureKind.OUT_OF_MEMORY, "out-of-memory killer"),
        (-11, FailureKind.CRASH, "killed by signal 11 (SIGSEGV)"),
        (-64, FailureKind.CRASH, "killed by signal 64"),
        (2, FailureKind.CRASH, "ended with exit code 2 and left no result"),
        (0, FailureKind.CRASH, "ended with exit code 0 and left no result"),
        (None, FailureKind.CRASH, "its launcher kept that to itself"),
    ],
)
def test_a_rank_that_ends_without_a_word(exit_code, kind, words):
    peer = delivered(failure=crash("connection closed"), follows_a_peer=True, exit_code=1)
    failure = verdict(Scripted(peer), Scripted(RankReport(running=False, exit_code=exit_code))).failure
    assert (failure.kind, failure.rank) == (kind, 1)
    assert words in failure.reason
    assert failure.stage is Stage.LAUNCH


LOST = RankReport(running=False, host_lost="the host of rank 1 is lost: the node 10.0.0.2 died", node="10.0.0.2")


def test_a_lost_host_is_told_rather_than_what_it_did_to_its_peers():
    follower = delivered(failure=crash("connection closed"), follows_a_peer=True, exit_code=1)
    for peer in (follower, RankReport(running=False, exit_code=-signal.SIGABRT), RankReport(running=False)):
        failure = verdict(Scripted(peer), Scripted(LOST)).failure
        assert (failure.kind, failure.rank, failure.host_lost) == (FailureKind.CRASH, 1, True)
        assert failure.reason == LOST.host_lost


def test_a_failure_of_ones_own_is_told_rather_than_a_lost_host():
    own = delivered(failure=crash(), exit_code=1)
    killed = RankReport(running=False, exit_code=-signal.SIGKILL)
    for peer in (own, killed):
        failure = verdict(Scripted(peer), Scripted(LOST)).failure
        assert (failure.rank, failure.host_lost) == (0, False)


def test_the_nodes_of_ranks_are_told_where_they_are_known():
    assert node_addresses([RankReport(running=True), LOST]) == {"rank1": "10.0.0.2"}


def test_when_nobody_says_more_the_broken_connection_is_told(monkeypatch):
    monkeypatch.setattr("autotune.evaluators.supervision.GRACE_S", GRACE_S / 30)
    peer = delivered(failure=crash("connection closed"), follows_a_peer=True, exit_code=1)
    assert verdict(Scripted(peer), Scripted(RUNNING)).failure.reason == "connection closed"


def test_a_memory_limit_comes_first():
    mib = 1024**2
    killed = RankReport(
        running=False, exit_code=-9, memory_exceeded_bytes=3 * mib, memory_limit_bytes=2 * mib, stage=Stage.RUN
    )
    failure = verdict(Scripted(delivered(failure=crash())), Scripted(killed)).failure
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert failure.reason == (
        "rank 1 held 3.00 MiB of resident memory, above its limit of 2.00 MiB (hardware.memory_limit_bytes); "
        "take a smaller micro-batch, a higher ZeRO stage, or raise the limit"
    )


@pytest.mark.parametrize("stage", [None, Stage.LAUNCH, Stage.BUILD, Stage.RENDEZVOUS])
def test_a_memory_limit_that_is_too_low_for_any_configuration(stage):
    killed = RankReport(running=False, exit_code=-9, memory_exceeded_bytes=2, memory_limit_bytes=1, stage=stage)
    reason = verdict(Scripted(killed)).failure.reason
    assert reason.endswith("that was before deepspeed.initialize, so no configuration changes it: raise the limit")


def test_ranks_that_all_end_without_a_measurement_crashed():
    failure = verdict(Scripted(delivered()), Scripted(delivered())).failure
    assert failure.kind is FailureKind.CRASH
    assert "left no measurement" in failure.reason


def test_a_port_in_use_is_passed_on():
    taken = delivered(failure=crash("port taken"), address_in_use=True, exit_code=1)
    assert verdict(Scripted(taken), Scripted(RUNNING)).address_in_use


def test_a_stage_that_takes_too_long_names_the_rank_that_is_behind():
    waiting = RankReport(running=True, stage=Stage.FIRST_STEP)
    behind = RankReport(running=True, stage=Stage.RENDEZVOUS, log_tail=("zzz",))
    limits = Deadlines(rendezvous_s=0.1, first_step_s=0.05)
    failure = verdict(Scripted(waiting), Scripted(behind), deadlines=limits).failure
    assert (failure.kind, failure.stage, failure.rank) == (FailureKind.TIMEOUT, Stage.RENDEZVOUS, 1)
    assert failure.reason.startswith(
        "rank 0 waited 0.05 s in stage 'first_step' for rank 1, which was still in stage 'rendezvous'"
    )
    failure = verdict(Scripted(waiting), Scripted(behind), deadlines=Deadlines(rendezvous_s=0.1)).failure
    assert (failure.kind, failure.stage, failure.rank) == (FailureKind.TIMEOUT, Stage.RENDEZVOUS, 1)
    assert failure.reason.startswith(
        "rank 1 was still in stage 'rendezvous' after 0.1 s (the others: rank 0: first_step)"
    )
    assert "deadlines.rendezvous_s" in failure.reason


def test_a_cancelled_trial_ends_at_once():
    assert verdict(Scripted(RUNNING), cancelled=lambda: True).failure.kind is FailureKind.CANCELLED


def reporting(*times_s):
    course = [
        Intermediate(training_time_s=t, timed_steps=3, samples_per_second=1.0, loss_before=2.0, training_loss=1.0)
        for t in times_s
    ]
    return RankReport(running=True, stage=Stage.RUN, intermediates=intermediates_to_text(course))


def test_a_pruned_trial_ends_at_once_and_is_asked_about_only_when_there_is_more():
    asked = []

    def should_prune(course):
        asked.append([each.training_time_s for each in course])
        return "clearly dominated" if len(course) == 2 else None

    first = Scripted(RUNNING, reporting(1.0), reporting(1.0), reporting(1.0, 2.0))
    ended = verdict(first, Scripted(RUNNING), should_prune=should_prune)
    assert (ended.pruned, ended.measurement, ended.failure) == ("clearly dominated", None, None)
    assert asked == [[1.0], [1.0, 2.0]]


def test_a_trial_that_is_done_or_has_failed_is_not_pruned():
    done = replace(delivered(measurement=MEASUREMENT), intermediates=reporting(1.0).intermediates)
    assert verdict(Scripted(done), should_prune=lambda course: "slow").measurement
    failed = delivered(failure=crash(), exit_code=1)
    assert verdict(Scripted(reporting(1.0)), Scripted(failed), should_prune=lambda course: "slow").failure


def test_progress_follows_the_slowest_rank():
    stages = []
    launch, rendezvous = RankReport(running=True), RankReport(running=True, stage=Stage.RENDEZVOUS)
    done = delivered(measurement=MEASUREMENT)
    verdict(
        Scripted(launch, RUNNING, RUNNING, done), Scripted(launch, launch, rendezvous, RUNNING), progress=stages.append
    )
    assert stages == [Stage.LAUNCH, Stage.RENDEZVOUS, Stage.RUN]


def test_final_logs_complete_a_failure():
    failure = with_final_logs(
        Failure(kind=FailureKind.CRASH, reason="x", rank=0), [RankReport(running=False, exit_code=1, log_tail=("end",))]
    )
    assert (failure.exit_code, failure.log_tail) == (1, ("end",))
    late = with_final_logs(
        Failure(kind=FailureKind.TIMEOUT, reason="x", rank=0, log_tail=("before",)),
        [RankReport(running=False, exit_code=-15)],
    )
    assert (late.exit_code, late.log_tail) == (None, ("before",))
    everybody = diagnosis.cancelled(Stage.RUN)
    assert with_final_logs(everybody, []) == everybody


def test_deadlines_of_the_run_follow_from_the_budget():
    def run_s(first_step_s=2.0, deadlines=DEADLINES, **more):
        return deadlines.limit_s(Stage.RUN, request=request(**more), ranks=2, first_step_s=first_step_s)

    assert run_s() > RUN_FLOOR_S
    assert run_s(budget=Budget(steps=9, precision=0.03)) == run_s(budget=Budget(steps=9))  # it may use all of it up
    assert run_s(budget=Budget(steps=100)) > run_s(budget=Budget(steps=10)) > 2 * 10
    assert run_s(budget=Budget(seconds=500.0)) > 500
    assert run_s(budget=Budget(steps=1), convergence_at_s=500.0) > 500
    assert run_s(budget=Budget(samples=4000)) > run_s(budget=Budget(samples=4))
    assert run_s(deadlines=Deadlines(run_s=3.0)) == 3.0
    assert Deadlines().limit_s(Stage.LAUNCH, request=request(), ranks=1, first_step_s=0.0) == Deadlines().launch_s
    assert Deadlines(run_s=9000.0).collective_timeout_s > 9000
    with pytest.raises(CampaignError, match=r"deadlines.launch_s: got 0; it must be above 0"):
        Deadlines(launch_s=0)
    with pytest.raises(CampaignError, match=r"deadlines.run_s: got inf"):
        Deadlines(run_s=float("inf"))


def test_samples_per_step_from_either_batch_key():
    assert samples_per_step({"train_batch_size": 12}, 2) == 12
    assert samples_per_step({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}, 2) == 12
    assert samples_per_step({}, 2) == 2


def test_an_assignment_survives_its_file():
    assignment = RankAssignment(
        request=request(point={"a": 1}, convergence_at_s=2.5),
        workload=WorkloadReference(function="a.b:c", arguments={"x": [1]}, python_path=("/p",)),
        rank=1,
        world_size=2,
        device="cpu",
        collective_timeout_s=9.0,
    )
    assert RankAssignment.from_text(assignment.to_text()) == assignment
    assert json.loads(RankResult().to_text())["outcome"] is None
    assert RankResult.from_text(RankResult(follows_a_peer=True).to_text()) == RankResult(follows_a_peer=True)
