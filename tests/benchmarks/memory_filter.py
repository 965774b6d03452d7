"""What the memory filter saves, and what it refuses wrongly.

On simulated workloads: what it says of random points (`points`), and whole campaigns with and without it
(`campaigns`). Of a real study that ran without it (`study STORAGE NAME`): what it would have refused, and whether that
really ran out of memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from autotune import storage as storages
from tests import filtered_trials
from tests.filtered_trials import Searched

COUNTS = (0, 4, 8, 16, 32)
TRIALS = (8, 16, 32)
POINTS = ("calibrated to", "judged", "out of memory", "of them refused", "refused though they fit")
CAMPAIGNS = ("searcher", "filter", "trials out of memory", "refused", "wrongly", *(f"best R after {n}" for n in TRIALS))
FILTERS = {
    "off": {"with_filter": False},
    "on": {"with_filter": True},
    "on, shape guessed": {"with_filter": True, "knows_shape": False},
}


def points(asked: argparse.Namespace) -> None:
    """Print one row for each number of trials calibrated to."""
    _head(POINTS)
    for count in COUNTS:
        found = [
            filtered_trials.counted(seed, calibrated_to=count, points=asked.points) for seed in range(asked.workloads)
        ]
        judged, out, caught, wrong = (sum(column) for column in zip(*found, strict=True))
        print(f"| {count} | {judged} | {out} | {caught} ({caught / max(out, 1):.0%}) | {wrong} |", flush=True)


def campaigns(asked: argparse.Namespace) -> None:
    """Print one row for each searcher, without the filter and with it: sums over workloads, geometric means of R."""
    _head(CAMPAIGNS)
    for sampler in asked.searchers.split(","):
        for name, how in FILTERS.items():
            runs = [
                filtered_trials.searched(seed, sampler=sampler, trials=max(TRIALS), **how)
                for seed in range(1000, 1000 + asked.workloads)
            ]
            out, refused, wrong = (sum(getattr(run, each) for run in runs) for each in ("out", "refused", "wrong"))
            best = " | ".join(f"{np.exp(np.mean(np.log([_best(run, n) for run in runs]))):.2f}" for n in TRIALS)
            print(f"| {sampler} | {name} | {out} | {refused} | {wrong} | {best} |", flush=True)


def study(asked: argparse.Namespace) -> None:
    """Print what would have been refused of each trial after the first, calibrated as a campaign would have been."""
    storage = storages.connect(asked.storage)
    judged = filtered_trials.hindsight(storage.open(asked.name))
    storage.close()
    for trial, verdict in judged:
        word = "refused" if verdict.refused[0] else ""
        out = "out of memory" if filtered_trials.is_out(trial) else ""
        print(f"{trial.number:>3}  {verdict.optimistic_bytes[0] / 1e6:7.0f} MB or more  {word:8} {out}")
    ran_out = [bool(verdict.refused[0]) for trial, verdict in judged if filtered_trials.is_out(trial)]
    fitted = [bool(verdict.refused[0]) for trial, verdict in judged if trial.measurement is not None]
    print(f"{len(ran_out)} ran out of memory, {sum(ran_out)} refused; {len(fitted)} fitted, {sum(fitted)} refused")


def _best(run: Searched, trials: int) -> float:
    return max(score for score in run.scores[: trials + 1] if score is not None)


def _head(columns: tuple[str, ...]) -> None:
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")


def main() -> None:
    """Read what to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=24)
    commands = parser.add_subparsers(required=True)

    def command(name: str, does: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        made = commands.add_parser(name, description=does.__doc__)
        made.set_defaults(does=does)
        return made

    command("points", points).add_argument("--points", type=int, default=400)
    command("campaigns", campaigns).add_argument("--searchers", default="random,tpe")
    real = command("study", study)
    real.add_argument("storage")
    real.add_argument("name")
    asked = parser.parse_args()
    asked.does(asked)


if __name__ == "__main__":
    main()
