"""What several trials at once do to a search: how alike simultaneous proposals are, and the best R after equal trials.

Trials are simulated, and so is time (`InlineRunner`): figures depend on the seeds alone.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from autotune import campaign, storage
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.objective import Objective
from autotune.runners import InlineRunner
from autotune.searchers import Searcher
from autotune.searchers.optuna import SAMPLERS, OptunaSearcher
from autotune.study import Start, Study
from autotune.trials import Budget, Point
from autotune_envs.training import PpoSearcher

CAMPAIGN = {
    "name": "bench",
    "evaluator": "simulated",
    "hardware": {"ranks": 2, "accelerator": "cpu"},
    "ds_config": {"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
}
TOLD = 24
AT_ONCE = 8
TRIALS = 48
SLOTS = (1, 4, 16)


def make_study(opened: storage.Storage, name: str, runner: InlineRunner, *, trials: int) -> Study:
    """Return a new study whose trials have equal steps, and so take unequal time."""
    plan = campaign.parse(CAMPAIGN, where="bench")
    hardware = campaign.hardware_of(plan)
    space = campaign.space_of(plan, hardware)
    return Study(
        stored=opened.create(name, {}),
        space=space,
        start=Start.of(campaign.start_config(plan, hardware)[0], space),
        objective=Objective(),
        runner=runner,
        budget=Budget(steps=20),
        trial_budget=trials,
        world_size=2,
    )


def runner_of(workload: int, *, slots: int) -> InlineRunner:
    """Return a runner of a simulated workload."""
    return InlineRunner(SimulatedEvaluator(workload_seed=workload), slots=slots)


def best_of(study: Study) -> float:
    """Return the best R so far."""
    return max(trial.score or 0.0 for trial in study.history)


def proposals(study: Study, sampler: str, *, seed: int, aware: bool) -> list[Point]:
    """Return `AT_ONCE` proposals after the study's trials, each made with or without knowledge of those before it."""
    searchers = [OptunaSearcher(study.space, sampler=sampler, seed=seed + n) for n in range(1 if aware else AT_ONCE)]
    for searcher in searchers:
        searcher.restore({}, list(study.history))
    return [searchers[0 if aware else n].ask() for n in range(AT_ONCE)]


def compare_proposals(opened: storage.Storage, sampler: str, workloads: int) -> None:
    """Print how `AT_ONCE` simultaneous proposals differ, and what they find."""
    print(f"\n{sampler}: {AT_ONCE} proposals at once after {TOLD} trials, mean of {workloads} workloads")
    print("  open ones are   distinct   differing dimensions, mean / least   rise of the best R")
    figures: dict[bool, list[tuple[float, ...]]] = {True: [], False: []}
    for workload in range(workloads):
        for aware in (True, False):
            name, runner = f"at-once-{sampler}-{workload}-{aware}", runner_of(workload, slots=AT_ONCE)
            with make_study(opened, name, runner, trials=TOLD) as study:
                study.run(OptunaSearcher(study.space, sampler=sampler, seed=workload))
                study.trial_budget = TOLD + AT_ONCE
                points, before = proposals(study, sampler, seed=100 * (workload + 1), aware=aware), best_of(study)
                codes = [study.space.encode(point) for point in points]
                apart = [
                    sum(a != b for a, b in zip(one, other, strict=True))
                    for one, other in itertools.combinations(codes, 2)
                ]
                study.evaluate_all(points)
                row = (len(set(codes)), float(np.mean(apart)), min(apart), best_of(study) - before)
                figures[aware].append(row)
    for aware, rows in figures.items():
        distinct, mean, least, rise = np.mean(rows, axis=0)
        told = "known" if aware else "not known"
        print(f"  {told:14}  {distinct:8.2f}   {mean:20.2f} / {least:.2f}            {rise:10.3f}")


def searcher_of(kind: str, study: Study, seed: int) -> Searcher:
    """Return a new searcher."""
    if kind == "ppo-scratch":
        return PpoSearcher(study.space, trial_budget=study.trial_budget, seed=seed)
    return OptunaSearcher(study.space, sampler=kind, seed=seed)


def compare_slots(opened: storage.Storage, kind: str, workloads: int) -> None:
    """Print the best R after `TRIALS` trials and the simulated time, by number of slots."""
    times: dict[int, list[float]] = {slots: [] for slots in SLOTS}
    bests: dict[int, list[float]] = {slots: [] for slots in SLOTS}
    for workload, slots in itertools.product(range(workloads), SLOTS):
        runner = runner_of(workload, slots=slots)
        with make_study(opened, f"slots-{kind}-{workload}-{slots}", runner, trials=TRIALS) as study:
            study.run(searcher_of(kind, study, workload))
            bests[slots].append(best_of(study))
        times[slots].append(runner.clock_s)
    for slots in SLOTS:
        faster = np.mean(np.array(times[1]) / np.array(times[slots]))
        ratio = np.array(bests[slots]) / np.array(bests[1])
        error = ratio.std() / np.sqrt(workloads)
        print(
            f"  {kind:11}  {slots:5}   {np.mean(bests[slots]):8.3f}   {ratio.mean():8.3f} +- {error:.3f}  {faster:8.1f}"
        )


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=12, help="simulated workloads, one study each")
    parser.add_argument("--samplers", default="tpe,gp", help="whose simultaneous proposals are compared")
    parser.add_argument("--searchers", default=",".join([*(name for name in SAMPLERS if name != "gp"), "ppo-scratch"]))
    chosen = parser.parse_args()
    opened = storage.connect("sqlite:///:memory:")
    for sampler in filter(None, chosen.samplers.split(",")):
        compare_proposals(opened, sampler, chosen.workloads)
    print(f"\nafter {TRIALS} trials, mean of {chosen.workloads} workloads")
    print("  searcher     slots     best R   of one slot's         times as fast (simulated)")
    for kind in filter(None, chosen.searchers.split(",")):
        compare_slots(opened, kind, chosen.workloads)
    opened.close()


if __name__ == "__main__":
    main()
