"""What the slots of the threaded runners do when evaluators and hosts misbehave."""

import threading

import pytest

from autotune.errors import HostLostError, ResourceError
from autotune.evaluators.protocol import RankReport
from autotune.runners import InlineRunner
from autotune.runners.attempt import ignore_stage
from autotune.runners.slot import SlotPool
from autotune.testing.runners import Behaviour, ScriptedEvaluator, request
from autotune.trials import FailureKind, Intermediate, Outcome


class Host:
    def __init__(self, stop_error=None):
        self.stops = 0
        self.stop_error = stop_error

    def reserve_address(self):
        return "127.0.0.1", 1234

    def start(self, command):
        raise NotImplementedError

    def poll(self, wait_s=0.0):
        return RankReport(running=False)

    def stop(self):
        self.stops += 1
        if self.stop_error:
            raise self.stop_error
        return RankReport(running=False)


class DeafEvaluator(ScriptedEvaluator):
    """Returns when told to, whatever it is told about cancellation."""

    release = None

    def evaluate(self, request, **kwargs):
        self.release.wait(30)
        return super().evaluate(request, **kwargs)


def test_hosts_are_stopped_after_a_crash_even_if_one_cannot_be():
    hosts = [Host(stop_error=OSError("gone")), Host()]
    pool = SlotPool(ScriptedEvaluator(ranks=2), on_stage=ignore_stage)
    pool.add(hosts)
    pool.submit(request(0, Behaviour.RAISE))
    assert pool.collect(10.0).outcome.failure.kind is FailureKind.CRASH
    assert [host.stops for host in hosts] == [1, 1]


def test_a_host_that_is_lost_before_the_trial_begins_is_told_as_such():
    class LostHost(Host):
        def reserve_address(self):
            raise HostLostError("the host of rank 0 is lost: the node 10.0.0.2 died")

    hosts = [LostHost(), Host()]
    pool = SlotPool(ScriptedEvaluator(ranks=2), on_stage=ignore_stage)
    pool.add(hosts)
    pool.submit(request(0, Behaviour.MEASURE))
    failure = pool.collect(10.0).outcome.failure
    assert (failure.kind, failure.host_lost) == (FailureKind.CRASH, True)
    assert failure.reason == "the host of rank 0 is lost: the node 10.0.0.2 died"
    assert failure.log_tail == ()
    assert [host.stops for host in hosts] == [1, 1]


def test_a_listener_that_raises_is_a_crash_of_that_trial_only():
    def raise_once(number, stage):
        if number == 0:
            raise RuntimeError("no terminal")

    pool = SlotPool(ScriptedEvaluator(ranks=0), on_stage=raise_once)
    pool.add([])
    pool.submit(request(0, Behaviour.MEASURE))
    assert "no terminal" in pool.collect(10.0).outcome.failure.reason
    pool.submit(request(1, Behaviour.MEASURE))
    assert pool.collect(10.0).outcome.measurement


def test_an_evaluator_that_ignores_cancellation_is_given_up_and_comes_back_once():
    host = Host()
    evaluator = DeafEvaluator(ranks=1)
    evaluator.release = threading.Event()
    pool = SlotPool(evaluator, on_stage=ignore_stage, cancel_grace_s=0.1)
    pool.add([host])
    pool.submit(request(0, Behaviour.MEASURE))
    pool.close(cancel=True)
    failure = pool.collect(1.0).outcome.failure
    assert failure.kind is FailureKind.CANCELLED
    assert "did not return within 0.1 s" in failure.reason
    assert host.stops == 1
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "trial-0"]
    evaluator.release.set()
    thread.join(10)
    assert evaluator.evaluated == [0]
    assert pool.collect(0.0) is None


def test_a_pool_without_slots_says_so():
    pool = SlotPool(ScriptedEvaluator(ranks=0), on_stage=ignore_stage)
    with pytest.raises(ResourceError, match="open it first"):
        pool.submit(request(0, Behaviour.MEASURE))


def test_busy_slots_are_named():
    pool = SlotPool(ScriptedEvaluator(ranks=0), on_stage=ignore_stage)
    pool.add([])
    pool.submit(request(0, Behaviour.WAIT))
    with pytest.raises(ResourceError, match=r"trial 5: 1 of 1 slots are busy \(trials 0\); collect one first"):
        pool.submit(request(5, Behaviour.MEASURE))
    pool.close(cancel=True)


def test_a_queue_of_results_survives_the_close():
    pool = SlotPool(ScriptedEvaluator(ranks=0), on_stage=ignore_stage)
    for _ in range(3):
        pool.add([])
    for number in range(3):
        pool.submit(request(number, Behaviour.MEASURE))
    pool.close(cancel=False)
    assert {pool.collect(0.0).request.number for _ in range(3)} == {0, 1, 2}
    assert pool.collect(0.0) is None


COURSE = (Intermediate(training_time_s=1.0, timed_steps=3, samples_per_second=5.0, loss_before=2.0, training_loss=1.5),)


class AskingEvaluator(ScriptedEvaluator):
    """Measures, unless it is told that the trial is to be pruned."""

    def evaluate(self, request, *, should_prune, **rest):
        reason = should_prune(COURSE)
        return Outcome(pruned=reason, intermediates=COURSE) if reason else super().evaluate(request, **rest)


def judge(request, course):
    assert course == COURSE
    return "slow" if request.number == 1 else None


def pool_that_asks():
    pool = SlotPool(AskingEvaluator(ranks=0), on_stage=ignore_stage, judge=judge)
    pool.add([])
    return pool


@pytest.mark.parametrize(
    "make", [pool_that_asks, lambda: InlineRunner(AskingEvaluator(ranks=0), judge=judge)], ids=["slots", "inline"]
)
def test_the_judge_is_asked_about_each_running_trial_by_its_request(make):
    runner = make()
    outcomes = []
    for number in range(2):
        runner.submit(request(number, Behaviour.MEASURE))
        outcomes.append(runner.collect(10.0).outcome)
    assert [outcome.pruned for outcome in outcomes] == [None, "slow"]
    assert outcomes[0].measurement
