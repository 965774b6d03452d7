"""A soak: a campaign under random faults, and a count of what came of it.

A real campaign of short warm trials (or a simulated one) runs while ranks, fork servers and the controller itself are
killed, ranks are stopped so that they hang, and the storage is locked. A killed controller is started again (`resume`).
In the end every trial must be accounted for exactly once, and no process may be left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import yaml

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.trials import TrialState

AUTOTUNE = (sys.executable, "-m", "autotune")
STUDY = "soak"
FOLDER_VARIABLE = "AUTOTUNE_SOAK_FOLDER"
"""Marks the processes of this campaign."""
LOCKED_S = 10.0
STUCK_S = 300.0
"""A campaign in which nothing ends for so long has hung: that is what the soak looks for."""


class Soak:
    """One campaign and the hand that hurts it."""

    def __init__(self, folder: Path, *, trials: int, simulated: bool, runner: str, seed: int) -> None:
        self._folder = folder
        self._trials = trials
        self._simulated = simulated
        self._random = random.Random(seed)
        self._controller: subprocess.Popen[bytes] | None = None
        self._log = (folder / "controller.log").open("w")
        self.done: Counter[str] = Counter()
        self.database = folder / "soak.db"
        (folder / "campaign.yaml").write_text(yaml.safe_dump(_campaign(trials, simulated=simulated, runner=runner)))

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    def run(self, *, every_s: float) -> None:
        """Run the campaign to its end, with a fault about every `every_s` seconds."""
        self._start("launch", str(self._folder / "campaign.yaml"), "--study", STUDY)
        moved_s, before = time.monotonic(), -1
        while True:
            time.sleep(self._random.expovariate(1 / every_s))
            if not self._is_running():
                if self._executed() >= self._trials:
                    return
                self._start("resume", STUDY)
                continue
            executed = self._executed()
            if executed != before:
                moved_s, before = time.monotonic(), executed
            if time.monotonic() - moved_s > STUCK_S:
                raise RuntimeError(f"stuck at {executed} trials; see {self._log.name}")
            if executed > 0:
                self._hurt()

    def close(self) -> None:
        """End what still runs."""
        if self._is_running() and self._controller is not None:
            self._controller.kill()
            self._controller.wait()
        self._log.close()

    def _start(self, *arguments: str) -> None:
        command = [*AUTOTUNE, *arguments, "--storage", self.url, "--quiet"]
        environment = {**os.environ, FOLDER_VARIABLE: str(self._folder)}
        self._controller = subprocess.Popen(
            command, cwd=self._folder, env=environment, stdout=self._log, stderr=self._log
        )
        self.done["controller started"] += 1

    def _is_running(self) -> bool:
        return self._controller is not None and self._controller.poll() is None

    def _executed(self) -> int:
        if not self.database.exists():
            return 0
        with closing(sqlite3.connect(self.database, timeout=60)) as connection:
            query = "SELECT count(*) FROM trials WHERE state != 'RUNNING'"
            try:
                return int(connection.execute(query).fetchone()[0])
            except sqlite3.OperationalError:
                return 0  # its tables are being made

    def _hurt(self) -> None:
        faults: list[tuple[str, float, Callable[[], bool]]] = [
            ("controller killed", 1.0, self._kill_controller),
            ("storage locked", 0.5, self._lock_storage),
        ]
        if not self._simulated:
            faults += [
                ("rank killed", 4.0, lambda: self._signal(signal.SIGKILL, servers=False)),
                ("fork server killed", 2.0, lambda: self._signal(signal.SIGKILL, servers=True)),
                ("rank stopped", 0.5, lambda: self._signal(signal.SIGSTOP, servers=False)),
            ]
        name, _, fault = self._random.choices(faults, weights=[weight for _, weight, _ in faults])[0]
        if fault():
            self.done[name] += 1

    def _kill_controller(self) -> bool:
        if self._controller is None:
            return False
        self._controller.kill()
        self._controller.wait()
        return True

    def _lock_storage(self) -> bool:
        with closing(sqlite3.connect(self.database, timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(LOCKED_S if self._random.random() < 0.3 else 1.0)
            connection.execute("ROLLBACK")
        return True

    def _signal(self, number: signal.Signals, *, servers: bool) -> bool:
        chosen = [process for process in _rank_processes(self._folder) if _is_server(process) is servers]
        if not chosen:
            return False
        try:
            self._random.choice(chosen).send_signal(number)
        except psutil.NoSuchProcess:
            return False
        return True


def main() -> None:
    """Run the soak and print what it counts; exit with 1 where something is lost, twice, or left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--runner", choices=["local", "ray"], default="local")
    parser.add_argument("--every", type=float, default=4.0, metavar="SECONDS", help="between faults, on average")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began_s = time.monotonic()
        soak = Soak(
            folder,
            trials=arguments.trials,
            simulated=arguments.simulated,
            runner=arguments.runner,
            seed=arguments.seed,
        )
        try:
            soak.run(every_s=arguments.every)
        finally:
            soak.close()
        time.sleep(5)
        wrong = count(soak, folder)
        print(f"{time.monotonic() - began_s:.0f} s; faults: {_listed(soak.done)}")
        print("nothing lost, nothing twice, nothing left" if not wrong else "\n".join(wrong))
    sys.exit(1 if wrong else 0)


def count(soak: Soak, folder: Path) -> list[str]:
    """Print what became of the trials; return what is wrong with it."""
    storage = storages.connect(soak.url)
    try:
        summary = campaigns.summary(storage.open(STUDY))
        trials = list(summary.trials)
    finally:
        storage.close()
    executed = summary.finished
    kinds = Counter("measured" if trial.failure is None else trial.failure.kind.value for trial in trials)
    print(f"{len(trials)} trials begun, {len(executed)} executed: {_listed(kinds)}")
    reasons = Counter(trial.failure.reason for trial in trials if trial.failure is not None)
    for reason, number in reasons.most_common(8):
        print(f"  {number} {reason}")
    hashes = Counter(trial.config_hash for trial in executed)
    left = _rank_processes(folder)
    checks = {
        f"{len(executed)} trials executed, not {summary.trial_budget}": len(executed) == summary.trial_budget,
        "the numbers of the trials have gaps": [trial.number for trial in trials] == list(range(len(trials))),
        "trials are still RUNNING": all(trial.state is not TrialState.RUNNING for trial in trials),
        f"configurations ran twice: {hashes.most_common(1)}": max(hashes.values()) == 1,
        f"processes are left: {left}": not left,
        "not one baseline": sum(trial.is_baseline for trial in executed) == 1,
    }
    return [words for words, is_right in checks.items() if not is_right]


def _rank_processes(folder: Path) -> list[psutil.Process]:
    """Return the rank processes and fork servers of the campaign in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if "autotune.evaluators.rank_worker" in words and process.environ().get(FOLDER_VARIABLE) == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def _is_server(process: psutil.Process) -> bool:
    """Say whether it is a fork server; its forks have its words and are its children."""
    try:
        parent = process.parent()
        return parent is None or "rank_worker.fork_server" not in " ".join(parent.cmdline())
    except psutil.Error:
        return False


def _campaign(trials: int, *, simulated: bool, runner: str) -> dict[str, object]:
    return {
        "name": STUDY,
        "ds_config": {
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": True}},
        },
        "workload": {
            "function": "byte-gpt",
            "arguments": {"layers": 1, "width": 32, "sequence": 32, "held_out_sequences": 16, "text_bytes": 100_000},
        },
        "hardware": {"ranks": 2},
        "budget": {"steps": 6},
        "searcher": "random",
        "trials": trials,
        "evaluator": "simulated" if simulated else "deepspeed",
        **({} if simulated else {"runner": runner, "deadlines": {"run_s": 20.0, "first_step_s": 60.0}}),
        "finals": {"candidates": 0},
    }


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.most_common())


if __name__ == "__main__":
    main()
