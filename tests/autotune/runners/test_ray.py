"""The Ray runner on one local cluster, shared by the tests of this module."""

import ast
import os
import signal
import threading
import time

import psutil
import pytest

from autotune.errors import ResourceError
from autotune.testing.runners import ProcessEvaluator, RunnerContract, ScriptedEvaluator, request
from autotune.trials import FailureKind
from tests import failures

ray_runner = pytest.importorskip("autotune.runners.ray_runner")
ray_host = pytest.importorskip("autotune.runners.ray_host")
ray_slots = pytest.importorskip("autotune.runners.ray_slots")
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
    """A runner with one trial of two sleeping ranks under way; where it is measured again, the ranks end at once."""
    source = NOTE_PIDS + "again = pathlib.Path('again').exists()\npathlib.Path('again').touch()\n"
    source += "time.sleep(0 if again or pathlib.Path.cwd().parent.name != '0' else 120)"
    runner = ray_runner.RayRunner(ProcessEvaluator(ranks=2, source=source, directory=str(tmp_path)))
    told = []
    runner.open([], told.append)
    runner.told = told
    runner.submit(request(0))
    yield runner
    runner.close(cancel=True)


def test_a_trial_whose_actor_is_killed_is_measured_again_on_another(sleeping, tmp_path):
    (other, _), (rank, actor) = processes(tmp_path, 0)
    wait_until((tmp_path / "0" / "rank1" / "again").exists, 10)
    wait_until((tmp_path / "0" / "rank0" / "again").exists, 10)
    actor.kill()
    finished = sleeping.collect(60.0)
    assert finished.request.number == 0
    (remark,) = finished.outcome.measurement.remarks
    assert remark == "measured anew after its host was lost (rank 1 died)"
    assert "trial 0: rank 1 died; it is measured again" in sleeping.told
    assert not failures.is_alive(rank)
    assert not failures.is_alive(other)
    assert pids(tmp_path, 0)[1][1] != actor.pid
    assert sleeping.collect(0.0) is None
    sleeping.submit(request(1))
    assert sleeping.collect(30.0).outcome.measurement.remarks == ()


def test_an_actor_that_does_not_answer_is_lost(sleeping, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_host, "CALL_TIMEOUT_S", 1.0)
    (rank, actor), _ = processes(tmp_path, 0)
    wait_until((tmp_path / "0" / "rank0" / "again").exists, 10)
    actor.send_signal(signal.SIGSTOP)
    assert sleeping.collect(60.0).outcome.measurement.remarks
    wait_until(lambda: not failures.is_alive(rank), 20)


@pytest.mark.slow
def test_a_trial_whose_host_is_lost_again_and_again_is_a_crash_with_the_whole_story(tmp_path):
    runner = ray_runner.RayRunner(
        ProcessEvaluator(ranks=1, source="import os\nos.kill(os.getppid(), 9)", directory=str(tmp_path))
    )
    told = []
    runner.open([], told.append)
    try:
        runner.submit(request(0))
        failure = runner.collect(120.0).outcome.failure
        assert (failure.kind, failure.host_lost) == (FailureKind.CRASH, True)
        assert failure.reason.startswith("its host was lost each of 3 times that it ran, so this configuration may")
        assert failure.reason.count("rank 0 died") == 3
        assert sum("it is measured again" in line for line in told) == 2
        assert runner.collect(0.5) is None
    finally:
        runner.close(cancel=True)


def test_a_loss_while_the_runner_closes_is_a_cancellation(sleeping, tmp_path):
    _, (_, actor) = processes(tmp_path, 0)
    wait_until((tmp_path / "0" / "rank1" / "again").exists, 10)
    actor.kill()
    wait_until(lambda: all(slot.request is None for slot in sleeping._slots), 20)
    sleeping.close(cancel=True)
    assert sleeping.collect(0.0).outcome.failure.kind is FailureKind.CANCELLED
    assert sleeping.collect(0.0) is None


def test_an_actor_that_died_between_trials_is_replaced(tmp_path):
    runner = ray_runner.RayRunner(ProcessEvaluator(ranks=2, source=NOTE_PIDS, directory=str(tmp_path)))
    runner.open([], print)
    try:
        runner.submit(request(0))
        assert runner.collect(30.0).outcome.measurement
        for _, actor in pids(tmp_path, 0):
            os.kill(actor, signal.SIGKILL)
        runner.submit(request(1))
        assert runner.collect(60.0).outcome.measurement
    finally:
        runner.close(cancel=True)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_slots_on_one_node_have_processors_of_their_own(tmp_path):
    source = (
        "import os, pathlib, time\n"
        "seen = (sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])\n"
        "pathlib.Path('seen').write_text(repr(seen))\n"
        "while not (pathlib.Path.cwd().parents[1] / 'go').exists(): time.sleep(0.05)\n"
    )
    runner = ray_runner.RayRunner(ProcessEvaluator(ranks=1, source=source, directory=str(tmp_path)), slots=2)
    told = []
    runner.open([], told.append)
    try:
        assert told[-1] == "2 trials at once, as slots says, each rank on processors of its own"
        seen = [tmp_path / str(number) / "rank0" / "seen" for number in range(2)]
        for number in range(2):
            runner.submit(request(number))
        wait_until(lambda: all(path.exists() and path.read_text() for path in seen), 30)
        first, second = (ast.literal_eval(path.read_text()) for path in seen)
        (tmp_path / "go").touch()
        assert all(runner.collect(30.0).outcome.measurement for _ in range(2))
    finally:
        runner.close(cancel=True)
    assert len(first[0]) == len(second[0]) == 1
    assert first[0] != second[0]
    assert (first[1], second[1]) == ("1", "1")


def test_without_slots_said_one_machine_runs_one_trial_with_all_its_processors(tmp_path):
    source = "import os, pathlib\npathlib.Path('seen').write_text(repr(sorted(os.sched_getaffinity(0))))"
    evaluator = ProcessEvaluator(ranks=1, source=source, directory=str(tmp_path))
    runner = ray_runner.RayRunner(evaluator, environment={})
    runner.open([], print)
    try:
        assert runner.slots == 1
        runner.submit(request(0))
        assert runner.collect(30.0).outcome.measurement
    finally:
        runner.close(cancel=True)
    assert ast.literal_eval((tmp_path / "0" / "rank0" / "seen").read_text()) == sorted(os.sched_getaffinity(0))


def test_a_ray_that_can_not_choose_nodes_runs_one_trial_and_refuses_labels(monkeypatch):
    monkeypatch.setattr(ray_slots, "SELECTS_NODES", False)
    with pytest.raises(ResourceError, match=r"got {'zone': 'b'}; Ray .* can't place trials by label"):
        ray_runner.RayRunner(ScriptedEvaluator(ranks=1), labels={"zone": "b"})
    runner = ray_runner.RayRunner(ScriptedEvaluator(ranks=1))
    told = []
    runner.open([], told.append)
    try:
        assert runner.slots == 1
        assert "can't keep trials on nodes of their own" in told[-1]
        runner.submit(request(0))
        assert runner.collect(30.0).outcome.measurement
    finally:
        runner.close(cancel=True)


def test_code_and_environment_can_not_be_sent_any_more(tmp_path):
    runner = ray_runner.RayRunner(ScriptedEvaluator(ranks=1), environment={"A": "b"})
    with pytest.raises(ResourceError, match=r"is connected to .* already, so code and environment can't be sent"):
        runner.open([], print)


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


def test_what_others_hold_is_refused_after_a_while_and_taken_once_it_is_free(session, monkeypatch):
    all_cpus = session.cluster().cpu_count
    holder = ray_runner.RayRunner(ScriptedEvaluator(ranks=1), cpus_per_rank=all_cpus)
    holder.open([], print)
    late = ray_runner.RayRunner(ScriptedEvaluator(ranks=1))
    freeing = threading.Timer(3.0, holder.close, kwargs={"cancel": True})
    try:
        with monkeypatch.context() as patched:
            patched.setattr(ray_slots, "PLACEMENT_TIMEOUT_S", 1.0)
            with pytest.raises(ResourceError, match=r"after 1 s 0 of 1 group.* with 0 CPU and 0 GPU left free"):
                late.open([], print)
        freeing.start()
        late.open([], print)  # waits for it
        late.submit(request(0))
        assert late.collect(30.0).request.number == 0
    finally:
        late.close(cancel=True)
        freeing.join()


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
