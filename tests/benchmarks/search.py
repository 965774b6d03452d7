"""Compare searchers on simulated workloads, drawn from the model's priors and shifted: shares of the best known R.

A drawn workload is what the performance model believes possible: a searcher that goes by the model has the right one.
In a shifted one every coefficient is off by another factor of exp(N(0, 1/2)), and throughput and the fall of the loss
are each multiplied by a smooth function of pairs of dimensions, which the model doesn't have.

Each course is a line of the results file; the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune import ds_config as config_file
from autotune.cli import searchers
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.evaluators.simulated_workload import SimulatedWorkload as Drawn
from autotune.evaluators.simulated_workload import drawn
from autotune.objective import Objective
from autotune.performance import Coefficients
from autotune.performance.subject import Subject
from autotune.searchers.knowledge import StudyKnowledge
from autotune.searchers.protocol import Searcher
from autotune.testing.searchers import finished_trial
from autotune.trials import Measurement, Outcome, Point, Trial
from tests.benchmarks.simulated_workloads import HARDWARE, SimulatedWorkload

TRIALS = (1, 2, 4, 8, 16, 32, 64)
FIRST = 3000
"""Seed of the first workload; those below were used elsewhere, or to choose the searcher's constants (2000 to 2999)."""
COEFFICIENT_SHIFT = 0.5
"""Standard deviation of the logarithm by which each coefficient is off, beyond its prior."""
INTERACTION = 0.3
"""Standard deviation, over random points, of the logarithm that throughput and the loss's fall are off."""
PAIRS = 6
"""Pairs of dimensions that interact, for each of the two."""


class Interaction:
    """A smooth function of pairs of dimensions, with mean 0 and a standard deviation of `INTERACTION` over points."""

    def __init__(self, sizes: Sequence[int], generator: np.random.Generator) -> None:
        self._sizes = np.maximum(np.array(sizes) - 1, 1)
        self._pairs = np.array([generator.choice(len(sizes), 2, replace=False) for _ in range(PAIRS)])
        self._waves = generator.uniform(0.25, 1.0, (PAIRS, 2))
        self._phases = generator.uniform(0.0, 2.0, (PAIRS, 2))
        self._weights = generator.standard_normal(PAIRS)
        seen = np.array([self._raw(generator.integers(sizes)) for _ in range(500)])
        self._mean, self._scale = seen.mean(), INTERACTION / max(seen.std(), 1e-9)

    def at(self, encoding: Sequence[int]) -> float:
        """Return the logarithm of the factor."""
        return float((self._raw(np.array(encoding)) - self._mean) * self._scale)

    def _raw(self, encoding: Any) -> float:
        levels = (encoding / self._sizes)[self._pairs]
        return float(self._weights @ np.cos(np.pi * (self._waves * levels + self._phases)).prod(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shifted(SimulatedEvaluator):
    """Answers with other coefficients than the drawn workload's."""

    shift: tuple[float, ...]

    def _workload(self, request: Any) -> Drawn:
        found = drawn(self.workload_seed, HARDWARE.ranks)
        names = [field.name for field in fields(Coefficients)]
        moved = {
            name: getattr(found.coefficients, name) * float(np.exp(by))
            for name, by in zip(names, self.shift, strict=True)
        }
        return replace(found, coefficients=Coefficients(**moved))


@dataclass(frozen=True)
class ShiftedWorkload(SimulatedWorkload):
    """A simulated workload that the model can't be calibrated to."""

    @functools.cached_property
    def _shift(self) -> tuple[float, ...]:
        """The first draw with which the start still runs."""
        generator = np.random.default_rng(np.random.SeedSequence([self.seed, 1]))
        while True:
            shift = tuple(COEFFICIENT_SHIFT * generator.standard_normal(len(fields(Coefficients))))
            evaluator = _Shifted(workload_seed=self.seed, noise=0.0, shift=shift)
            if replace_evaluator(self, evaluator).measured(self.start.point).measurement is not None:
                return shift

    @functools.cached_property
    def _evaluator(self) -> SimulatedEvaluator:
        return _Shifted(workload_seed=self.seed, noise=0.0, shift=self._shift)

    @functools.cached_property
    def _interactions(self) -> tuple[Interaction, Interaction]:
        generator = np.random.default_rng(np.random.SeedSequence([self.seed, 2]))
        return Interaction(self.space.sizes, generator), Interaction(self.space.sizes, generator)

    def measured(self, point: Point) -> Outcome:
        outcome = super().measured(point)
        if outcome.measurement is None:
            return outcome
        speed, progress = (np.exp(each.at(self.space.encode(point))) for each in self._interactions)
        return Outcome(measurement=_changed(outcome.measurement, float(speed), float(progress)))


def replace_evaluator(workload: SimulatedWorkload, evaluator: SimulatedEvaluator) -> SimulatedWorkload:
    """Return the workload, answered by another evaluator."""
    found = SimulatedWorkload(workload.seed)
    found.__dict__["_evaluator"] = evaluator
    return found


def _changed(measured: Measurement, speed: float, progress: float) -> Measurement:
    """Return a measurement at so many times the throughput and the fall of the loss; phases keep their shares."""
    phases = {
        name: getattr(measured, name) / speed for name in ("forward_s", "backward_s", "optimizer_s", "communication_s")
    }
    before = measured.held_out_loss_before
    drop = min((before - measured.held_out_loss_after) * progress, 0.95 * before)
    return replace(
        measured,
        samples_per_second=measured.samples_per_second * speed,
        step_time_s=measured.step_time_s / speed,
        held_out_loss_after=before - drop,
        training_loss_last=before - drop,
        **phases,
    )


KINDS: Mapping[str, type[SimulatedWorkload]] = {"drawn": SimulatedWorkload, "shifted": ShiftedWorkload}


def knowledge_of(workload: SimulatedWorkload) -> StudyKnowledge:
    """Return what a searcher may know of a workload: its model and machines, none of its coefficients."""
    known = drawn(workload.seed, HARDWARE.ranks)
    subject = Subject(shape=known.shape, cluster=known.cluster, fixed={"flash_attention": known.flash_attention})
    return StudyKnowledge(
        ds_config=workload.start.ds_config,
        activation_checkpointing=False,
        world_size=HARDWARE.ranks,
        objective=Objective(),
        training_s=10.0,
        subject=lambda trials: subject,
    )


def told(workload: SimulatedWorkload, number: int, point: Point, *, is_baseline: bool = False) -> Trial:
    """Return the trial of a point as a study would tell it."""
    settings = dict(workload.space.settings(point))
    outcome = workload.measured(point)
    score = workload.score_of(outcome)
    return replace(
        finished_trial(number, point, score.value if score else None, is_baseline=is_baseline),
        outcome=outcome,
        throughput_ratio=score.throughput_ratio if score else None,
        convergence_ratio=score.convergence_ratio if score else None,
        ds_config=config_file.build(workload.start.ds_config, settings, world_size=HARDWARE.ranks),
        activation_checkpointing=bool(settings[config_file.ACTIVATION_CHECKPOINTING]),
    )


def course(workload: SimulatedWorkload, searcher: Searcher, trials: int) -> tuple[list[float | None], list[float]]:
    """Return R of each trial beside the start's, None where it failed, and each proposal's ms of processor time."""
    searcher.tell(told(workload, 0, workload.start.point, is_baseline=True))
    scores, taken_ms = [], []
    for number in range(1, trials + 1):
        begun_s = time.process_time()
        point = searcher.ask()
        taken_ms.append(1000.0 * (time.process_time() - begun_s))
        trial = told(workload, number, point)
        searcher.tell(trial)
        scores.append(trial.score)
    return scores, taken_ms


def run(chosen: argparse.Namespace) -> None:
    """Run the courses that the results file lacks."""
    path = Path(chosen.results)
    rows = list(_rows(path))
    done = {_key(row) for row in rows}
    optima = {(row["kind"], row["workload"]): row["optimum"] for row in rows}
    wanted = [tuple(name.split("+")) if "+" in name else (name, "none") for name in chosen.searchers.split(",")]
    workloads = range(chosen.first, chosen.first + chosen.workloads)
    # Seeds turn slowest, so that what is there early is of all workloads and searchers.
    for searcher_seed, kind, seed in itertools.product(range(chosen.seeds), chosen.kinds.split(","), workloads):
        workload = KINDS[kind](seed)
        for name, warm_start in wanted:
            row: dict[str, Any] = {
                "kind": kind,
                "workload": seed,
                "searcher": name,
                "warm_start": warm_start,
                "seed": searcher_seed,
            }
            if _key(row) in done:
                continue
            searcher = searchers.create(
                name,
                workload.space,
                seed=100 * seed + searcher_seed,
                trial_budget=chosen.trials,
                hardware=HARDWARE,
                warm_start=warm_start,
                knowledge=functools.partial(knowledge_of, workload),
            )
            row["optimum"] = optima[kind, seed] = optima.get((kind, seed)) or workload.optimum[1]
            row["scores"], row["taken_ms"] = course(workload, searcher, chosen.trials)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def report(path: Path) -> Iterator[str]:
    """Yield the table: mean share of the best known R, the start's trial counting as R = 1, and failed trials."""
    rows = list(_rows(path))
    best: dict[tuple[str, int], float] = defaultdict(float)
    for row in rows:
        place = row["kind"], row["workload"]
        best[place] = max(best[place], row["optimum"], *(score or 0.0 for score in row["scores"]))
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["kind"], row["searcher"], row["warm_start"]].append(row)
    yield (
        "| workloads | searcher | warm_start | "
        + " | ".join(map(str, TRIALS))
        + " | failed, 5 to 16 | 17 to 64 | ms | courses |"
    )
    yield "|---|---|---|" + "---|" * (len(TRIALS) + 4)
    for (kind, searcher, warm_start), of in groups.items():
        shares = np.array(
            [
                np.maximum.accumulate([max(score or 0.0, 1.0) for score in row["scores"]]) / best[kind, row["workload"]]
                for row in of
            ]
        )
        cells = [f"{shares[:, n - 1].mean():.3f}" if n <= shares.shape[1] else "" for n in TRIALS]
        failed = np.array([[score is None for score in row["scores"]] for row in of])
        taken_ms = float(np.median([taken for row in of for taken in row["taken_ms"]]))
        cells += [f"{failed[:, 4:16].mean():.0%}", f"{failed[:, 16:].mean():.0%}", f"{taken_ms:.0f}", str(len(of))]
        yield f"| {kind} | {searcher} | {warm_start} | " + " | ".join(cells) + " |"


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("kind", "workload", "searcher", "warm_start", "seed"))


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--results", default="search.jsonl", help="a line for each course; what is there isn't run again"
    )
    parser.add_argument("--kinds", default="drawn,shifted")
    parser.add_argument("--searchers", default="random,tpe,tpe+portfolio,calibrated,calibrated+portfolio")
    parser.add_argument("--first", type=int, default=FIRST, help="seed of the first workload")
    parser.add_argument("--workloads", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3, help="of each searcher, on each workload")
    parser.add_argument("--trials", type=int, default=max(TRIALS))
    chosen = parser.parse_args()
    run(chosen)
    for line in report(Path(chosen.results)):
        print(line)


if __name__ == "__main__":
    main()
