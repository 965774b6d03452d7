"""Ray nodes for tests: each a `ray start` of its own on this machine, on an address and processors of its own."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from ray._raylet import Config

RAY = str(Path(sys.executable).with_name("ray"))
PROCESSORS = sorted(os.sched_getaffinity(0))


class RayNodes:
    """A head and further nodes; a context manager that leaves no process."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.address = ""
        self.session = ""
        self._nodes = {}

    def __enter__(self):
        # All share the token of this user: where there is one, `ray start` asks for it.
        self._patch = pytest.MonkeyPatch()
        self._patch.setenv("RAY_AUTH_MODE", "token")
        self._patch.delenv("RAY_ADDRESS", raising=False)
        Config.initialize("")
        subprocess.run([RAY, "get-auth-token", "--generate"], check=True, stdout=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        for name in reversed(list(self._nodes)):
            self.kill(name)
        shutil.rmtree(self.session, ignore_errors=True)
        self._patch.undo()
        Config.initialize("")

    def start(self, name, *, address, cpus=1, gpus=0, processors=None, labels="", prefix=()):
        """Start a node, the first as the head; return when Ray knows it."""
        command = [*prefix, "taskset", "--cpu-list", ",".join(map(str, processors or PROCESSORS)), RAY, "start"]
        command += ["--block", "--disable-usage-stats", "--node-ip-address", address, "--num-cpus", str(cpus)]
        command += ["--num-gpus", str(gpus), "--object-store-memory", str(80 * 1024 * 1024)]
        command += ["--labels", labels] if labels else []
        if not self.address:
            port = free_port()
            command += ["--head", "--port", str(port), "--include-dashboard", "false"]
            # Under /tmp: the path of a socket is short.
            self.session = f"/tmp/at-ray-{os.getpid()}-{port}"
            command += ["--temp-dir", self.session]
        else:
            command += ["--address", self.address]
        log = self.folder / f"{name}.log"
        with log.open("w") as output:
            process = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output)
        self._nodes[name] = process
        if not self.address:
            self.address = f"{address}:{port}"
        wait_until(lambda: "Ray runtime started" in log.read_text(), 90, process)

    def kill(self, name):
        """End a node like a machine that loses its power."""
        process = self._nodes.pop(name)
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for each in [*family, process]:
            try:
                each.kill()
            except psutil.Error:
                continue
        process.wait(10)
        psutil.wait_procs(family, timeout=10)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(condition, timeout_s, process=None):
    """Wait for a condition; fail when the process ends before."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process is None or process.poll() is None, f"ended with {process.returncode}"
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.05)
