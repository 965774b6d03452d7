"""How long a proposal takes, and how Optuna's samplers are best told of failures.

Failures are told as R = 0 (what `OptunaSearcher` does), as the least R measured so far, or by Optuna's constraints
(value as before, constraint violated). Workloads are simulated; a share is the best R over the best known.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from optuna.trial import TrialState, create_trial

from autotune.searchers import FAILED_SCORE
from autotune.searchers.optuna import SAMPLERS, OptunaSearcher
from autotune.testing.searchers import finished_trial
from tests.benchmarks.portfolio import course
from tests.benchmarks.simulated_workloads import SimulatedWorkload

TOLD = 64
TIMED = 9
TRIALS = (8, 16, 24)


class _LeastMeasured(OptunaSearcher):
    """Tells a failure as the least R measured so far."""

    is_constrained = False

    def _add(self, encoding: tuple[int, ...], *, state: TrialState, value: float | None = None) -> int:
        if value is None:
            return super()._add(encoding, state=state)
        failed = value == FAILED_SCORE
        measured = [score for score in self._scores.values() if score != FAILED_SCORE]
        trial = create_trial(
            params=self._parameters(encoding),
            distributions=self._distributions,
            state=state,
            value=min(measured, default=FAILED_SCORE) if failed else value,
            constraints={"ran": float(failed)} if self.is_constrained else None,
        )
        self._study.add_trial(trial)
        return self._study.get_trials(deepcopy=False)[-1].number


class _Constrained(_LeastMeasured):
    is_constrained = True


WAYS = {"R = 0": OptunaSearcher, "least R": _LeastMeasured, "constraint": _Constrained}


def time_proposals() -> None:
    """Print the wall time of a proposal after `TOLD` trials at random points."""
    print(f"a proposal after {TOLD} trials, ms: median (least to most) of {TIMED}; the first loads libraries")
    workload = SimulatedWorkload(0)
    generator = np.random.default_rng(0)
    points = [workload.space.sample(generator) for _ in range(TOLD)]
    for sampler in SAMPLERS:
        searcher = OptunaSearcher(workload.space, sampler=sampler, seed=0)
        for number, point in enumerate(points):
            searcher.tell(finished_trial(number, point, workload.score(point)))
        times_ms, processor_ms = [], []
        for number in range(TOLD, TOLD + TIMED + 1):
            begun_s, processor_s = time.perf_counter(), time.process_time()
            point = searcher.ask()
            times_ms.append(1000 * (time.perf_counter() - begun_s))
            processor_ms.append(1000 * (time.process_time() - processor_s))
            searcher.tell(finished_trial(number, point, workload.score(point)))
        first, *rest = times_ms
        most = f"of a processor {statistics.median(processor_ms[1:]):.0f}, at most {max(processor_ms[1:]):.0f}"
        wall = f"{statistics.median(rest):6.0f} ({min(rest):.0f} to {max(rest):.0f})"
        print(f"  {sampler:8} {wall}; {most}; first {first:.0f}")


def compare_ways(sampler: str, count: int) -> None:
    """Print the mean share after some trials by how failures are told."""
    workloads = [SimulatedWorkload(seed) for seed in range(2000, 2000 + count)]
    for way, kind in WAYS.items():
        begun_s = time.perf_counter()
        rows = np.array([course(w, kind(w.space, sampler=sampler, seed=w.seed), max(TRIALS)) for w in workloads])
        took_s = (time.perf_counter() - begun_s) / count
        cells = " | ".join(f"{rows[:, trials - 1].mean():.3f}" for trials in TRIALS)
        error = rows[:, max(TRIALS) - 1].std(ddof=1) / np.sqrt(count)
        print(f"| {sampler} | {way} | {cells} | {error:.3f} | {took_s:.1f} |", flush=True)


def main() -> None:
    """Print the times, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samplers", default="tpe,gp", help="whose ways are compared")
    parser.add_argument("--workloads", type=int, default=8)
    chosen = parser.parse_args()
    time_proposals()
    ends = " | ".join(f"after {trials}" for trials in TRIALS)
    print(
        f"| sampler | failures told as | {ends} | standard error | s a study |\n|---|---|{'---|' * (len(TRIALS) + 2)}"
    )
    for sampler in filter(None, chosen.samplers.split(",")):
        compare_ways(sampler, chosen.workloads)


if __name__ == "__main__":
    main()
