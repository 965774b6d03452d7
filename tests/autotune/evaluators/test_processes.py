import os
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from autotune.evaluators import processes

ASLEEP = "import time; time.sleep(60)"


@pytest.fixture
def token():
    token = uuid.uuid4().hex
    yield token
    processes.end(token, there_before=processes.shared_memory())


def start(token, source=ASLEEP, **more):
    environment = os.environ | {processes.TOKEN_VARIABLE: token}
    return subprocess.Popen([sys.executable, "-c", source], env=environment, text=True, **more)


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_carries_the_mark_ends_wherever_it_went(token):
    process = start(token, start_new_session=True)
    processes.end(token, there_before=processes.shared_memory())
    assert not alive(process.pid)
    process.wait()


def test_a_child_without_the_mark_is_family(token):
    source = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {ASLEEP!r}], env={{}}, start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""
    with start(token, source, stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        assert {each.pid for each in processes.family(token)} == {process.pid, child}
        processes.end(token, there_before=processes.shared_memory())
        assert not alive(child)
        process.wait()


def test_an_orphan_without_the_mark_is_found_by_who_adopts(token):
    middle = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {ASLEEP!r}], env={{}}, start_new_session=True).pid, flush=True)
"""
    guard = f"""
import os, subprocess, sys, time
from autotune.evaluators import processes
processes.adopt_orphans()
subprocess.run([sys.executable, "-c", {middle!r}])
processes.end(os.environ[processes.TOKEN_VARIABLE], there_before=processes.shared_memory())
"""
    with start(token, guard, stdout=subprocess.PIPE) as process:
        orphan = int(process.stdout.readline())
        process.wait()
        assert not alive(orphan)


def test_other_processes_are_left_alone(token):
    other = start(uuid.uuid4().hex)
    ours = start(token)
    processes.end(token, there_before=processes.shared_memory())
    assert not alive(ours.pid)
    ours.wait()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_segment_with_a_number_of_theirs_goes_and_another_stays(token):
    before = processes.shared_memory()
    number = 4_000_000 + os.getpid()  # above the highest process number of Linux
    theirs, other = (processes.SHARED_MEMORY / f"autotune-test-{name}" for name in (number, f"{number}5"))
    for path in (theirs, other):
        path.write_bytes(b"x")
    try:
        processes.end(token, there_before=before, numbers={number})
        assert not theirs.exists()
        assert other.exists()
    finally:
        for path in (theirs, other):
            path.unlink(missing_ok=True)


def test_segments_that_were_there_before_stay(token):
    number = 4_000_000 + os.getpid()
    path = processes.SHARED_MEMORY / f"autotune-test-{number}"
    path.write_bytes(b"x")
    try:
        processes.end(token, there_before=processes.shared_memory(), numbers={number})
        assert path.exists()
    finally:
        path.unlink()


def test_where_nothing_is_left_it_takes_a_moment(token):
    began_s = time.monotonic()
    processes.end(token, there_before=processes.shared_memory())
    assert time.monotonic() - began_s < 1.0


def test_data_that_others_keep_in_shared_memory_stays(token):
    number = 4_000_000 + os.getpid()
    names = (f"run-{number}-tokens.bin", f"psm_{number}ab91cd")
    paths = [processes.SHARED_MEMORY / name for name in names]
    for path in paths:
        path.write_bytes(b"x")
    try:
        processes.end(token, there_before=frozenset(), numbers={number})
        assert all(path.exists() for path in paths)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
