"""The Ray runner on several nodes: where trials land, and what becomes of them when nodes die and join."""

import json
import os
import time

import psutil
import pytest

from autotune.errors import ResourceError
from autotune.runners import ray_slots
from autotune.testing.runners import ProcessEvaluator, request
from autotune.trials import FailureKind
from tests import failures
from tests.autotune.runners.ray_nodes import PROCESSORS, RayNodes, wait_until

ray_runner = pytest.importorskip("autotune.runners.ray_runner")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(len(PROCESSORS) < 2, reason="needs two processors, one for each node"),
]

FIRST, SECOND = PROCESSORS[:2]
NOTE = """
import json, os, pathlib, time
note = {"processors": sorted(os.sched_getaffinity(0)), "threads": os.environ["OMP_NUM_THREADS"], "pid": os.getpid(),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "began": time.monotonic()}
pathlib.Path("note.new").write_text(json.dumps(note))
os.rename("note.new", "note")
"""
WAIT = """
while not (pathlib.Path.cwd().parents[1] / "go").exists():
    time.sleep(0.05)
"""
"""Ranks run until the test makes this file."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with RayNodes(tmp_path_factory.mktemp("nodes")) as nodes:
        nodes.start("first", address="127.0.0.1", processors=[FIRST], labels="zone=a")
        nodes.start("second", address="127.0.0.2", processors=[SECOND], labels="zone=b")
        yield nodes


@pytest.fixture
def opened(nodes, tmp_path):
    """Return a function that opens a runner; with `waits`, its trials run until there is a file 'go'."""
    runners = []

    def open_one(ranks=1, *, waits=False, source="", **options):
        evaluator = ProcessEvaluator(ranks=ranks, source=source or NOTE + WAIT * waits, directory=str(tmp_path))
        runner = ray_runner.RayRunner(evaluator, address=nodes.address, **options)
        runners.append(runner)
        runner.told = []
        runner.open([], runner.told.append)
        return runner

    yield open_one
    for runner in runners:
        runner.close(cancel=True)


def note(directory, trial, rank=0):
    path = directory / str(trial) / f"rank{rank}" / "note"
    wait_until(path.exists, 60)
    return json.loads(path.read_text())


def finish(runner, timeout_s=60):
    finished = runner.collect(timeout_s)
    assert finished is not None, runner.told
    return finished


def test_without_slots_said_each_node_serves_one_trial(opened, tmp_path):
    runner = opened(waits=True)
    assert runner.slots == 2
    assert "2 trials at once: one on each node" in runner.told[-1]
    for number in range(2):
        runner.submit(request(number))
    with pytest.raises(ResourceError, match=r"trial 9: 2 of 2 slots are busy \(trials 0, 1\)"):
        runner.submit(request(9))
    assert sorted(note(tmp_path, number)["processors"] for number in range(2)) == [[FIRST], [SECOND]]
    (tmp_path / "go").touch()
    assert all(finish(runner).outcome.measurement for _ in range(2))


def test_no_more_slots_than_trials(opened):
    assert opened(most_slots=1).slots == 1


@pytest.mark.parametrize(("condition", "processor"), [("b", "SECOND"), ("!b", "FIRST"), ("in(b,c)", "SECOND")])
def test_nodes_are_chosen_by_label(opened, tmp_path, condition, processor):
    runner = opened(labels={"zone": condition})
    assert runner.slots == 1
    runner.submit(request(0))
    assert finish(runner).outcome.measurement
    assert note(tmp_path, 0)["processors"] == [globals()[processor]]


def test_labels_that_no_node_has_are_refused_with_those_there_are(opened):
    with pytest.raises(ResourceError, match=r"asked for nodes with zone=c, and there is none.*zone=b; .*zone=a"):
        opened(labels={"zone": "c"})


def test_ranks_are_spread_over_nodes_and_meet_there(opened, tmp_path):
    runner = opened(2, strategy="STRICT_SPREAD")
    assert runner.slots == 1
    runner.submit(request(0))
    assert finish(runner).outcome.measurement
    assert sorted(note(tmp_path, 0, rank)["processors"] for rank in range(2)) == [[FIRST], [SECOND]]


def test_what_does_not_fit_is_refused_with_the_nearest_that_does(opened):
    with pytest.raises(ResourceError, match=r"2 bundles of 1 CPU \(STRICT_PACK\); the cluster has 2 nodes.*0\.5"):
        opened(2, strategy="STRICT_PACK")
    with pytest.raises(ResourceError, match=r"3 placement groups.*Set slots: 2"):
        opened(slots=3)


def test_gpus_are_not_shared(nodes, opened, tmp_path):
    nodes.start("gpus", address="127.0.0.9", cpus=4, gpus=3, labels="zone=gpus")
    runner = opened(gpus_per_rank=1, labels={"zone": "gpus"}, waits=True)
    assert runner.slots == 3
    assert "3 trials at once: so many have GPUs of their own" in runner.told[-1]
    for number in range(3):
        runner.submit(request(number))
    assert sorted(note(tmp_path, number)["gpus"] for number in range(3)) == ["0", "1", "2"]
    (tmp_path / "go").touch()
    assert all(finish(runner).outcome.measurement for _ in range(3))
    runner.close(cancel=True)
    two = opened(2, gpus_per_rank=1, labels={"zone": "gpus"})
    assert two.slots == 1
    two.close(cancel=True)
    with pytest.raises(ResourceError, match=r"2 placement groups.*Set slots: 1"):
        opened(2, gpus_per_rank=1, labels={"zone": "gpus"}, slots=2)
    nodes.kill("gpus")


def test_a_node_joins_and_dies_and_its_trial_is_measured_on_another(nodes, opened, tmp_path):
    runner = opened(labels={"zone": "in(b,c)"}, waits=True)
    assert runner.slots == 1
    nodes.start("third", address="127.0.0.3", processors=[FIRST], labels="zone=c")
    wait_for(runner, lambda: runner.slots == 2)
    for number in range(2):
        runner.submit(request(number))
    (lost,) = [number for number in range(2) if note(tmp_path, number)["processors"] == [FIRST]]
    rank = psutil.Process(note(tmp_path, lost)["pid"])
    (tmp_path / str(lost) / "rank0" / "note").unlink()
    nodes.kill("third")
    killed_s = time.monotonic()
    wait_for(runner, lambda: any("it is measured again" in line for line in runner.told))
    assert time.monotonic() - killed_s < 20
    assert not failures.is_alive(rank)
    wait_for(runner, lambda: runner.slots == 1)
    (tmp_path / "go").touch()
    outcomes = {finished.request.number: finished.outcome for finished in (finish(runner), finish(runner))}
    assert note(tmp_path, lost)["processors"] == [SECOND]
    assert outcomes[lost].nodes == {}  # this evaluator tells of none
    (remark,) = outcomes[lost].measurement.remarks
    assert remark.startswith("measured anew after its host was lost (rank 0 died")
    assert outcomes[1 - lost].measurement.remarks == ()


def test_slots_that_were_said_move_and_are_never_more(nodes, opened, tmp_path):
    nodes.start("third", address="127.0.0.3", processors=[FIRST], labels="zone=c")
    runner = opened(labels={"zone": "in(b,c)"}, slots=2)
    assert runner.slots == 2
    nodes.kill("third")
    wait_for(runner, lambda: runner.slots == 1)
    runner.submit(request(0))
    assert finish(runner).outcome.measurement
    nodes.start("fourth", address="127.0.0.4", cpus=2, labels="zone=c")
    wait_for(runner, lambda: runner.slots == 2)
    for _ in range(30):
        assert runner.collect(0.1) is None
    assert runner.slots == 2
    nodes.kill("fourth")


def test_without_a_node_trials_wait_for_one_and_then_the_run_ends(nodes, opened):
    nodes.start("third", address="127.0.0.3", labels="zone=c")
    runner = opened(labels={"zone": "c"}, node_wait_s=60)
    nodes.kill("third")
    runner.submit(request(0))
    wait_for(runner, lambda: not runner._slots)
    assert runner.slots == 1
    nodes.start("fourth", address="127.0.0.4", labels="zone=c")
    assert finish(runner).outcome.measurement
    nodes.kill("fourth")
    runner._node_wait_s = 2.0
    runner.submit(request(1))
    with pytest.raises(ResourceError, match=r"no node is left that holds a trial, and within 2 s none joined"):
        runner.collect(60.0)
    runner.close(cancel=True)
    assert runner.collect(0.0).outcome.failure.kind is FailureKind.CANCELLED
    assert runner.collect(0.0) is None


def test_a_head_that_is_gone_ends_the_run_in_bounded_time(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_slots, "HEAD_PATIENCE_S", 3.0)
    with RayNodes(tmp_path) as nodes:
        nodes.start("head", address="127.0.0.1")
        evaluator = ProcessEvaluator(ranks=1, source=NOTE + WAIT, directory=str(tmp_path))
        runner = ray_runner.RayRunner(evaluator, address=nodes.address)
        runner.open([], print)
        runner.submit(request(0))
        note(tmp_path, 0)
        nodes.kill("head")
        with pytest.raises(ResourceError, match=r"nothing answers at the head of the Ray cluster.*resume the study"):
            runner.collect(30.0)
        began_s = time.monotonic()
        runner.close(cancel=True)
        assert time.monotonic() - began_s < 30
        assert runner.collect(0.0).outcome.failure.kind is FailureKind.CANCELLED


def wait_for(runner, condition, timeout_s=60):
    """Wait for what the runner does while nothing finishes."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert runner.collect(0.1) is None
        assert time.monotonic() < deadline, runner.told


def test_code_is_sent_and_variables_are_set(opened, tmp_path):
    code = tmp_path / "project"
    (code / "kept").mkdir(parents=True)
    (code / "mine.py").write_text("WHERE = __file__\n")
    (code / "study.db").write_text("not sent")
    runner = opened(
        code=str(code), excluded=["*.db", "/kept"], environment={"GREETING": "hello"}, source=SENT, most_slots=1
    )
    runner.submit(request(0))
    assert finish(runner).outcome.measurement
    seen = json.loads((tmp_path / "0" / "rank0" / "seen").read_text())
    assert seen["greeting"] == "hello"
    assert seen["from"] == str(code)
    assert seen["module"] == f"{seen['to']}/mine.py" != str(code / "mine.py")
    assert seen["files"] == ["mine.py"]


SENT = """
import json, os, pathlib
import mine
seen = {"greeting": os.environ["GREETING"], "from": os.environ["AUTOTUNE_CODE_FROM"], "module": mine.WHERE,
        "to": os.environ["AUTOTUNE_CODE_TO"], "files": sorted(
            name for name in os.listdir(os.environ["AUTOTUNE_CODE_TO"]) if name != "__pycache__")}
pathlib.Path("seen").write_text(json.dumps(seen))
"""


def test_code_that_is_too_large_is_refused_with_what_is_large_in_it(opened, tmp_path, monkeypatch):
    monkeypatch.setattr("ray._private.runtime_env.packaging.GCS_STORAGE_MAX_SIZE", 1024**2)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tokens").write_bytes(os.urandom(3 * 1024**2))
    (tmp_path / "train.py").write_text("pass")
    words = (
        r"exceeds the maximum size.*ship_code sends .*the largest in it: data \(3.00 MiB\), train.py \(4 B\).*rayignore"
    )
    with pytest.raises(ResourceError, match=words):
        opened(code=str(tmp_path))
