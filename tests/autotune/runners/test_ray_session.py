"""Starting, joining and describing Ray, each test from a process without it."""

import logging
import os
import signal
import socket
import subprocess
import sys
from subprocess import DEVNULL, PIPE

import psutil
import pytest

from autotune.errors import ResourceError
from autotune.testing.runners import ProcessEvaluator
from tests import failures

ray_runner = pytest.importorskip("autotune.runners.ray_runner")
ray_session = pytest.importorskip("autotune.runners.ray_session")
pytestmark = pytest.mark.ray


def test_describing_this_machine_changes_nothing_and_leaves_nothing(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    environment = dict(os.environ)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    root_handlers, level = list(logging.getLogger().handlers), logging.getLogger("ray").level
    cluster = ray_runner.describe_cluster()
    assert len(cluster.nodes) == 1
    assert cluster.connect_s > 0
    assert psutil.Process().children(recursive=True) == []
    assert dict(os.environ) == environment
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert (list(logging.getLogger().handlers), logging.getLogger("ray").level) == (root_handlers, level)


HEAD = """
import sys
from autotune.runners.ray_runner import RaySession
session = RaySession()
session.open()
sys.stdout.write(session.cluster().address + "\\n")
sys.stdout.flush()
sys.stdin.readline()
session.close()
"""
VISITOR = """
import sys
from autotune.runners.ray_runner import RayRunner, describe_cluster
from autotune.testing.runners import ProcessEvaluator, request
address, directory = sys.argv[1:]
runner = RayRunner(ProcessEvaluator(ranks=2, source="", directory=directory), address=address, cpus_per_rank=0.5)
told = []
runner.open([], told.append)
runner.submit(request(0))
state = runner.collect(30.0).outcome.state
runner.close(cancel=True)
nodes = describe_cluster(address).nodes
sys.stdout.write(f"{state} {len(nodes)} {any(nodes[0].address in line for line in told)} {told[-1]}")
"""


def test_a_running_cluster_is_joined_and_left_running(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HEAD], stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True) as head:
        address = head.stdout.readline().strip()
        visitor = [sys.executable, "-c", VISITOR, address, str(tmp_path)]
        told = subprocess.run(
            visitor, env={**os.environ, "RAY_AUTH_MODE": "token"}, capture_output=True, text=True, timeout=90
        )
        assert told.stdout.startswith("COMPLETE 1 True "), told
        assert head.poll() is None
        family = psutil.Process(head.pid).children(recursive=True)
        head.communicate("end\n", timeout=30)
        assert head.returncode == 0
        assert [process for process in family if failures.is_alive(process)] == []


def test_the_advice_for_a_cluster_that_wants_a_token():
    told_deep_down = ConnectionError("can't connect")
    told_deep_down.__cause__ = RuntimeError("... ray.exceptions.AuthenticationError: InvalidAuthToken")
    assert "RAY_AUTH_MODE=token" in ray_session._token_advice(told_deep_down)
    assert ray_session._token_advice(ConnectionError("can't connect")) == ""


def test_an_address_without_a_listener_is_refused_at_once():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ResourceError, match=rf"nothing answers at 127\.0\.0\.1:{port}"):
            ray_runner.describe_cluster(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port", ":6379"])
def test_an_address_of_another_kind_is_refused(address):
    with pytest.raises(ResourceError, match="give 'host:port' as `ray start` prints it"):
        ray_runner.describe_cluster(address)


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ResourceError, match="strategy: got 'TIGHT'; it must be one of PACK, SPREAD"):
        ray_runner.RayRunner(ProcessEvaluator(ranks=1, source="", directory=""), strategy="TIGHT")
