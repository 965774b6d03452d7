"""The Ray runner on one local cluster, shared by the tests of this module."""

import os
import signal
import time

import psutil
import pytest

from autotune.errors import ResourceError
from autotune.testing.runners import ProcessEvaluator, RunnerContract, ScriptedEvaluator, request
from autotune.trials import FailureKind

ray_runner = pytest.importorskip("autotune.runners.ray_runner")
pytestmark = pytest.mark.ray

NOTE_PIDS = "import os, pathlib, time; pathlib.Path('pids').write_text(f'{os.getpid()} {os.getppid()}')\n"


@pytest.fixture(scope="module", autouse=True)
def session():
    session = ray_runner.RaySession()
    session.open()
    yield session
    session.close()
    assert psutil.Process().children(recursive=True) == []


class TestRayRunner(RunnerContract):
    ranks = 1

    def make_runner(self, evaluator):
        return ray_runner.RayRunner(evaluator, slots=2)


def pids(directory, trial, ranks=2):
    """The numbers of each rank's process and of its actor."""
    notes = [directory / str(trial) / f"rank{rank}" / "pids" for rank in range(ranks)]
    wait_until(lambda: all(note.exists() and len(note.read_text().split()) == 2 for note in notes), 30)
    return [[int(pid) for pid in note.read_text().split()] for note in notes]


def processes(directory, trial):
    return [[psutil.Process(pid) for pid in of_rank] for of_rank in pids(directory, trial)]


def wait_until(condition, timeout_s):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.05)


@pytest.fixture
def sleeping(tmp_path):
    """A runner with one trial of two sleeping ranks under way; the ranks of later trials end at once."""
    source = NOTE_PIDS + "time.sleep(120 if pathlib.Path.cwd().parent.name == '0' else 0)"
    runner = ray_runner.RayRunner(ProcessEvaluator(ranks=2, source=source, directory=str(tmp_path)))
    runner.open([], print)
    runner.submit(request(0))
    yield runner
    runner.close(cancel=True)


def test_a_killed_actor_ends_its_trial_and_the_next_one_has_a_new_actor(sleeping, tmp_path):
    (_, _), (rank, actor) = processes(tmp_path, 0)
    actor.kill()
    failure = sleeping.collect(20.0).outcome.failure
    assert (failure.kind, failure.rank, failure.exit_code) == (FailureKind.CRASH, 1, None)
    assert "the host of rank 1 is lost" in failure.log_tail[-1]
    wait_until(lambda: not rank.is_running(), 10)
    sleeping.submit(request(1))
    assert sleeping.collect(30.0).outcome.measurement
    assert pids(tmp_path, 1)[1][1] != actor.pid


def test_an_actor_that_does_not_answer_is_lost(sleeping, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_runner, "CALL_TIMEOUT_S", 1.0)
    (rank, actor), _ = processes(tmp_path, 0)
    actor.send_signal(signal.SIGSTOP)
    failure = sleeping.collect(20.0).outcome.failure
    assert (failure.rank, failure.exit_code) == (0, None)
    wait_until(lambda: not rank.is_running(), 20)
    sleeping.submit(request(1))
    assert sleeping.collect(30.0).outcome.measurement


def test_an_actor_that_died_between_trials_is_replaced(tmp_path):
    runner = ray_runner.RayRunner(ProcessEvaluator(ranks=2, source=NOTE_PIDS, directory=str(tmp_path)))
    runner.open([], print)
    try:
        runner.submit(request(0))
        assert runner.collect(30.0).outcome.measurement
        for _, actor in pids(tmp_path, 0):
            os.kill(actor, signal.SIGKILL)
        runner.submit(request(1))
        assert runner.collect(30.0).outcome.measurement
    finally:
        runner.close(cancel=True)


def test_a_killed_rank_has_its_exit_code(sleeping, tmp_path):
    (rank, _), _ = processes(tmp_path, 0)
    rank.kill()
    assert sleeping.collect(20.0).outcome.failure.exit_code == -signal.SIGKILL


def test_a_folder_that_can_not_be_made_is_told_as_on_this_machine(tmp_path):
    (tmp_path / "0").write_text("a file where the trial's folder goes")
    runner = ray_runner.RayRunner(ProcessEvaluator(ranks=1, source="", directory=str(tmp_path)))
    runner.open([], print)
    try:
        runner.submit(request(0))
        failure = runner.collect(30.0).outcome.failure
    finally:
        runner.close(cancel=True)
    assert failure.kind is FailureKind.CRASH
    assert "NotADirectoryError" in failure.reason
    assert "ray::" not in failure.reason


def test_more_than_there_is_is_refused_at_once():
    runner = ray_runner.RayRunner(ScriptedEvaluator(ranks=4), cpus_per_rank=1000, gpus_per_rank=1)
    with pytest.raises(
        ResourceError, match=r"asked for 4 bundles of 1000 CPU and 1 GPU \(PACK\); the cluster has 1 node"
    ):
        runner.open([], print)


def test_what_others_hold_is_refused_after_a_while(session, monkeypatch):
    all_cpus = session.cluster().cpu_count
    holder = ray_runner.RayRunner(ScriptedEvaluator(ranks=1), cpus_per_rank=all_cpus)
    holder.open([], print)
    monkeypatch.setattr(ray_runner, "PLACEMENT_TIMEOUT_S", 1.0)
    late = ray_runner.RayRunner(ScriptedEvaluator(ranks=1))
    try:
        with pytest.raises(ResourceError, match=r"after 1 s 0 of 1 group.* with 0 CPU and 0 GPU left free"):
            late.open([], print)
    finally:
        holder.close(cancel=True)
    monkeypatch.undo()
    late.open([], print)
    late.close(cancel=True)


def test_the_address_of_another_cluster_is_refused():
    with pytest.raises(
        ResourceError, match=r"asked for the cluster at 10\.0\.0\.1:6379, but this process is connected to"
    ):
        ray_runner.describe_cluster("10.0.0.1:6379")


def test_a_described_cluster_that_was_there_stays(session):
    described = ray_runner.describe_cluster()
    assert described.nodes == session.cluster().nodes
    assert described.nodes[0].cpu_count == len(os.sched_getaffinity(0))
    assert described.nodes[0].memory_bytes > 2**28
