"""What becomes of Ray's processes and of the ranks when the controller is interrupted, killed or fails."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import failures

pytestmark = pytest.mark.ray

CONTROLLER = str(Path(__file__).with_name("ray_controller.py"))


def wait_until(condition, timeout_s):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.05)


def rank_processes(directory, ranks=2):
    notes = [directory / "0" / f"rank{rank}" / "pid" for rank in range(ranks)]
    wait_until(lambda: all(note.exists() and note.read_text() for note in notes), 60)
    return [psutil.Process(int(note.read_text())) for note in notes]


def alive(processes):
    return [process for process in processes if failures.is_alive(process)]


def read_word(descriptor, word, timeout_s=60):
    text = b""
    deadline = time.monotonic() + timeout_s
    while word not in text:
        assert time.monotonic() < deadline, text
        text += os.read(descriptor, 1024)
    return text


def test_ctrl_c_reaches_the_controller_alone(tmp_path):
    controller, terminal = pty.fork()
    if controller == 0:
        os.execv(sys.executable, [sys.executable, CONTROLLER, str(tmp_path)])
    try:
        read_word(terminal, b"submitted")
        ranks = rank_processes(tmp_path)
        rays = [p for p in psutil.Process(controller).children(recursive=True) if p not in ranks]
        assert any("raylet" in p.name() for p in rays)
        os.write(terminal, b"\x03")
        read_word(terminal, b"interrupted")
        time.sleep(1.0)
        assert alive(ranks) == ranks
        assert alive(rays) == rays
        os.write(terminal, b"go on\n")
        told = read_word(terminal, b"CANCELLED")
        assert b"under-way" in told
        assert os.waitpid(controller, 0)[1] == 0
        assert alive([*ranks, *rays]) == []
    finally:
        os.close(terminal)
        for process in alive([psutil.Process(controller)] if psutil.pid_exists(controller) else []):
            process.kill()


def test_nothing_outlives_a_killed_controller(tmp_path):
    with subprocess.Popen(
        [sys.executable, CONTROLLER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as controller:
        try:
            ranks = rank_processes(tmp_path)
            family = psutil.Process(controller.pid).children(recursive=True)
            assert all(rank in family for rank in ranks)
        finally:
            controller.kill()
        assert controller.wait(10) == -signal.SIGKILL
        wait_until(lambda: not alive(family), 10)
