"""Warm trials: nothing of one reaches the next, whatever it did, and the server behind them stays as it was."""

import os
import signal
import threading
import time

import psutil
import pytest

from autotune.evaluators import op_cache
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.deepspeed import DeepSpeedEvaluator
from autotune.runners import fork_server
from autotune.runners.rank_process import RankProcess
from autotune.trials import Budget, FailureKind, Stage
from autotune.workload import WorkloadReference
from tests.autotune.evaluators.test_deepspeed import BYTE_GPT, HERE, config, faulty, request

pytestmark = pytest.mark.real

CONFIGS = {
    "stage 0": (config(), False),
    "stage 1, clipping": (config(1, gradient_clipping=0.1), False),
    "stage 2, optimizer offload": (
        config(
            2, zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"}}, zero_force_ds_cpu_optimizer=False
        ),
        False,
    ),
    "stage 3": (config(3), False),
    "stage 3, small buckets": (
        config(3, zero_optimization={"stage": 3, "stage3_prefetch_bucket_size": 0, "reduce_bucket_size": 10_000}),
        False,
    ),
    "bf16, recomputing": (config(1, bf16={"enabled": True}), True),
}
LATE = ("stage 0", "stage 1, clipping", "stage 2, optimizer offload", "stage 3, small buckets")


@pytest.fixture(scope="module")
def host():
    op_cache.prepare([config()], device="cpu", progress=lambda line: None)
    host = RankProcess()
    yield host
    host.close()


@pytest.fixture
def run(tmp_path, host):
    def run(trial, *, workload=BYTE_GPT, execution="warm", hosts=None, progress=lambda stage: None):
        evaluator = DeepSpeedEvaluator(workload=workload, ranks=1, run_directory=str(tmp_path), execution=execution)
        hosts = hosts or [host if execution == "warm" else RankProcess()]
        return evaluator.evaluate(trial, hosts=hosts, progress=progress, cancelled=lambda: False)

    return run


def losses(outcome):
    measured = outcome.measurement
    assert measured is not None, outcome.failure
    return (measured.held_out_loss_before, measured.held_out_loss_after, measured.training_loss_last)


def server_of(host):
    return psutil.Process(host.server_pid)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LATE else []) for name in CONFIGS]
)
def test_losses_are_a_cold_trials_bit_for_bit_whatever_ran_before(run, name):
    ds_config, recomputing = CONFIGS[name]
    trial = request(ds_config, activation_checkpointing=recomputing)
    cold = losses(run(trial, execution="cold"))
    run(request(config(3)), workload=BYTE_GPT)  # patches torch.nn.functional.linear, among others
    assert losses(run(trial)) == cold
    crashed = run(request(config()), workload=faulty("crashing"))
    assert crashed.failure.kind is FailureKind.CRASH
    assert losses(run(trial)) == cold


def test_the_server_stays_as_it_was(run, host):
    run(request(config(3)))
    run(request(config()))  # by now it has learnt what trials load
    server = server_of(host)
    before = _figures(server)
    for number in range(12):
        trial = request(config(3 * (number % 2)), budget=Budget(steps=3))
        workload = faulty("killed") if number % 3 == 2 else faulty("healthy")
        run(trial, workload=workload)
    assert server_of(host).pid == server.pid
    after = _figures(server)
    assert after[1:] == before[1:]
    assert after[0] < before[0] + 2 * 1024 * 1024


def _figures(server):
    """Return resident bytes, and the numbers of descriptors, of threads and of children that run."""
    running = [child for child in server.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    return server.memory_info().rss, server.num_fds(), server.num_threads(), len(running)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_seed_has_its_own_workload(run, host, seed):
    trial = request(config(), seed=seed, budget=Budget(steps=3))
    warm = run(trial)
    assert losses(warm) == losses(run(trial, execution="cold"))


def test_a_dead_server_is_replaced(run, host):
    run(request(config(), budget=Budget(steps=3)), workload=faulty("healthy"))
    pid = host.server_pid
    os.kill(pid, signal.SIGKILL)
    outcome = run(request(config(), budget=Budget(steps=3)), workload=faulty("healthy"))
    assert outcome.measurement is not None
    assert host.server_pid != pid


@pytest.mark.slow  # as a dead one
def test_a_worn_server_is_replaced(run, host, monkeypatch):
    trial = request(config(), budget=Budget(steps=3))
    run(trial, workload=faulty("healthy"))
    pid = host.server_pid
    monkeypatch.setattr(fork_server, "MOST_FORKS", 1)
    assert run(trial, workload=faulty("healthy")).measurement is not None
    assert host.server_pid != pid


def test_a_server_that_dies_in_mid_trial_is_a_failure_of_that_trial_only(run, host):
    run(request(config(), budget=Budget(steps=3)), workload=faulty("healthy"))

    def kill(stage):
        if stage is Stage.RUN:
            os.kill(host.server_pid, signal.SIGKILL)

    outcome = run(request(config(), budget=Budget(seconds=30.0)), progress=kill)
    assert outcome.failure.kind is FailureKind.OUT_OF_MEMORY  # killed by signal 9
    assert run(request(config(), budget=Budget(steps=3)), workload=faulty("healthy")).measurement is not None


@pytest.mark.parametrize("stage", [Stage.RENDEZVOUS, Stage.INITIALIZE, Stage.FIRST_STEP, Stage.RUN])
def test_a_rank_killed_in_each_stage(run, host, tmp_path, stage):
    run(request(config(), budget=Budget(steps=3)), workload=faulty("healthy"))

    def kill(entered):
        if entered is stage:
            (rank,) = server_of(host).children()
            rank.kill()

    workload = faulty(f"slow_in_{stage.value}")
    outcome = run(request(config(), budget=Budget(seconds=30.0)), workload=workload, progress=kill)
    assert outcome.failure.kind is FailureKind.OUT_OF_MEMORY
    # Alone, a rank is through the rendezvous in a moment: the signal may find it in the next stage.
    assert outcome.failure.stage in ({stage, Stage.INITIALIZE} if stage is Stage.RENDEZVOUS else {stage})
    assert outcome.duration_s < 60  # no deadline was waited for
    assert run(request(config(), budget=Budget(steps=3)), workload=faulty("healthy")).measurement is not None


@pytest.mark.parametrize("function", ["asking_for_the_group", "leaving", "not_a_workload"])
def test_a_workload_that_cannot_be_built_ahead_is_built_in_the_trial(tmp_path, function):
    host = RankProcess()
    evaluator = DeepSpeedEvaluator(workload=faulty(function), ranks=1, run_directory=str(tmp_path), execution="warm")
    try:
        outcome = evaluator.evaluate(
            request(config(), budget=Budget(steps=3)),
            hosts=[host],
            progress=lambda stage: None,
            cancelled=lambda: False,
        )
    finally:
        host.close()
    if function == "asking_for_the_group":
        assert outcome.measurement is not None
    else:
        assert outcome.failure.kind is FailureKind.CRASH
        assert outcome.failure.stage is Stage.INITIALIZE


@pytest.mark.parametrize(
    "function", [pytest.param("fed_by_a_thread", marks=pytest.mark.slow), "served_by_a_process", "reading_a_file"]
)
def test_a_workload_of_which_forks_would_share_too_much_or_lack_something(tmp_path, function):
    """Threads don't come along into a fork, one that ends takes the others' helpers with it, and files have one
    position for all."""
    host, cold_host = RankProcess(), RankProcess()
    outcomes = []
    try:
        for execution, where in (("warm", host), ("warm", host), ("cold", cold_host)):
            evaluator = DeepSpeedEvaluator(
                workload=faulty(function), ranks=1, run_directory=str(tmp_path / execution), execution=execution
            )
            outcomes.append(
                evaluator.evaluate(
                    request(config(), budget=Budget(steps=8)),
                    hosts=[where],
                    progress=lambda stage: None,
                    cancelled=lambda: False,
                )
            )
    finally:
        host.close()
    first, second, cold = (losses(outcome) for outcome in outcomes)
    assert first == second == cold


def test_a_workload_is_built_once_and_has_a_stage_of_its_own_for_it(tmp_path):
    """Its data may take minutes to load: that is not the start of a process."""
    host, stages = RankProcess(), []
    workload = WorkloadReference(
        function="faulty_workloads:slow_to_build",
        python_path=(str(HERE),),
        arguments={"notes": str(tmp_path / "notes")},
    )
    evaluator = DeepSpeedEvaluator(workload=workload, ranks=1, run_directory=str(tmp_path), execution="warm")
    try:
        for _ in range(2):
            outcome = evaluator.evaluate(
                request(config(), budget=Budget(steps=3)),
                hosts=[host],
                progress=stages.append,
                cancelled=lambda: False,
            )
            assert outcome.measurement is not None, outcome.failure
    finally:
        host.close()
    assert (tmp_path / "notes").read_text() == "built\n"
    assert stages[:2] == [Stage.LAUNCH, Stage.BUILD]


def test_a_workload_that_is_never_built_is_a_timeout(tmp_path):
    hosts = [RankProcess(), RankProcess()]
    evaluator = DeepSpeedEvaluator(
        workload=faulty("asleep"),
        ranks=2,
        run_directory=str(tmp_path),
        execution="warm",
        deadlines=Deadlines(initialize_s=4.0),
    )
    try:
        outcome = evaluator.evaluate(
            request(config()), hosts=hosts, progress=lambda stage: None, cancelled=lambda: False
        )
    finally:
        for host in hosts:
            host.close()
    assert outcome.failure.kind is FailureKind.TIMEOUT
    assert (outcome.failure.stage, outcome.failure.rank) == (Stage.BUILD, 1)
    assert "raise deadlines.initialize_s" in outcome.failure.reason


def test_closing_a_host_ends_its_server(tmp_path):
    host = RankProcess()
    evaluator = DeepSpeedEvaluator(workload=faulty("stubborn"), ranks=1, run_directory=str(tmp_path), execution="warm")
    cancelled = threading.Event()
    threading.Timer(6.0, cancelled.set).start()
    outcome = evaluator.evaluate(
        request(config()), hosts=[host], progress=lambda stage: None, cancelled=cancelled.is_set
    )
    assert outcome.failure.kind is FailureKind.CANCELLED
    pid = host.server_pid
    host.close()
    deadline_s = time.monotonic() + 5
    while psutil.pid_exists(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)
