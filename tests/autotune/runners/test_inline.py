from dataclasses import replace

import pytest

from autotune.errors import ResourceError
from autotune.runners import InlineRunner
from autotune.testing.runners import Behaviour, RunnerContract, ScriptedEvaluator, measurement, request
from autotune.trials import Failure, FailureKind, Outcome, Stage


class TestInlineRunner(RunnerContract):
    def make_runner(self, evaluator):
        return InlineRunner(evaluator)


class TestInlineRunnerWithSlots(RunnerContract):
    def make_runner(self, evaluator):
        return InlineRunner(evaluator, slots=4)


class Timed(ScriptedEvaluator):
    """Trials that train for so many seconds as `seconds` says by number; None is a failure."""

    def __init__(self, *seconds, wall_s=0.0):
        super().__init__(ranks=0)
        self.seconds = seconds
        self.wall_s = wall_s

    def evaluate(self, request, **rest):
        self.evaluated.append(request.number)
        training_time_s = self.seconds[request.number]
        if training_time_s is None:
            return Outcome(failure=Failure(kind=FailureKind.OUT_OF_MEMORY, reason="at once"))
        measured = replace(measurement(samples_per_second=1.0), training_time_s=training_time_s)
        return Outcome(measurement=measured, duration_s=self.wall_s)


def finishing_order(runner, count):
    order, submitted = [], 0
    while len(order) < count:
        while submitted < count and submitted - len(order) < runner.slots:
            runner.submit(request(submitted))
            submitted += 1
        order.append((runner.collect(0.0).request.number, runner.clock_s))
    return order


def test_trials_finish_in_the_order_of_simulated_time():
    evaluator = Timed(5.0, 2.0, 4.0, None, 1.0)
    order = finishing_order(InlineRunner(evaluator, slots=3), 5)
    # 1 ends at 2 s and makes room for 3, which fails at once, and that for 4, which ends at 3 s.
    assert order == [(1, 2.0), (3, 2.0), (4, 3.0), (2, 4.0), (0, 5.0)]
    assert sorted(evaluator.evaluated) == [0, 1, 2, 3, 4]


def test_one_slot_takes_trials_as_they_come_and_adds_their_times_up():
    assert finishing_order(InlineRunner(Timed(5.0, 2.0, 4.0)), 3) == [(0, 5.0), (1, 7.0), (2, 11.0)]


def test_equal_trials_finish_as_they_were_submitted_and_a_recorded_duration_counts_before_training():
    assert finishing_order(InlineRunner(Timed(5.0, 2.0, 4.0, wall_s=9.0), slots=2), 3) == [
        (0, 9.0),
        (1, 9.0),
        (2, 18.0),
    ]


def test_what_is_under_way_in_simulated_time_is_cancelled_when_the_runner_closes():
    runner = InlineRunner(Timed(5.0, 2.0, 4.0), slots=3)
    for number in range(3):
        runner.submit(request(number))
    assert runner.collect(0.0).request.number == 1
    runner.close(cancel=True)
    assert [runner.collect(0.0).outcome.failure.kind for _ in range(2)] == [FailureKind.CANCELLED] * 2
    assert runner.collect(0.0) is None


def test_fewer_than_one_slot_is_refused():
    with pytest.raises(ResourceError, match="slots: got 0; it must be 1 or more"):
        InlineRunner(ScriptedEvaluator(ranks=0), slots=0)


def test_an_evaluator_with_ranks_is_refused():
    with pytest.raises(ResourceError, match=r"ScriptedEvaluator needs 2 rank process.*use the runner local or ray"):
        InlineRunner(ScriptedEvaluator(ranks=2))


def test_stages_are_told():
    told = []
    runner = InlineRunner(ScriptedEvaluator(ranks=0), on_stage=lambda *what: told.append(what))
    runner.submit(request(4, Behaviour.MEASURE))
    runner.collect(0.0)
    assert told == [(4, Stage.RUN)]


def test_an_interrupted_evaluation_is_still_to_be_collected():
    def interrupt(number, stage):
        raise KeyboardInterrupt

    runner = InlineRunner(ScriptedEvaluator(ranks=0), on_stage=interrupt)
    runner.submit(request(0, Behaviour.MEASURE))
    with pytest.raises(KeyboardInterrupt):
        runner.collect(0.0)
    runner.close(cancel=True)
    assert runner.collect(0.0).outcome.failure.kind is FailureKind.CANCELLED
    assert runner.collect(0.0) is None
