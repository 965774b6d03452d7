"""Compare `ppo`, the pre-trained policy, with other searchers on simulated workloads that it was not trained on.

The score is the best R so far as a share of the best known one, that of 24 coordinate ascents from the start and random
points (a searcher that finds a better one has a share above 1). Failures are counted among the trials after the fourth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.cli import searchers
from autotune.evaluators.simulated_workload import drawn
from autotune.hardware import Hardware
from autotune.objective import Objective
from autotune.testing.searchers import finished_trial
from autotune.trials import Point, Trial
from autotune_envs.policy_space import policy_space
from autotune_envs.simulation import Cases
from autotune_envs.simulation.drawing import features_of
from tests.benchmarks.simulated_workloads import HARDWARE, TRIAL_SECONDS, SimulatedWorkload

TRIALS = (1, 4, 8, 16, 32, 64)
SEEDS = range(1000, 1040)
"""Those of docs/searchers.md; `autotune pretrain` never trains on them."""
SEARCHERS = ("ppo", "ppo+portfolio", "tpe", "random", "tpe+portfolio", "random+portfolio")


@dataclass(frozen=True)
class Course:
    """One study: the best R after each trial beside the start's, and which trials failed."""

    best: Sequence[float]
    failed: Sequence[bool]
    proposal_s: float


def hardware_of(workload: SimulatedWorkload) -> Hardware:
    """Return what a study there would know of its machine; the space stays that of the other benchmarks."""
    device = drawn(workload.seed, HARDWARE.ranks).cluster.device
    return replace(HARDWARE, device_name=device.name, device_memory_bytes=int(device.memory_bytes))


def trial_of(workload: SimulatedWorkload, number: int, point: Point, *, is_baseline: bool = False) -> Trial:
    """Return a trial as a study would tell it."""
    outcome = workload.measured(point)
    trial = replace(finished_trial(number, point, None, is_baseline=is_baseline), outcome=outcome)
    if outcome.measurement is None:
        return trial
    score = Objective().score(outcome.measurement, workload.reference)
    return replace(
        trial,
        state=outcome.state,
        throughput_ratio=score.throughput_ratio,
        convergence_ratio=score.convergence_ratio,
        score=score.value,
    )


def course(workload: SimulatedWorkload, name: str, seed: int, trials: int) -> Course:
    """Run one study."""
    kind, _, warm_start = name.partition("+")
    searcher = searchers.create(
        kind,
        workload.space,
        seed=seed,
        trial_budget=trials + 1,
        hardware=hardware_of(workload),
        warm_start="portfolio" if warm_start else "none",
    )
    searcher.tell(trial_of(workload, 0, workload.start.point, is_baseline=True))
    best, failed, taken_s = [1.0], [], 0.0
    for number in range(1, trials + 1):
        begun_s = time.process_time()
        point = searcher.ask()
        taken_s += time.process_time() - begun_s
        trial = trial_of(workload, number, point)
        searcher.tell(trial)
        best.append(max(best[-1], trial.score or 0.0))
        failed.append(trial.score is None)
    return Course(best=best[1:], failed=failed, proposal_s=taken_s / trials)


def best_known(workloads: Sequence[SimulatedWorkload]) -> np.ndarray:
    """Return the best known R of each workload."""
    worlds = [drawn(workload.seed, HARDWARE.ranks) for workload in workloads]
    start = policy_space().encode(workloads[0].start.point)
    cases = Cases.of(
        worlds,
        [features_of(world) for world in worlds],
        np.tile(start, (len(worlds), 1)),
        np.full(len(worlds), TRIAL_SECONDS),
    )
    return cases.with_optimum(np.random.default_rng(0), climbs=24).optimum_score


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searchers", default=",".join(SEARCHERS))
    parser.add_argument("--workloads", type=int, default=len(SEEDS))
    parser.add_argument("--seeds", type=int, default=3, help="studies of a workload by each searcher")
    chosen = parser.parse_args()
    workloads = [SimulatedWorkload(seed) for seed in SEEDS[: chosen.workloads]]
    names = chosen.searchers.split(",")
    runs = {
        name: [[course(workload, name, seed, max(TRIALS)) for seed in range(chosen.seeds)] for workload in workloads]
        for name in names
    }
    known = best_known(workloads)
    print("| searcher | " + " | ".join(map(str, TRIALS)) + " | failed after the 4th | ms a proposal |")
    print("|---|" + "---|" * (len(TRIALS) + 2))
    for name, of_searcher in runs.items():
        best = np.array([[run.best for run in of_workload] for of_workload in of_searcher])
        shares = (best / known[:, None, None]).mean(axis=(0, 1))
        failed = np.mean([run.failed[4:] for of_workload in of_searcher for run in of_workload])
        ms = 1e3 * np.mean([run.proposal_s for of_workload in of_searcher for run in of_workload])
        cells = " | ".join(f"{shares[trials - 1]:.3f}" for trials in TRIALS)
        print(f"| {name} | {cells} | {failed:.1%} | {ms:.1f} |", flush=True)


if __name__ == "__main__":
    main()
