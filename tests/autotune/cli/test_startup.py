"""The command starts fast and loads nothing heavy before it must."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune import __version__
from autotune.cli.exit_codes import MEANINGS, ExitCode
from autotune.cli.threads import use_one_thread
from autotune.evaluators.protocol import RankCommand
from autotune.runners.rank_process import RankProcess

HEAVY = {"torch", "ray", "optuna", "deepspeed", "pydantic", "numpy", "sqlalchemy", "rich", "yaml", "stable_baselines3"}
HELP_S = 0.5
COMMANDS = ["init", "launch", "resume", "stop", "studies", "status", "trials", "show", "logs"]
COMMANDS += ["export", "validate", "report", "compare", "lint", "space", "doctor", "estimate", "plan", "pretrain"]
COMMANDS += ["calibrate"]
PROGRAM = """
import json, sys
sys.argv = ["autotune", *{arguments}]
from autotune.cli import main
try:
    main()
finally:
    sys.stderr.write(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_loads_nothing_heavy(arguments):
    program = PROGRAM.format(arguments=arguments)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert not HEAVY & set(json.loads(answer.stderr))
    assert "launch" in answer.stdout
    assert "\x1b" not in answer.stdout


def test_help_is_fast():
    command = [sys.executable, "-c", "from autotune.cli import main; main()", "--help"]

    def once() -> float:  # processor time: the machine may be busy with something else
        before = os.times()
        subprocess.run(command, capture_output=True, check=True, timeout=30)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(once() for _ in range(4)) < HELP_S


def test_script_is_installed():
    script = Path(sys.executable).with_name("autotune")
    answer = subprocess.run([script, "--version"], capture_output=True, text=True, check=True, timeout=30)
    assert answer.stdout == f"autotune {__version__}\n"


def test_every_exit_code_is_in_the_help(cli):
    answer = cli("--help")
    assert answer.code == ExitCode.OK
    text = " ".join(answer.out.split())
    assert set(MEANINGS) == set(ExitCode)
    for code, meaning in MEANINGS.items():
        assert f"{code.value} {meaning}" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli, command):
    answer = cli(command, "--help")
    assert answer.code == ExitCode.OK
    assert f"Usage: autotune {command}" in answer.out


class TestThreads:
    """The controller has one thread; ranks get what they would have got without us."""

    @pytest.fixture
    def no_wish(self, monkeypatch):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        yield
        os.unsetenv("OMP_NUM_THREADS")

    def test_libraries_see_one_thread(self, no_wish):
        use_one_thread()
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        assert libc.getenv(b"OMP_NUM_THREADS") == b"1"
        assert "OMP_NUM_THREADS" not in os.environ

    def test_ranks_see_their_own_number(self, no_wish, tmp_path):
        use_one_thread()
        assert _rank_threads(tmp_path, RankProcess(threads=7)) == "7"

    def test_a_users_wish_counts(self, no_wish, tmp_path, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        use_one_thread()
        assert os.environ["OMP_NUM_THREADS"] == "3"
        assert _rank_threads(tmp_path, RankProcess(threads=7)) == "3"


def _rank_threads(directory: Path, host: RankProcess) -> str:
    program = "import os; print(os.environ['OMP_NUM_THREADS'])"
    host.start(RankCommand(rank=0, argv=("-c", program), environment={"WORLD_SIZE": "1"}, directory=str(directory)))
    deadline_s = time.monotonic() + 20
    while host.poll().running and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return "".join(host.stop().log_tail)
