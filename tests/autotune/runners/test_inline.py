import pytest

from autotune.errors import ResourceError
from autotune.runners import InlineRunner
from autotune.testing.runners import Behaviour, RunnerContract, ScriptedEvaluator, request
from autotune.trials import FailureKind, Stage


class TestInlineRunner(RunnerContract):
    def make_runner(self, evaluator):
        return InlineRunner(evaluator)


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
