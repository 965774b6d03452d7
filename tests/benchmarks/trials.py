"""Trials, cold and warm, beside the steps alone and beside DeepSpeed's own autotuner: seconds, and their ratios.

All in one run, interleaved, since a shared machine's speed drifts. `steps` is what no tool can save: the optimizer
steps of the trial as they were, and the held-out losses and profiled steps that the measurement takes. A fresh engine's
first steps take longer than later ones, warm or cold; `at median` is the overhead with each step charged at the median.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune import ds_config
from autotune.evaluators import op_cache
from autotune.evaluators.deepspeed import DeepSpeedEvaluator
from autotune.runners.rank_process import RankProcess
from autotune.trials import Budget, Outcome, TrialRequest
from autotune.workload import WorkloadReference

STEPS = 20
CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "steps_per_print": 1000000,
}
SCRIPT = Path(__file__).parents[1] / "scripts" / "plain_loop.py"
"""The same size of model, for DeepSpeed's autotuner, which takes scripts only."""
AUTOTUNING = {
    "enabled": True,
    "fast": False,
    "start_profile_step": 2,
    "end_profile_step": STEPS,
    "min_train_micro_batch_size_per_gpu": 8,
    "max_train_micro_batch_size_per_gpu": 8,
    "num_tuning_micro_batch_sizes": 1,
    "tuner_num_trials": 3,
    "overwrite": True,
}


@dataclass(frozen=True, slots=True)
class Timed:
    """One trial."""

    whole_s: float
    steps_s: float
    """As they were, with what measuring took."""
    at_median_s: float
    """With every step at the median's time."""
    losses: tuple[float, ...]

    @property
    def overhead_s(self) -> float:
        return self.whole_s - self.steps_s


class Trials:
    """Trials of one number of ranks: the warm ones on hosts that stay."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self.ranks = ranks
        self._folder = folder
        self._number = 0
        self.warm_hosts = [RankProcess() for _ in range(ranks)]

    def run(self, stage: int, execution: str, steps: int = STEPS) -> Timed:
        evaluator = DeepSpeedEvaluator(
            workload=WorkloadReference(function="byte-gpt"),
            ranks=self.ranks,
            run_directory=str(self._folder),
            execution="warm" if execution == "warm" else "cold",
        )
        config = ds_config.build(CONFIG, {"zero_optimization.stage": stage}, world_size=self.ranks)
        self._number += 1
        request = TrialRequest(number=self._number, point={}, ds_config=config, budget=Budget(steps=steps))
        hosts = self.warm_hosts if execution == "warm" else [RankProcess() for _ in range(self.ranks)]
        outcome = evaluator.evaluate(request, hosts=hosts, progress=lambda _: None, cancelled=lambda: False)
        return _timed(outcome)

    def close(self) -> None:
        for host in self.warm_hosts:
            host.close()


def main() -> None:
    """Print the table, and with --leaks what stays behind over many warm trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of each cell")
    parser.add_argument("--leaks", type=int, default=0, metavar="TRIALS", help="run so many warm trials; print growth")
    parser.add_argument("--rival", action="store_true", help="run DeepSpeed's autotuner too (minutes)")
    arguments = parser.parse_args()
    op_cache.prepare([CONFIG], device="cpu", progress=print)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.leaks:
            leaks(Path(folder), arguments.leaks)
            return
        table(Path(folder), arguments.repeats)
        if arguments.rival:
            rival(Path(folder))


def table(folder: Path, repeats: int) -> None:
    """Print cold, warm and steps by ranks and stage, interleaved."""
    print(f"seconds, medians of {repeats}; a trial of {STEPS} timed steps; byte-gpt, 0.87 M parameters")
    print("ranks stage    cold    warm   steps  warm/cold  overhead: cold    warm  at median   losses")
    for ranks in (1, 2):
        trials = Trials(ranks, folder)
        try:
            for stage in (0, 3):  # what they load, the server has learnt by then
                trials.run(stage, "warm", steps=3)
            for stage in (0, 2, 3):
                both = [(trials.run(stage, "cold"), trials.run(stage, "warm")) for _ in range(repeats)]
                print(_row(ranks, stage, both), flush=True)
        finally:
            trials.close()


def leaks(folder: Path, count: int) -> None:
    """Print the server's and the host's memory, descriptors and threads over many warm trials of all stages."""
    trials = Trials(1, folder)
    try:
        for number in range(count):
            trials.run((0, 2, 3, 1)[number % 4], "warm", steps=3)
            if number + 1 in (4, count // 4, count // 2, count):
                pid = trials.warm_hosts[0].server_pid
                if pid is None:
                    raise RuntimeError("the warm host has no fork server")
                print(f"after {number + 1:4} trials: server {_figures(pid)}; host {_figures(os.getpid())}", flush=True)
    finally:
        trials.close()


def rival(folder: Path) -> None:
    """Run DeepSpeed's autotuner, on one rank, and print its seconds per trial.

    Without `pdsh`, which it only uses to end what is left on other hosts, a stand-in that does nothing is put in front.
    """
    if importlib.util.find_spec("tabulate") is None:
        print("DeepSpeed's autotuner: not run; pip install 'deepspeed[autotuning]' first")
        return
    shutil.copy(SCRIPT, folder / SCRIPT.name)
    config = {**CONFIG, "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 1}}
    config |= {"gradient_accumulation_steps": 1, "autotuning": AUTOTUNING}
    (folder / "ds.json").write_text(json.dumps(config))
    with _with_pdsh(folder) as environment:
        began_s = time.monotonic()
        command = [str(Path(sys.executable).parent / "deepspeed"), "--autotuning", "tune", "--num_gpus", "1"]
        model = ["--layers", "4", "--width", "128", "--deepspeed", "--deepspeed_config", "ds.json"]
        ended = subprocess.run(
            [*command, SCRIPT.name, *model], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
        )
        whole_s = time.monotonic() - began_s
    names = re.findall(r"exp_name = (\S+),", ended.stdout + ended.stderr)
    if not names:
        print(f"DeepSpeed's autotuner: ran no trial\n{(ended.stdout + ended.stderr)[-2000:]}")
        return
    print(
        f"DeepSpeed's autotuner, 1 rank: {len(names)} trials in {whole_s:.0f} s, {whole_s / len(names):.1f} s a trial"
    )


@contextmanager
def _with_pdsh(folder: Path) -> Iterator[dict[str, str]]:
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if shutil.which("pdsh") is None:
        stand_in = folder / "bin" / "pdsh"
        stand_in.parent.mkdir()
        stand_in.write_text("#!/bin/sh\nexit 0\n")
        stand_in.chmod(0o755)
        path.insert(0, str(stand_in.parent))
    yield {**os.environ, "PATH": os.pathsep.join(path), "DS_ACCELERATOR": "cpu"}


def _timed(outcome: Outcome) -> Timed:
    measured = outcome.measurement
    if measured is None:
        raise RuntimeError(str(outcome.failure))
    if measured.steps_s is None:
        raise RuntimeError("the measurement does not say how long its steps took")
    return Timed(
        whole_s=outcome.duration_s,
        steps_s=measured.steps_s + measured.measuring_s,
        at_median_s=measured.training_time_s + measured.measuring_s,
        losses=measured.training_losses,
    )


def _row(ranks: int, stage: int, both: Sequence[tuple[Timed, Timed]]) -> str:
    cold, warm = ([pair[index] for pair in both] for index in (0, 1))
    whole = [statistics.median(trial.whole_s for trial in trials) for trials in (cold, warm)]
    over = [statistics.median(trial.overhead_s for trial in trials) for trials in (cold, warm)]
    steps_s = statistics.median(trial.steps_s for trial in warm)
    at_median_s = statistics.median(trial.whole_s - trial.at_median_s for trial in warm)
    equal = "equal" if {trial.losses for trial in cold} == {trial.losses for trial in warm} else "DIFFER"
    ratio = statistics.median(one.whole_s / other.whole_s for other, one in both)
    return (
        f"{ranks:5} {stage:5} {whole[0]:7.2f} {whole[1]:7.2f} {steps_s:7.2f}  {ratio:9.2f}"
        f" {over[0]:15.2f} {over[1]:7.3f} {at_median_s:10.3f}   {equal}"
    )


def _figures(pid: int) -> str:
    process = psutil.Process(pid)
    mebibytes = process.memory_info().rss / 1024**2
    return f"{mebibytes:.1f} MiB, {process.num_fds()} descriptors, {process.num_threads()} threads"


if __name__ == "__main__":
    main()
