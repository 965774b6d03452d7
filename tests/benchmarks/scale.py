"""What the controller costs as a study grows, and how long readers take: `--trials` over `--slots` simulated slots.

A real study, searcher and storage; only the trials are simulated, by a runner whose trials end by a clock of its own.
Times are processor seconds of this process, so that other processes on the machine disturb them little.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.objective import Reference
from autotune.runners.protocol import Finished
from autotune.searchers.optuna import OptunaSearcher
from autotune.study import Silence, Start, Study
from autotune.trials import Budget, Trial, TrialRequest

BUDGET = Budget(seconds=10)
CAMPAIGN = {
    "name": "scale",
    "evaluator": "simulated",
    "searcher": "random",
    "hardware": {"ranks": 2, "accelerator": "cpu"},
    "ds_config": {"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
}
PARTS = ("ask", "start", "finish", "tell", "state")
WINDOWS_PER_DECADE = 3
TPE_SIZES, TPE_ASKS = (100, 1_000, 10_000), 5
READERS_AT = 10_000
COMMANDS = (
    ("studies",),
    ("status", "scale"),
    ("trials", "scale"),
    ("show", "scale", "5"),
    ("report", "scale", "-o", "report.html"),
    ("report", "scale", "-o", "report.md"),
)


class ClockRunner:
    """Runs simulated trials side by side; each ends when the simulated clock says so."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.now_s = 0.0
        self._evaluator = SimulatedEvaluator()
        self._ends: list[tuple[float, int, Finished]] = []

    def open(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Nothing to prepare."""

    def submit(self, request: TrialRequest) -> None:
        outcome = measured(self._evaluator, request)
        took_s = outcome.measurement.training_time_s if outcome.measurement else 1.0
        heapq.heappush(self._ends, (self.now_s + took_s, request.number, Finished(request, outcome)))

    def collect(self, timeout_s: float) -> Finished | None:
        if not self._ends:
            return None
        self.now_s, _, finished = heapq.heappop(self._ends)
        return finished

    def close(self, *, cancel: bool) -> None:
        """Nothing to release."""


class Clocks:
    """Processor seconds spent in parts of the work, since the last look."""

    def __init__(self) -> None:
        self._spent_s = dict.fromkeys(PARTS, 0.0)
        self._since_s = time.process_time()

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            begun_s = time.process_time()
            try:
                return call(*arguments, **named)
            finally:
                self._spent_s[part] += time.process_time() - begun_s

        return timed

    def take(self) -> dict[str, float]:
        now_s = time.process_time()
        taken = self._spent_s | {"whole": now_s - self._since_s}
        self._spent_s, self._since_s = dict.fromkeys(PARTS, 0.0), now_s
        return taken


class Windows(Silence):
    """Prints the costs per trial of each window of trials, and keeps them."""

    def __init__(self, trials: int, clocks: Clocks, file: Path | None) -> None:
        last = max(1, round(math.log10(trials) * WINDOWS_PER_DECADE))
        bounds = {round(10 ** (step / WINDOWS_PER_DECADE)) for step in range(2 * WINDOWS_PER_DECADE, last + 1)}
        self._bounds = sorted({*bounds, trials})
        self._clocks, self._file = clocks, file
        self._done = self._before = 0
        self.rows: list[dict[str, float]] = []

    def trial_finished(self, trial: Trial) -> None:
        self._done += 1
        if self._done != self._bounds[0]:
            return
        self._bounds.pop(0)
        count = self._done - self._before
        row = {part: spent_s / count * 1e3 for part, spent_s in self._clocks.take().items()}
        row |= {"trials": self._done, "resident_mib": psutil.Process().memory_info().rss / 2**20}
        row["storage_mib"] = self._file.stat().st_size / 2**20 if self._file else math.nan
        self._before = self._done
        self.rows.append(row)
        parts = "".join(f"{row[part]:8.3f}" for part in (*PARTS, "whole"))
        print(f"{self._done:9,}{parts}{row['resident_mib']:10.0f}{row['storage_mib']:10.1f}", flush=True)


def measured(evaluator: SimulatedEvaluator, request: TrialRequest) -> Any:
    return evaluator.evaluate(request, hosts=(), progress=lambda _: None, cancelled=lambda: False)


def study_of(stored: storages.StoredStudy, *, slots: int, trials: int, listener: Silence) -> Study:
    """Return the study of a campaign, with the runner of this benchmark."""
    campaign = campaigns.campaign_of(stored)
    hardware = campaigns.recorded_hardware(stored)
    space = campaigns.space_of(campaign, hardware)
    config, _ = campaigns.start_config(campaign, hardware)
    return Study(
        stored=stored,
        space=space,
        start=Start.of(config, space),
        objective=campaigns.objective_of(campaign),
        runner=ClockRunner(slots),
        budget=BUDGET,
        trial_budget=trials,
        world_size=hardware.ranks,
        listener=listener,
    )


def grow(url: str, *, trials: int, slots: int) -> None:
    """Run a study of so many trials, and print what each part of the work cost as it grew."""
    storage = storages.connect(url)
    stored = campaigns.create(campaigns.parse({**CAMPAIGN, "trials": trials}, where="scale"), storage, name="scale")
    clocks = Clocks()
    windows = Windows(trials, clocks, storages.file_of(url))
    study = study_of(stored, slots=slots, trials=trials, listener=windows)
    searcher = OptunaSearcher(study.space, sampler="random", seed=0)
    for part, owner, name in (
        ("ask", searcher, "ask"),
        ("tell", searcher, "tell"),
        ("start", stored, "start_trial"),
        ("finish", stored, "finish_trial"),
        ("state", stored, "set_attribute"),
    ):
        setattr(owner, name, clocks.timed(part, getattr(owner, name)))
    what = f"random search in {study.space.count:,} configurations"  # known ones are proposed again, the more the more
    print(f"\n{trials:,} trials over {slots:,} slots, {what}, {storages.shown(url)}")
    print(f"{'':9}{'processor ms per trial, in the window that ends at this trial':^48}{'MiB':>10}{'MiB':>10}")
    print(f"{'trials':>9}{''.join(f'{part:>8}' for part in (*PARTS, 'whole'))}{'resident':>10}{'storage':>10}")
    begun_s = time.perf_counter()
    with study:
        study.run(searcher)
    print(f"{time.perf_counter() - begun_s:.0f} s in all")
    grown = [row for row in windows.rows if row["trials"] >= min(1_000, trials)]
    if len(grown) > 1:
        print("growth of the cost per trial, exponent of the number of trials (0: it does not grow, 1: in proportion)")
        print("  " + ", ".join(f"{part} {exponent(grown, part):+.2f}" for part in (*PARTS, "whole")))
        first, last = grown[0], grown[-1]
        for what in ("resident_mib", "storage_mib"):
            per_trial = (last[what] - first[what]) / (last["trials"] - first["trials"]) * 1024
            print(f"  {what.removesuffix('_mib')}: {per_trial:.1f} KiB per trial")
    begun_s = time.process_time()
    again = storage.open("scale").trials()
    print(f"reading all {len(again):,} trials, as a resume does: {time.process_time() - begun_s:.2f} processor s")
    storage.close()


def exponent(rows: Sequence[Mapping[str, float]], part: str) -> float:
    """Return the slope of log(cost) over log(trials)."""
    sizes, costs = [row["trials"] for row in rows], [row[part] for row in rows]
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def tpe() -> None:
    """Print how long TPE takes for a proposal."""
    print(f"\nTPE, processor ms per proposal (mean of {TPE_ASKS})")
    campaign = campaigns.parse({**CAMPAIGN, "trials": 1}, where="scale")
    hardware = campaigns.hardware_of(campaign)
    space = campaigns.space_of(campaign, hardware)
    config, _ = campaigns.start_config(campaign, hardware)
    told = simulated(space, config, campaign, world_size=hardware.ranks)
    searcher, known = OptunaSearcher(space, sampler="tpe", seed=0), 0
    for size in TPE_SIZES:
        for trial in itertools.islice(told, size - known):
            searcher.tell(trial)
        known = size
        begun_s = time.process_time()
        for _ in range(TPE_ASKS):
            searcher.ask()
        print(f"{size:9,}{(time.process_time() - begun_s) / TPE_ASKS * 1e3:10.1f}", flush=True)


def simulated(space: Any, config: Any, campaign: campaigns.Campaign, *, world_size: int) -> Any:
    """Yield finished trials at random points, as a study would tell them."""
    evaluator, proposals = SimulatedEvaluator(), OptunaSearcher(space, sampler="random", seed=1)
    objective = campaigns.objective_of(campaign)
    study = Study(
        stored=None,  # type: ignore[arg-type] (no trial is recorded)
        space=space,
        start=Start.of(config, space),
        objective=objective,
        runner=ClockRunner(1),
        budget=BUDGET,
        trial_budget=1,
        world_size=world_size,
    )
    reference = Reference.of(measured(evaluator, study.request({}, is_baseline=True)).measurement)
    for number in itertools.count():
        request = study.request(proposals.ask(), number=number)
        outcome = measured(evaluator, request)
        score = objective.score(outcome.measurement, reference).value if outcome.measurement else None
        yield Trial(
            number=number,
            state=outcome.state,
            is_baseline=False,
            point=request.point,
            ds_config=request.ds_config,
            activation_checkpointing=request.activation_checkpointing,
            config_hash=request.config_hash,
            outcome=outcome,
            score=score,
        )


def readers(url: str, folder: str) -> None:
    """Print how long whole commands take on the study, in the order of a user's day."""
    print("\nwhole commands on it: wall s, processor s, printed kB")
    for command in COMMANDS:
        before = os.times()
        begun_s = time.perf_counter()
        argv = [str(Path(sys.executable).with_name("autotune")), *command, "--storage", url]
        answer = subprocess.run(argv, check=True, capture_output=True, cwd=folder)
        wall_s = time.perf_counter() - begun_s
        after = os.times()
        spent_s = after.children_user + after.children_system - before.children_user - before.children_system
        written = Path(folder) / command[-1]
        size = written.stat().st_size if written.is_file() else len(answer.stdout)
        print(f"  {' '.join(command):30}{wall_s:8.2f}{spent_s:8.2f}{size / 1e3:12,.0f}", flush=True)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=READERS_AT)
    parser.add_argument("--slots", type=int, default=1_000)
    parser.add_argument("--storage", help="a URL; a new SQLite file when left out")
    parser.add_argument("--no-readers", action="store_true", help=f"leave out the commands (on {READERS_AT:,} trials)")
    parser.add_argument("--no-tpe", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = asked.storage or f"sqlite:///{folder}/scale.db"
        grow(url, trials=asked.trials, slots=asked.slots)
        if not asked.no_readers:
            if asked.trials != READERS_AT:
                url = f"sqlite:///{folder}/readers.db"
                grow(url, trials=READERS_AT, slots=asked.slots)
            readers(url, folder)
    if not asked.no_tpe:
        tpe()


if __name__ == "__main__":
    main()
