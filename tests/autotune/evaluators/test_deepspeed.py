"""Real DeepSpeed trials, warm ones, each after whatever the tests before it did to their hosts; cold where said so."""

import math
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.errors import CampaignError
from autotune.evaluators import op_cache
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.deepspeed import DeepSpeedEvaluator
from autotune.evaluators.protocol import never_prune
from autotune.runners.rank_process import RankProcess
from autotune.trials import Budget, EndedBy, FailureKind, Outcome, Stage, TrialRequest
from autotune.workload import WorkloadReference

HERE = Path(__file__).parent
BYTE_GPT = WorkloadReference(
    function="byte-gpt", arguments={"layers": 2, "width": 64, "sequence": 32, "held_out_sequences": 64}
)
pytestmark = pytest.mark.real


def config(stage=0, **more):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        **more,
    }


def faulty(name):
    return WorkloadReference(function=f"faulty_workloads:{name}", python_path=(str(HERE),))


def request(ds_config, *, budget=None, **more):
    return TrialRequest(number=7, point={}, ds_config=ds_config, budget=budget or Budget(steps=6), **more)


@pytest.fixture(scope="module", autouse=True)
def _ops():
    op_cache.prepare([config()], device="cpu", progress=lambda line: None)


@pytest.fixture(scope="module")
def hosts():
    """Two hosts that serve all the trials of this module."""
    hosts = [RankProcess(), RankProcess()]
    yield hosts
    for host in hosts:
        host.close()


@pytest.fixture
def run(tmp_path, hosts):
    shared = hosts

    def run(
        trial,
        *,
        workload=BYTE_GPT,
        ranks=1,
        cancelled=lambda: False,
        should_prune=never_prune,
        hosts=None,
        execution="warm",
        **more,
    ):
        evaluator = DeepSpeedEvaluator(
            workload=workload, ranks=ranks, run_directory=str(tmp_path), execution=execution, **more
        )
        outcome = evaluator.evaluate(
            trial,
            hosts=hosts or shared[:ranks],
            progress=lambda stage: None,
            cancelled=cancelled,
            should_prune=should_prune,
        )
        assert ranks_in(tmp_path) == []
        assert Outcome.from_json(outcome.to_json()) == outcome
        return outcome

    return run


def ranks_in(directory):
    """Return the processes that work in a trial folder below `directory`, zombies left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(directory)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def gone(directory, within_s):
    deadline = time.monotonic() + within_s
    while ranks_in(directory) and time.monotonic() < deadline:
        time.sleep(0.1)
    return ranks_in(directory) == []


@pytest.fixture(scope="module")
def by_stage(tmp_path_factory, hosts):
    measured = {}
    for stage in range(4):
        folder = str(tmp_path_factory.mktemp("run"))
        evaluator = DeepSpeedEvaluator(workload=BYTE_GPT, ranks=2, run_directory=folder, execution="warm")
        outcome = evaluator.evaluate(
            request(config(stage)), hosts=hosts, progress=lambda stage: None, cancelled=lambda: False
        )
        assert outcome.failure is None, outcome.failure
        measured[stage] = outcome
    return measured


@pytest.mark.parametrize("stage", range(4))
def test_every_zero_stage_is_measured(by_stage, stage):
    outcome = by_stage[stage]
    measurement = outcome.measurement
    assert measurement.timed_steps == 6
    assert measurement.warmup_steps == (4 if stage == 3 else 2)
    assert measurement.samples_per_step == 16
    assert measurement.samples_per_second == pytest.approx(16 / measurement.step_time_s)
    assert measurement.tokens_per_second == pytest.approx(32 * measurement.samples_per_second)
    # 2 layers of 12 h^2 + 13 h, and the embeddings of 256 bytes (twice) and 32 places, a layer norm of 2 h: h = 64
    assert measurement.trained_parameters == measurement.total_parameters == 2 * (12 * 64**2 + 13 * 64) + 546 * 64
    assert math.log(256) * 0.9 < measurement.held_out_loss_before < math.log(256) * 1.1
    assert measurement.held_out_loss_after < measurement.held_out_loss_before
    assert math.isfinite(measurement.training_loss_last)
    assert measurement.convergence_time_s == measurement.training_time_s > 6 * measurement.step_time_s / 2
    assert len(measurement.peak_memory_bytes) == 2
    assert all(50e6 < peak < 4e9 for peak in measurement.peak_memory_bytes)
    parts = measurement.forward_s + measurement.backward_s + measurement.optimizer_s
    assert 0 < parts < 3 * measurement.step_time_s
    assert measurement.communication_s > 0
    effective = measurement.effective_config
    assert effective["zero_optimization.stage"] == stage
    assert effective["train_batch_size"] == 16
    assert effective["world_size"] == 2
    assert effective["optimizer.params.lr"] == 1e-3
    assert measurement.versions["deepspeed"]
    assert {"launch", "run", "cleanup"} <= set(outcome.stage_s) <= {*(stage.value for stage in Stage), "cleanup"}
    assert sum(outcome.stage_s.values()) == pytest.approx(outcome.duration_s, abs=0.5)
    assert all(Path(log).exists() for log in outcome.logs.values())


def test_stages_0_to_2_learn_the_same(by_stage):
    losses = [by_stage[stage].measurement.held_out_loss_after for stage in range(3)]
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-4)


def test_stage_3_communicates_more_than_stage_0(by_stage):
    share = [by_stage[stage].measurement.communication_s for stage in (0, 3)]
    assert share[1] > share[0]


@pytest.mark.parametrize("execution", ["warm", "cold"])
def test_the_same_request_gives_the_same_losses(by_stage, run, execution):
    first = by_stage[2].measurement
    again = run(request(config(2)), ranks=2, execution=execution).measurement
    assert again.held_out_loss_before == first.held_out_loss_before
    assert again.held_out_loss_after == first.held_out_loss_after
    assert again.training_loss_last == first.training_loss_last == first.training_losses[-1]
    assert again.training_losses == first.training_losses
    assert len(first.training_losses) == first.warmup_steps + first.timed_steps
    assert len(first.step_times_s) == first.timed_steps


def test_trials_are_compared_at_the_same_training_time(run):
    measurement = run(request(config(), budget=Budget(seconds=0.5), convergence_at_s=0.7)).measurement
    assert measurement.convergence_time_s == 0.7
    assert measurement.training_time_s >= 0.7
    assert measurement.held_out_loss_after < measurement.held_out_loss_before


def test_a_trial_ends_when_its_step_time_is_known_precisely_enough(run):
    trial = request(config(), budget=Budget(steps=400, precision=0.9), convergence_at_s=0.2)
    measurement = run(trial, ranks=2).measurement
    assert measurement.ended_by is EndedBy.PRECISION
    assert measurement.step_time_interval <= 0.9
    assert 6 <= measurement.timed_steps < 400
    assert measurement.training_time_s >= measurement.convergence_time_s == 0.2


def test_a_pruned_trial_ends_within_a_moment_with_its_figures_so_far(run):
    seen = []

    def should_prune(course):
        seen.append((time.monotonic(), course))
        return "clearly dominated" if len(course) >= 2 else None

    outcome = run(request(config(2), budget=Budget(steps=800)), ranks=2, should_prune=should_prune)
    assert time.monotonic() - seen[-1][0] < 10
    assert (outcome.pruned, outcome.measurement, outcome.failure) == ("clearly dominated", None, None)
    assert outcome.intermediates == seen[-1][1]
    first, second = outcome.intermediates[:2]
    assert 0 < first.training_time_s < second.training_time_s
    assert first.loss_before == second.loss_before > first.training_loss > second.training_loss
    assert second.samples_per_second > 0


def test_bf16_with_activation_checkpointing(run):
    trial = request(config(1, bf16={"enabled": True}), activation_checkpointing=True, budget=Budget(samples=20))
    measurement = run(trial).measurement
    assert measurement.effective_config["bf16.enabled"] is True
    assert measurement.held_out_loss_after < measurement.held_out_loss_before
    assert measurement.timed_steps == 3


def test_whole_numbers_are_ints_as_where_deepspeed_reads_the_file(run):
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 1e2}}
    measurement = run(request(config(scheduler=schedule)), workload=faulty("healthy")).measurement
    assert measurement.effective_config["scheduler.type"] == "WarmupLR"


def test_a_port_taken_meanwhile_is_replaced(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:

        class Unlucky(RankProcess):
            reserved = 0

            def reserve_address(self):
                self.reserved += 1
                return taken.getsockname()[:2] if self.reserved == 1 else super().reserve_address()

        host = Unlucky()
        outcome = run(request(config()), workload=faulty("healthy"), hosts=[host], execution="cold")
    assert outcome.measurement is not None
    assert host.reserved == 2


def test_a_delivered_result_outranks_the_exit(run):
    outcome = run(request(config()), workload=faulty("leaving_badly"))
    assert outcome.measurement is not None


def failure_of(outcome, kind):
    assert outcome.failure is not None, outcome.measurement
    assert outcome.failure.kind is kind, outcome.failure
    return outcome.failure


def test_a_loss_that_is_not_finite_diverged(run):
    sgd = config(optimizer={"type": "SGD", "params": {"lr": 1e20}})
    failure = failure_of(run(request(sgd), workload=faulty("healthy")), FailureKind.DIVERGED)
    assert "not finite in step" in failure.reason


def test_a_crash_of_one_rank_is_told_whatever_stands_on_stderr(run):
    outcome = run(request(config(1), budget=Budget(steps=500)), workload=faulty("crashing"), ranks=2)
    failure = failure_of(outcome, FailureKind.CRASH)
    assert failure.rank == 1
    assert failure.stage is Stage.RUN
    assert failure.exit_code == 1
    assert failure.reason == "KeyError: 'the twentieth'"
    assert failure.log_tail[-1] == "KeyError: 'the twentieth'"
    assert any("faulty_workloads.py" in line for line in failure.log_tail)


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        ("not_a_workload", FailureKind.CRASH, "returned a int"),
        ("not_a_model", FailureKind.CRASH, "model is a str; it must be a torch.nn.Module"),
        ("all_frozen", FailureKind.CRASH, "there is nothing to train"),
        ("loss_by_sample", FailureKind.CRASH, "it must be one number (take the mean)"),
        ("never_finite", FailureKind.DIVERGED, "nothing was trained yet: look at the loss function"),
    ],
)
def test_a_workload_that_cannot_be_trained(run, function, kind, words):
    assert words in failure_of(run(request(config()), workload=faulty(function)), kind).reason


@pytest.mark.slow  # as test_warm_trials does it with a workload that is never built
def test_a_rank_that_does_not_come_is_a_timeout(run):
    deadlines = Deadlines(initialize_s=4.0)
    outcome = run(request(config()), workload=faulty("asleep"), ranks=2, deadlines=deadlines, execution="cold")
    failure = failure_of(outcome, FailureKind.TIMEOUT)
    assert failure.stage is Stage.INITIALIZE
    assert "deadlines.initialize_s" in failure.reason


def test_a_killed_rank_is_out_of_memory(run):
    failure = failure_of(run(request(config()), workload=faulty("killed"), ranks=2), FailureKind.OUT_OF_MEMORY)
    assert failure.rank == 1
    assert failure.exit_code == -signal.SIGKILL
    assert "killed by signal 9" in failure.reason


def test_a_memory_limit(run):
    trial = request(config(), budget=Budget(steps=500))
    outcome = run(trial, workload=faulty("hoarding"), memory_limit_bytes=1_500_000_000)
    failure = failure_of(outcome, FailureKind.OUT_OF_MEMORY)
    assert "above its limit" in failure.reason


def test_an_allocation_that_fails(run):
    failure = failure_of(run(request(config()), workload=faulty("asking_too_much")), FailureKind.OUT_OF_MEMORY)
    assert failure.reason.startswith("out of memory: ")
    assert failure.stage is Stage.FIRST_STEP


@pytest.mark.parametrize(
    ("ds_config", "words"),
    [
        (
            config(fp16={"enabled": True}, bf16={"enabled": True}),
            "bfloat16 and fp16 modes cannot be simultaneously enabled",
        ),
        (config(2, optimizer={"type": "Nonsense", "params": {}}), "Nonsense"),
    ],
)
def test_a_configuration_that_deepspeed_refuses(run, ds_config, words):
    failure = failure_of(run(request(ds_config), workload=faulty("healthy")), FailureKind.INVALID_CONFIG)
    assert failure.reason.startswith("DeepSpeed refuses this configuration: ")
    assert words in failure.reason


def test_a_key_that_deepspeed_ignores(run):
    ignored = config(2)
    ignored["zero_optimization"]["offload_param"] = {"device": "cpu"}
    failure = failure_of(run(request(ignored), workload=faulty("healthy")), FailureKind.INVALID_CONFIG)
    assert "zero_optimization.offload_param.device: sent 'cpu', the engine runs 'none'" in failure.reason


def test_checkpointing_that_can_not_be_applied(run):
    trial = request(config(), activation_checkpointing=True)
    failure = failure_of(run(trial, workload=faulty("healthy")), FailureKind.INVALID_CONFIG)
    assert "nn.ModuleList" in failure.reason


def test_cancellation_ends_even_what_ignores_sigterm(run, tmp_path):
    ready = tmp_path / "trial-00007" / "rank0" / "ready"
    started = time.monotonic()
    outcome = run(request(config()), workload=faulty("stubborn"), cancelled=ready.exists)
    failure_of(outcome, FailureKind.CANCELLED)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("execution", ["warm", pytest.param("cold", marks=pytest.mark.slow)])
def test_ranks_die_with_their_controller(tmp_path, execution):
    more = {"workload": "faulty('stubborn')", "execution": repr(execution), "run_directory": repr(str(tmp_path))}
    code = f"""
from tests.autotune.evaluators.test_deepspeed import *
evaluator = DeepSpeedEvaluator(ranks=2, {", ".join(f"{name}={value}" for name, value in more.items())})
hosts = [RankProcess(), RankProcess()]
evaluator.evaluate(request(config()), hosts=hosts, progress=lambda stage: None, cancelled=lambda: False)
"""
    controller = subprocess.Popen([sys.executable, "-c", code], cwd=HERE.parents[2])
    ready = [tmp_path / "trial-00007" / f"rank{rank}" / "ready" for rank in range(2)]
    deadline = time.monotonic() + 120
    while not all(path.exists() for path in ready) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(ranks_in(tmp_path)) == 4
    controller.kill()
    controller.wait()
    assert gone(tmp_path, within_s=10)


def test_as_many_hosts_as_ranks(tmp_path):
    evaluator = DeepSpeedEvaluator(workload=BYTE_GPT, ranks=2, run_directory=str(tmp_path))
    with pytest.raises(CampaignError, match="this evaluator runs 2 ranks"):
        evaluator.evaluate(request(config()), hosts=[], progress=lambda stage: None, cancelled=lambda: False)
    with pytest.raises(CampaignError, match="at least 1"):
        replace(evaluator, ranks=0)
