"""Fixtures: a folder with a simulated campaign, and the command line in it, in this process or another."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.cli.app import app
from autotune.cli.border import run
from autotune.trials import Trial

CAMPAIGN = """\
name: sim
evaluator: simulated
searcher: random
trials: 6
hardware: {ranks: 2, accelerator: cpu}
simulated: {workload_seed: 6}
ds_config:
  train_micro_batch_size_per_gpu: 4
  gradient_accumulation_steps: 2
  optimizer: {type: AdamW, params: {lr: 3.0e-4}}
  zero_optimization: {stage: 1}
"""
SLOW = Path(__file__).with_name("slow_trials.py")
URL = "sqlite:///autotune.db"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Cli = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "c.yaml").write_text(CAMPAIGN)
    monkeypatch.chdir(tmp_path)
    for name in ("AUTOTUNE_STORAGE", "COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """The command line in this process: `cli("studies", "--format", "json")`."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        code = run(app, arguments)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    yield call
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("autotune").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with one finished study, to be copied."""
    folder = tmp_path_factory.mktemp("launched")
    (folder / "c.yaml").write_text(CAMPAIGN)
    command = [
        sys.executable,
        "-c",
        "from autotune.cli import main; main()",
        "launch",
        "c.yaml",
        "--trials",
        "12",
        "-q",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return folder / "autotune.db"


@pytest.fixture
def finished(folder: Path, launched: Path) -> Path:
    """The folder with the finished study `sim` of 12 trials."""
    (folder / "autotune.db").write_bytes(launched.read_bytes())
    return folder


class Launch:
    """`autotune` in a process of its own, with simulated trials that take about 0.2 s each."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._output = (folder / "output.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(SLOW), *arguments],
            cwd=folder,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def wait_for(self, text: str, timeout_s: float = 30.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while text not in self.output:
            assert time.monotonic() < deadline_s, f"no {text!r} in {self.output}"
            assert self.process.poll() is None, self.output
            time.sleep(0.02)

    def wait_until_running(self, number: int, timeout_s: float = 30.0) -> None:
        """Wait until the trial is under way; a signal between trials would end the study before it starts."""
        deadline_s = time.monotonic() + timeout_s
        running = self.folder / "running.txt"
        while not (running.exists() and running.read_text() == str(number)):
            assert time.monotonic() < deadline_s, self.output
            assert self.process.poll() is None, self.output
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = 30.0) -> int:
        return self.process.wait(timeout=timeout_s)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()


@pytest.fixture
def launch_slowly(folder: Path) -> Iterator[Callable[..., Launch]]:
    started: list[Launch] = []

    def start(*arguments: str) -> Launch:
        started.append(Launch(folder, *arguments))
        return started[-1]

    yield start
    for launch in started:
        launch.close()


def trials_of(name: str, url: str = URL) -> list[Trial]:
    storage = storages.connect(url)
    try:
        return list(campaigns.summary(storage.open(name)).trials)
    finally:
        storage.close()
