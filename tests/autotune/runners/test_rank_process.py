import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autotune.evaluators.protocol import RankCommand
from autotune.runners import bounded_log
from autotune.runners.rank_process import RankProcess
from autotune.trials import Stage


def command(directory, source, **more):
    return RankCommand(
        rank=0,
        argv=("-c", source),
        environment={"WORLD_SIZE": "1"} | more.pop("environment", {}),
        directory=str(directory / "rank0"),
        **more,
    )


@pytest.fixture
def host():
    host = RankProcess()
    yield host
    host.stop()


def until(condition, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_life_from_start_to_end(host, tmp_path):
    source = """
import os, pathlib
print(pathlib.Path("request.json").read_text(), os.environ["MINE"], os.environ["OMP_NUM_THREADS"])
pathlib.Path("stage").write_text("initialize")
pathlib.Path("result.json").write_text("{}")
raise SystemExit(3)
"""
    host.start(command(tmp_path, source, files={"request.json": "asked"}, environment={"MINE": "yes"}))
    until(lambda: not host.poll().running)
    report = host.stop()
    assert report == host.stop()
    assert (report.exit_code, report.stage, report.result) == (3, Stage.INITIALIZE, "{}")
    assert report.log_tail == (f"asked yes {os.environ['OMP_NUM_THREADS']}",)
    assert Path(report.log_path).read_text() == report.log_tail[0] + "\n"


def test_a_host_serves_trials_in_turn_and_forgets_the_one_before(host, tmp_path):
    host.start(command(tmp_path, "open('result.json', 'w').write('old'); open('stage', 'w').write('run')"))
    until(lambda: not host.poll().running)
    host.start(command(tmp_path, "import time; time.sleep(60)"))
    report = host.poll()
    assert report.running
    assert (report.result, report.stage, report.log_tail) == (None, None, ())


def test_before_its_first_trial_nothing_runs(host):
    assert not host.poll().running
    assert not host.stop().running


def test_threads_are_the_processors_over_the_ranks(host, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    source = "import os; print(os.environ['OMP_NUM_THREADS'])"
    host.start(command(tmp_path, source, environment={"WORLD_SIZE": "1"}))
    until(lambda: not host.poll().running)
    assert host.stop().log_tail == (str(len(os.sched_getaffinity(0))),)
    few = RankProcess(threads=7, gpu="3")
    few.start(command(tmp_path, source + "; print(os.environ['CUDA_VISIBLE_DEVICES'])"))
    until(lambda: not few.poll().running)
    assert few.stop().log_tail == ("7", "3")


def test_a_reserved_port_is_free(host):
    address, port = host.reserve_address()
    assert address == "127.0.0.1"
    assert 1024 <= port < 65536


def test_stop_ends_a_tree_that_ignores_sigterm_and_leaves_the_group(host, tmp_path):
    source = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    open("daemon", "w").write(str(os.getpid()))
    time.sleep(600)
open("leader", "w").write(str(os.getpid()))
time.sleep(600)
"""
    host.start(command(tmp_path, source))
    files = [tmp_path / "rank0" / name for name in ("daemon", "leader")]
    until(lambda: all(file.exists() and file.read_text() for file in files))
    pids = [int(file.read_text()) for file in files]
    assert all(alive(pid) for pid in pids)
    started = time.monotonic()
    report = host.stop()
    assert report.exit_code == -signal.SIGKILL
    assert not any(alive(pid) for pid in pids)
    assert time.monotonic() - started < 10


def test_what_a_process_leaves_behind_is_ended_as_well(host, tmp_path):
    source = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    print(os.getpid(), flush=True)\n    time.sleep(600)"
    )
    host.start(command(tmp_path, source))
    until(lambda: not host.poll().running and host.poll().log_tail)
    orphan = int(host.poll().log_tail[0])
    assert alive(orphan)
    assert host.stop().exit_code == 0
    assert not alive(orphan)


def test_a_flood_of_output_is_bounded(host, tmp_path):
    source = "import sys\nfor i in range(1000): sys.stdout.write('x' * 99_999 + '\\n')\nprint('the end')"
    host.start(command(tmp_path, source))
    until(lambda: not host.poll().running, within_s=60)
    report = host.stop()
    assert report.log_tail[-1] == "the end"
    assert max(map(len, report.log_tail)) <= bounded_log.LINE_CHARACTERS
    text = Path(report.log_path).read_text()
    assert len(text) < bounded_log.FILE_BYTES + 3 * bounded_log.TAIL_BYTES
    assert "bytes left out ..." in text
    assert text.endswith("the end\n")


def test_where_the_log_has_no_room_its_end_is_kept_and_the_pipe_is_read_on(host, tmp_path, caplog):
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "log.txt").symlink_to("/dev/full")
    host.start(command(tmp_path, "for _ in range(100): print('x' * 9_999)\nprint('the end')"))
    until(lambda: not host.poll().running)
    assert host.stop().log_tail[-1] == "the end"
    assert "No space left on device" in caplog.text


def test_a_log_that_can_not_be_opened_keeps_no_process_alive(host, tmp_path, caplog):
    (tmp_path / "rank0" / "log.txt").mkdir(parents=True)
    host.start(command(tmp_path, "print('said')\nimport time; time.sleep(600)"))
    until(lambda: caplog.text != "")
    report = host.stop()
    assert not report.running
    assert "can't be written: Is a directory" in caplog.text


def test_a_start_that_fails_tells_nothing_of_the_trial_before(host, tmp_path):
    host.start(command(tmp_path, "print('the one before')"))
    until(lambda: not host.poll().running)
    (tmp_path / "rank0" / "assignment.json").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        host.start(command(tmp_path, "print('this one')", files={"assignment.json": "{}"}))
    report = host.stop()
    assert (report.running, report.log_tail, report.log_path) == (False, (), None)


def test_a_log_just_over_its_size_loses_nothing(host, tmp_path):
    lines = bounded_log.FILE_BYTES // 100 + 5
    host.start(command(tmp_path, f"for i in range({lines}): print(f'{{i:99}}')"))
    until(lambda: not host.poll().running)
    text = Path(host.stop().log_path).read_text()
    assert "left out" not in text
    assert [int(line) for line in text.splitlines()] == list(range(lines))


def test_a_memory_limit_kills(host, tmp_path):
    source = "import time\nhoard = bytearray(b'x') * 300_000_000\ntime.sleep(600)"
    host.start(command(tmp_path, source, memory_limit_bytes=200_000_000))
    until(lambda: not host.poll().running)
    report = host.stop()
    assert report.exit_code == -signal.SIGKILL
    assert report.memory_exceeded_bytes > 200_000_000


def test_a_child_reads_the_end_of_its_input_when_the_host_is_killed(tmp_path):
    source = "import sys; open('up', 'w').close(); sys.stdin.read(); open('down', 'w').close()"
    code = f"""
import time
from autotune.evaluators.protocol import RankCommand
from autotune.runners.rank_process import RankProcess
host = RankProcess()
host.start(RankCommand(rank=0, argv=("-c", {source!r}), environment={{}}, directory={str(tmp_path)!r}))
time.sleep(600)
"""
    controller = subprocess.Popen([sys.executable, "-c", code])
    until((tmp_path / "up").exists)
    assert not (tmp_path / "down").exists()
    controller.kill()
    controller.wait()
    until((tmp_path / "down").exists, within_s=10)


def test_a_rank_host_loads_neither_torch_nor_ray():
    code = "import autotune.runners.rank_process, sys; print({'torch', 'ray', 'deepspeed'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
