import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from autotune.evaluators.rank_files import RESULT_FILE, STAGE_FILE
from autotune.evaluators.script_files import PID_FILE, SEEN_FILE
from autotune.evaluators.script_worker import rank_watch
from autotune.evaluators.script_worker.rank_watch import RankWatch
from autotune.trials import Stage

KERNEL = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])


class Launcher:
    """Answers with an exit code, None while it runs."""

    exit_code = None

    def __call__(self):
        return self.exit_code


@pytest.fixture
def launcher():
    return Launcher()


@pytest.fixture
def watch(tmp_path, launcher):
    (tmp_path / "rank1").mkdir()
    return RankWatch(1, directory=tmp_path, launcher=launcher, memory_limit_bytes=None)


def start(watch, source="import time; time.sleep(60)", **options):
    process = subprocess.Popen([sys.executable, "-c", source], **options)
    (watch.folder / PID_FILE).write_text(str(process.pid))
    return process


def ended(watch, within_s=20.0):
    deadline_s = time.monotonic() + within_s
    while watch.poll().running and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return watch.poll()


def test_before_the_rank_shows_it_lives_as_long_as_the_launcher(watch, launcher):
    assert watch.poll().running
    assert not watch.has_started
    launcher.exit_code = 2
    report = watch.poll()
    assert (report.running, report.exit_code) == (False, 2)


def test_what_the_probe_wrote_is_told(watch):
    (watch.folder / STAGE_FILE).write_text("run\n")
    (watch.folder / RESULT_FILE).write_text("{}")
    report = watch.poll()
    assert (report.stage, report.result) == (Stage.RUN, "{}")


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGKILL, -9), (signal.SIGSEGV, -11)])
def test_the_exit_code_is_read_from_the_zombie(watch, number, exit_code):
    process = start(watch)
    assert watch.poll().running
    assert watch.pid == process.pid
    assert (watch.folder / SEEN_FILE).read_text() == str(process.pid)
    process.send_signal(number)
    assert ended(watch).exit_code == exit_code  # nobody has waited for it yet
    assert process.wait() == exit_code


@pytest.mark.parametrize(
    ("source", "exit_code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)]
)
def test_an_exit_code_that_its_launcher_took_is_read_from_the_kernel(watch, monkeypatch, source, exit_code):
    if KERNEL < (6, 15):
        pytest.skip("needs Linux 6.15 or later: older ones keep no exit code that was asked for")
    asked = threading.Event()
    monkeypatch.setattr(rank_watch, "_exit_code_of_zombie", lambda pid: asked.wait(20) and None)
    process = start(watch, f"input(); {source}", stdin=subprocess.PIPE)
    assert watch.poll().running
    process.communicate(b"now\n")  # waits for it
    asked.set()
    assert ended(watch).exit_code == exit_code


def test_an_exit_code_that_its_launcher_took_is_waited_for_and_then_unknown(watch, launcher, monkeypatch):
    monkeypatch.setattr(rank_watch, "LOST_GRACE_S", 0.5)
    process = start(watch, "raise SystemExit(3)")
    process.wait()
    assert watch.poll().running  # perhaps the launcher still tells
    report = ended(watch)
    assert (report.running, report.exit_code) == (False, None)
    launcher.exit_code = 1
    assert watch.poll().exit_code is None  # the launcher's is not the rank's


def test_a_process_that_takes_a_dead_ones_place_is_followed(watch):
    first = start(watch)
    watch.poll()
    first.kill()
    assert ended(watch).exit_code == -9
    first.wait()
    second = start(watch)
    assert watch.poll().running
    assert watch.pid == second.pid
    second.kill()
    second.wait()


def test_above_its_memory_limit_a_rank_is_killed(tmp_path, launcher):
    (tmp_path / "rank0").mkdir()
    watch = RankWatch(0, directory=tmp_path, launcher=launcher, memory_limit_bytes=1_000_000)
    process = start(watch)
    report = ended(watch)
    assert report.memory_exceeded_bytes > 1_000_000
    assert process.wait() == -9


def test_the_name_of_a_signal():
    assert rank_watch.name_of(11) == "SIGSEGV"
    assert rank_watch.name_of(200) == "signal 200"
