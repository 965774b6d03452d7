"""Derive the portfolio of `warm_start: portfolio` from simulated workloads, and say what it is worth on others.

Each point in turn is the one that raises the mean, over workloads, of the best share of the workload's best known R
most: the greedy maximisation of a submodular function (Nemhauser, Wolsey, Fisher 1978), which is what makes it diverse.
Candidates are the workloads' own optima and random points.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from autotune.cli import searchers
from autotune.errors import SpaceError
from autotune.searchers.portfolio import FILE
from autotune.searchers.protocol import Searcher
from autotune.testing.searchers import finished_trial
from autotune.trials import Point
from tests.benchmarks.simulated_workloads import HARDWARE, SimulatedWorkload

RANDOM_CANDIDATES = 300
TRIALS = (1, 2, 4, 8, 16, 32)
HEADER = """\
# Points that are good across workloads, in the order in which `warm_start: portfolio` tries them.
# {origin}
"""


def derive(seeds: range, length: int) -> list[Point]:
    """Return the points."""
    trained = [SimulatedWorkload(seed) for seed in seeds]
    optima = [workload.optimum for workload in trained]
    generator = np.random.default_rng(0)
    candidates = {tuple(point.items()): point for point, _ in optima}
    for workload in trained[:2]:
        for _ in range(RANDOM_CANDIDATES):
            point = workload.space.sample(generator)
            candidates[tuple(point.items())] = point
    points = list(candidates.values())
    # shape (candidates, workloads): R as a share of the best known
    shares = np.array(
        [[share(w, point) / best for w, (_, best) in zip(trained, optima, strict=True)] for point in points]
    )
    chosen: list[Point] = []
    best = np.zeros(len(trained))
    for _ in range(length):
        index = int(np.maximum(shares, best).mean(axis=1).argmax())
        best = np.maximum(shares[index], best)
        chosen.append(points[index])
        print(f"  {len(chosen)}: mean share {best.mean():.3f}")
    return chosen


def share(workload: SimulatedWorkload, point: Point) -> float:
    """Return R, 0 where the point fails or is not in the workload's space."""
    try:
        workload.space.check(point)
    except SpaceError:
        return 0.0
    return workload.score(point) or 0.0


def course(workload: SimulatedWorkload, searcher: Searcher, trials: int) -> list[float]:
    """Return the best share of the best known R after each of so many trials, the start's not counted."""
    _, optimum = workload.optimum
    start = finished_trial(0, workload.start.point, 1.0, is_baseline=True)
    searcher.tell(replace(start, outcome=workload.measured(workload.start.point)))
    best, shares = 1.0, []
    for number in range(1, trials + 1):
        point = searcher.ask()
        score = workload.score(point)
        told = finished_trial(number, point, score)
        searcher.tell(replace(told, outcome=workload.measured(point)))  # its throughput too, which some go by
        best = max(best, score or 0.0)
        shares.append(best / optimum)
    return shares


def compare(seeds: range) -> None:
    """Print the mean share of the best known R by trials, with and without the portfolio."""
    print("| searcher | warm_start | " + " | ".join(map(str, TRIALS)) + " |\n|---|---|" + "---|" * len(TRIALS))
    for sampler in ("random", "tpe", "cmaes", "deepspeed-autotuner"):
        for warm in (False, True):
            rows = []
            for workload in map(SimulatedWorkload, seeds):
                searcher = searchers.create(
                    sampler,
                    workload.space,
                    seed=workload.seed,
                    trial_budget=max(TRIALS),
                    hardware=HARDWARE,
                    warm_start="portfolio" if warm else "none",
                )
                rows.append(course(workload, searcher, max(TRIALS)))
            means = np.mean(rows, axis=0)
            cells = " | ".join(f"{means[trials - 1]:.3f}" for trials in TRIALS)
            print(f"| {sampler} | {'portfolio' if warm else 'none'} | {cells} |", flush=True)


def main() -> None:
    """Write the portfolio (--write), then compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=80, help="of workloads to derive it from")
    parser.add_argument("--others", type=int, default=40, help="seeds of the workloads to compare on")
    parser.add_argument("--length", type=int, default=8, help="points")
    parser.add_argument("--write", action="store_true", help=f"replace {FILE}")
    chosen = parser.parse_args()
    if chosen.write:
        command = f"python -m tests.benchmarks.portfolio --write --seeds {chosen.seeds} --length {chosen.length}"
        origin = f"Derived from {chosen.seeds} simulated workloads, no real ones, by\n# {command}"
        points = derive(range(chosen.seeds), chosen.length)
        text = yaml.safe_dump({"points": [dict(point) for point in points]}, sort_keys=False)
        Path(FILE).write_text(HEADER.format(origin=origin) + text, encoding="utf-8")
    compare(range(1000, 1000 + chosen.others))


if __name__ == "__main__":
    main()
