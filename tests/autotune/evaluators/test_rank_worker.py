"""The parts of a rank that need no process group."""

import itertools
import json
import subprocess
import sys
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.errors import WorkloadError
from autotune.evaluators.rank_worker import batches, checkpointing, failures, processor_info
from autotune.evaluators.rank_worker.communication import covered
from autotune.evaluators.rank_worker.failures import TrialFailed
from autotune.evaluators.rank_worker.memory import PeakMemory
from autotune.evaluators.rank_worker.reporter import Reporter
from autotune.evaluators.rank_worker.step_timer import StepTimer
from autotune.evaluators.workloads import byte_gpt
from autotune.trials import FailureKind, Stage
from autotune.workload import TrainingWorkload, WorkloadContext


class Pair(NamedTuple):
    x: Any
    y: Any


def workload(count=10, *, model=None, **more):
    data = TensorDataset(torch.arange(count))
    return TrainingWorkload(model=model, data=data, held_out=data, loss=lambda model, batch: None, **more)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_each_epoch_is_shared_without_overlap(world_size):
    epochs = []
    for rank in range(world_size):
        stream = batches.shuffled_indices(10, rank=rank, world_size=world_size, seed=5)
        share = 10 // world_size
        epochs.append([list(itertools.islice(stream, share)) for _ in range(3)])
    for epoch in zip(*epochs, strict=True):
        indices = [index for share in epoch for index in share]
        assert len(set(indices)) == len(indices) == 10 // world_size * world_size
    assert epochs[0][0] != epochs[0][1]


def test_training_batches_never_end_and_repeat_by_seed():
    def first(seed):
        stream = batches.training_batches(workload(), batch_size=4, rank=1, world_size=2, seed=seed, device="cpu")
        return [batch[0].tolist() for batch in itertools.islice(stream, 6)]

    assert all(len(batch) == 4 for batch in first(1))
    assert first(1) == first(1) != first(2)
    with pytest.raises(WorkloadError, match="got 1 samples; 2 ranks need at least one each"):
        next(batches.training_batches(workload(1), batch_size=1, rank=0, world_size=2, seed=0, device="cpu"))


@pytest.mark.parametrize(("count", "world_size"), [(1, 2), (7, 2), (8, 2), (9, 4), (5, 1)])
def test_held_out_batches_cover_the_set_once_with_equally_many_per_rank(count, world_size):
    shares = [
        batches.held_out_batches(workload(count, held_out_batch_size=2), rank=rank, world_size=world_size, device="cpu")
        for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    seen = [value for share in shares for batch, samples in share for value in batch[0].tolist()[:samples]]
    assert sorted(seen) == list(range(count))
    with pytest.raises(WorkloadError, match="held_out: got no samples"):
        batches.held_out_batches(workload(0), rank=0, world_size=1, device="cpu")
    with pytest.raises(WorkloadError, match="held_out_batch_size: got 0"):
        batches.held_out_batches(workload(4, held_out_batch_size=0), rank=0, world_size=1, device="cpu")


def test_every_tensor_of_a_batch_is_moved():
    tensor = torch.ones(1)
    moved = batches.to_device({"a": [tensor, "text"], "b": Pair(tensor, (tensor, 3))}, "meta")
    assert moved["a"][0].device.type == moved["b"].x.device.type == moved["b"].y[0].device.type == "meta"
    assert (moved["a"][1], moved["b"].y[1]) == ("text", 3)


def raised(function, *arguments):
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - returned, to be looked at
        function(*arguments)
    return caught.value


def raises(error):
    raise error


def cpu_out_of_memory():
    return torch.empty(1 << 55, dtype=torch.uint8)


def kind_of(error, *, initializing=False):
    return failures.result_of(error, stage=Stage.RUN, initializing=initializing).outcome.failure.kind


def test_an_exception_is_typed_by_its_class_and_by_where_it_was_raised():
    assert kind_of(raised(cpu_out_of_memory)) is FailureKind.OUT_OF_MEMORY
    assert kind_of(raised(raises, RuntimeError(str(raised(cpu_out_of_memory))))) is FailureKind.CRASH
    assert kind_of(raised(raises, torch.OutOfMemoryError("CUDA out of memory"))) is FailureKind.OUT_OF_MEMORY
    assert kind_of(raised(raises, MemoryError())) is FailureKind.OUT_OF_MEMORY
    assert kind_of(raised(raises, RuntimeError("out of memory"))) is FailureKind.CRASH
    assert kind_of(raised(raises, TrialFailed(FailureKind.DIVERGED, "nan"))) is FailureKind.DIVERGED
    assert kind_of(raised(raises, Exception("loss scale already at minimum"))) is FailureKind.CRASH
    assert kind_of(raised(sys.exit, 0)) is FailureKind.CRASH


def test_configuration_errors_count_only_while_deepspeed_initializes():
    error = raised(raises, ValueError("bad value"))
    assert kind_of(error) is FailureKind.CRASH
    assert kind_of(error, initializing=True) is FailureKind.INVALID_CONFIG
    assert kind_of(raised(raises, RuntimeError("no ninja")), initializing=True) is FailureKind.CRASH


@pytest.mark.parametrize("place", ["transformers/integrations/deepspeed.py", "accelerate/utils/dataclasses.py"])
def test_what_contradicts_the_scripts_arguments_is_an_invalid_configuration(place):
    code = "raise ValueError('Please correct the following DeepSpeed config values that mismatch TrainingArguments')"
    assert kind_of(raised(exec, compile(code, f"/x/{place}", "exec"))) is FailureKind.INVALID_CONFIG
    assert kind_of(raised(exec, compile(code, "/x/train.py", "exec"))) is FailureKind.CRASH


def test_an_exhausted_loss_scale_diverged():
    code = "raise Exception('Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.')"
    scaler = compile(code, "/x/deepspeed/runtime/fp16/loss_scaler.py", "exec")
    assert kind_of(raised(exec, scaler)) is FailureKind.DIVERGED


def test_a_broken_connection_points_at_the_peer():
    def result(error):
        return failures.result_of(error, stage=Stage.RUN, initializing=False)

    assert result(raised(raises, torch.distributed.DistBackendError("NCCL error"))).follows_a_peer
    assert not result(raised(raises, RuntimeError("gloo/transport said the user"))).follows_a_peer
    taken = result(raised(raises, torch.distributed.DistNetworkError("... EADDRINUSE ...")))
    assert taken.address_in_use
    assert not taken.follows_a_peer


def test_inputs_that_were_not_cast_are_explained():
    def reason(error):
        return failures.result_of(error, stage=Stage.FIRST_STEP, initializing=False).outcome.failure.reason

    linear = nn.Linear(3, 3).to(torch.bfloat16)
    assert "next(model.parameters()).dtype" in reason(raised(linear, torch.zeros(2, 3)))
    convolution = nn.Conv2d(1, 1, 1).to(torch.bfloat16)
    assert "next(model.parameters()).dtype" in reason(raised(convolution, torch.zeros(1, 1, 2, 2)))
    assert "parameters" not in reason(raised(nn.Linear(3, 3), torch.zeros(2, 4)))
    assert "parameters" not in reason(raised(raises, RuntimeError("BFloat16 must have the same dtype")))


def test_words_hold_only_what_a_file_and_a_terminal_take():
    error = ValueError("a name \udcff\x1b[31m\x07, and é stays")
    reason = failures.result_of(error, stage=Stage.RUN, initializing=False).outcome.failure.reason
    assert reason == "ValueError: a name ??[31m?, and é stays"


def test_long_words_are_cut_and_line_ends_removed():
    reason = failures.result_of(ValueError("a\nb " * 1000), stage=Stage.RUN, initializing=False).outcome.failure.reason
    assert len(reason) < failures.SHOWN_CHARACTERS + 30
    assert "\n" not in reason


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.seen = 0

    def forward(self, x):
        assert self.blocks[0].out_features == 3
        for block in self.blocks:
            x = block(x)
        return x


def test_members_of_module_lists_are_recomputed():
    model = Stack()
    x = torch.randn(2, 3)
    before = model(x).detach()
    calls = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    checkpointing.switch_on(workload(model=model))
    after = model(x)
    assert torch.equal(before, after)
    after.sum().backward()
    assert len(calls) == 2
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.no_grad():
        assert torch.equal(model(x), before)
    assert not hasattr(model.blocks[0], "absent")


def test_a_model_with_a_switch_of_its_own_uses_it():
    class Switched(nn.Module):
        on = False

        def gradient_checkpointing_enable(self):
            self.on = True

    model = Switched()
    checkpointing.switch_on(workload(model=model))
    assert model.on
    given = []
    checkpointing.switch_on(workload(model=model, checkpoint=given.append))
    assert given == [model]
    with pytest.raises(TrialFailed, match=r"nor an nn.ModuleList"):
        checkpointing.switch_on(workload(model=nn.Linear(1, 1)))


def test_overlapping_collectives_count_once():
    assert covered([(5, 7), (0, 2), (1, 3), (1, 2)]) == 5
    assert covered([]) == 0


def test_a_timer_adds_up_the_phases():
    timer = StepTimer("cpu")
    timer.start()
    for _ in range(2):
        timer.lap("forward")
        timer.lap("backward")
    whole_s, phases = timer.stop()
    assert set(phases) == {"forward", "backward"}
    assert 0 < sum(phases.values()) <= whole_s + 1e-3


def test_peak_memory_is_of_the_phase_asked_for():
    memory = PeakMemory("cpu")
    memory.start()
    before = memory.peak_bytes()
    hoard = torch.ones(100_000_000, dtype=torch.uint8)
    del hoard
    peak = memory.peak_bytes()
    assert peak >= before + 80_000_000
    memory.start()
    assert memory.peak_bytes() < peak
    assert memory.kind == "resident"


def test_status_files_are_whole(tmp_path):
    reporter = Reporter(tmp_path)
    reporter.enter(Stage.INITIALIZE)
    assert (tmp_path / "stage").read_text() == "initialize"
    assert [path.name for path in tmp_path.iterdir()] == ["stage"]


def test_processor_information_is_asked_for_once(tmp_path):
    code = """
import sys, pathlib
from autotune.evaluators.rank_worker import processor_info
processor_info.install(pathlib.Path(sys.argv[1]))
from cpuinfo import get_cpu_info
print(get_cpu_info()["arch"])
"""
    folder = tmp_path / "cache"
    run = [sys.executable, "-c", code, str(folder)]
    first = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    path = folder / processor_info.FILE_NAME
    assert json.loads(path.read_text())["arch"] == first
    path.write_text('{"arch": "KEPT"}')
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "KEPT\n"
    path.write_text("{")
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == first


def test_byte_gpt_reads_source_and_keeps_files_apart():
    context = WorkloadContext(seed=0, rank=0, world_size=1, device="cpu", arguments={"layers": 1, "width": 16})
    built = byte_gpt.workload(context)
    assert len(built.data) * 65 <= 2_000_000
    assert len(built.held_out) == 128
    files = byte_gpt.standard_library()
    assert files == byte_gpt.standard_library()
    assert set(files[:: byte_gpt.HELD_OUT_EVERY]).isdisjoint(
        path for index, path in enumerate(files) if index % byte_gpt.HELD_OUT_EVERY
    )
    batch = torch.stack([built.data[0], built.data[1]])
    assert built.loss(built.model, batch).item() == pytest.approx(5.545, abs=0.2)
    with pytest.raises(WorkloadError, match=r"width: got 10; it must be a multiple of heads \(4\)"):
        byte_gpt.byte_gpt(width=10)
