"""How often a comparison of searchers is right, by simulation: its intervals, its claims among equals, what it finds.

`make referee` runs it (two to three minutes); docs/compare.md quotes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from scipy.stats import norm

from autotune.comparison.contest import _duels, _Entry, marks
from autotune.comparison.runs import Run
from autotune.comparison.statistics import (
    Floats,
    interquartile_mean,
    interquartile_means,
    probability_of_improvement,
)
from autotune.comparison.wording import is_shown

Draw = Callable[[int], Floats]
_TRUTH = 400_000
"""Draws from each workload that stand for the truth."""
_TRIALS = 16


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=400, help="synthetic comparisons of each kind")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    generator = np.random.default_rng(chosen.seed)
    kinds: dict[str, Draw] = {
        "normal": lambda count: generator.normal(size=count),
        "lognormal": lambda count: generator.lognormal(sigma=0.5, size=count),
        "t, 3 df": lambda count: generator.standard_t(3, size=count),
    }
    print("interval of the interquartile mean holds the truth")
    for kind, draw in kinds.items():
        for shifts, runs in (((0.0,), 6), ((0.0,), 12), ((0.0,), 20), ((0.0, 1.0, 2.0), 4), ((0.0, 1.0, 2.0), 8)):
            share = covered(draw, shifts, runs, chosen.cases, generator)
            print(f"  {kind:10} {len(shifts)} workload(s) of {runs:2} runs: {share:.1%}")
    print("interval of the chance to be better holds the truth")
    for runs, lead in ((3, 1.0), (4, 0.0), (4, 1.0), (8, 1.0), (8, 2.5)):
        share = chance_covered(runs, lead, chosen.cases, generator)
        print(f"  {runs} runs each, {lead:g} standard deviations apart: {share:.1%}")
    print("three searchers, 16 trials, tested at 4 budgets of trials and 4 of wall time: some winner named")
    for runs in (7, 8, 10):
        equal, better = (claimed(runs, gain, chosen.cases, generator) for gain in (0.0, 0.15))
        print(f"  {runs} seeds: all equal {equal:.1%}; one better by 0.15 at the end {better:.1%}")


def covered(draw: Draw, shifts: tuple[float, ...], runs: int, cases: int, generator: np.random.Generator) -> float:
    """Return the share of cases whose interval holds the interquartile mean of the whole, runs of each workload."""
    truth = float(interquartile_mean(np.concatenate([shift + draw(_TRUTH) for shift in shifts])))
    strata = [str(shift) for shift in shifts for _ in range(runs)]
    hits = 0
    for _ in range(cases):
        figures = np.concatenate([shift + draw(runs) for shift in shifts])[:, None]
        (estimate,) = interquartile_means(figures, generator, strata=strata)
        hits += estimate.low is not None and estimate.high is not None and estimate.low <= truth <= estimate.high
    return hits / cases


def chance_covered(runs: int, lead: float, cases: int, generator: np.random.Generator) -> float:
    """Return the share of cases whose interval holds the true probability of improvement."""
    truth = norm.cdf(lead / 2**0.5)
    hits = 0
    for _ in range(cases):
        estimate = probability_of_improvement([(lead + generator.normal(size=runs), generator.normal(size=runs))])
        hits += estimate.low is not None and estimate.high is not None and estimate.low <= truth <= estimate.high
    return hits / cases


def claimed(runs: int, gain: float, cases: int, generator: np.random.Generator) -> float:
    """Return the share of comparisons that name a winner, where the third gains so much by its last trial."""
    claims = 0
    for _ in range(cases):
        entries = []
        for name, gained in (("a", 0.0), ("b", 0.0), ("c", gain)):
            luck = 0.1 * np.maximum.accumulate(generator.normal(size=(runs, _TRIALS)), axis=1)
            best = 1.0 + gained * np.linspace(0.0, 1.0, _TRIALS) + luck
            ended_s = generator.uniform(5.0, 15.0, size=best.shape).cumsum(axis=1)
            studies = tuple(Run(seed=seed, trials=()) for seed in range(runs))
            entries.append(_Entry(name=name, runs=studies, best=best, ended_s=ended_s))
        claims += any(is_shown(duel) for duel in _duels(entries, marks(_TRIALS, 75.0), generator))
    return claims / cases


if __name__ == "__main__":
    main()
