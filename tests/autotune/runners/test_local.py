import pytest

from autotune.errors import ResourceError
from autotune.runners import LocalRunner
from autotune.runners import local as local_module
from autotune.testing.runners import Behaviour, RunnerContract, ScriptedEvaluator, request
from autotune.trials import Stage


class TestLocalRunner(RunnerContract):
    ranks = 2

    def make_runner(self, evaluator):
        return LocalRunner(evaluator)


def test_stages_are_told():
    told = []
    runner = LocalRunner(ScriptedEvaluator(ranks=1), on_stage=lambda *what: told.append(what))
    runner.open([], print)
    runner.submit(request(3, Behaviour.MEASURE))
    runner.collect(10.0)
    runner.close(cancel=True)
    assert told == [(3, Stage.RUN)]


def test_a_number_of_gpus_below_zero_is_refused():
    with pytest.raises(ResourceError, match="gpus_per_rank: got -1"):
        LocalRunner(ScriptedEvaluator(ranks=1), gpus_per_rank=-1)


def test_gpus_that_are_hidden_are_not_used(monkeypatch):
    class Eight:
        device_count = 8

    monkeypatch.setattr(local_module.hardware, "detect", lambda accelerator: Eight())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-abc")
    assert local_module._gpus(2) == ["5", "GPU-abc"]
    with pytest.raises(ResourceError, match=r"3 GPUs are wanted, and this machine shows 2.*use fewer ranks"):
        LocalRunner(ScriptedEvaluator(ranks=3), gpus_per_rank=1).open([], print)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert local_module._gpus(3) == ["0", "1", "2"]
