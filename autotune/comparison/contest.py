"""A comparison of searchers at an equal budget of executed trials: standings, duels, and what can be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from autotune.comparison.runs import (
    Contender,
    Run,
    best_so_far,
    common_reference,
    duplicate_count,
    elapsed_s,
    failed_count,
    pruned_count,
)
from autotune.comparison.statistics import (
    Estimate,
    Floats,
    holm,
    interquartile_means,
    paired_p_value,
    probability_of_improvement,
)
from autotune.errors import StudyError
from autotune.objective import Objective, Reference
from autotune.trials import Trial

_TIME_POINTS = 60
"""Points of a curve over wall time: about one for each trial of a usual budget."""
_FRACTIONS = (0.25, 0.5, 1.0)
"""Shares of the budget at which contenders are tested: early, midway, at the end. Each further one costs power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The best R so far, over runs, along trials or seconds."""

    at: tuple[float, ...]
    best: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one contender did."""

    name: str
    seeds: tuple[int, ...]
    by_trials: Curve
    by_seconds: Curve
    final: Estimate
    """Best R at the end of the budget: interquartile mean over seeds."""
    area: Estimate
    """Mean of the best R so far over all trials of the budget: high for who is good early."""
    finals: tuple[float, ...]
    """Best R at the end, by run."""
    failed_count: float
    """Failed trials of a run, mean over runs."""
    pruned_count: float
    """Trials of a run that were ended early as clearly dominated, mean over runs."""
    duplicate_count: float
    """Configurations of a run that were executed again, mean over runs."""
    seconds: float
    """Wall time of a run's budget, median over runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """Two contenders after so many trials."""

    first: str
    second: str
    trials: int
    probability: Estimate
    """That a run of the first beats a run of the second."""
    difference: float | None
    """Mean over common seeds of the first's best R minus the second's; None without common seeds."""
    pair_count: int
    """Seeds that both ran."""
    p_value: float
    """Of the paired test, corrected for all duels of the comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Contenders side by side, the best at the end first."""

    objective: Objective
    reference: Reference
    """What every R here is relative to."""
    trial_budget: int
    """Trials of each run that are compared."""
    standings: tuple[Standing, ...]
    duels: tuple[Duel, ...]
    is_simulated: bool
    """Whether figures are made up by a formula."""
    notes: tuple[str, ...]
    """What a reader must know of how it was made."""


def compare(contenders: Sequence[Contender], *, trial_budget: int, objective: Objective, seed: int = 0) -> Comparison:
    """Compare searchers after equally many executed trials, failed ones counted.

    Args:
        contenders: each with at least one run; runs of the same seed are paired.
        trial_budget: how many trials of each run count; the shortest run's, where it has fewer.
        objective: scores every trial anew, against one reference for all.
        seed: of the resampling.

    Raises:
        StudyError: when names repeat, a contender has no executed trial, seeds of a contender repeat, or the runs
            started from different configurations.
    """
    notes: list[str] = []
    entered = [_entered(contender, notes) for contender in contenders]
    _refuse_unlike(entered)
    runs = [run for contender in entered for run in contender.runs]
    reference = common_reference(runs)
    budget = _equal_budget(entered, trial_budget, notes)
    notes.insert(0, _reference_in_words(runs, reference))
    notes.insert(
        1,
        "Searchers are compared by the scores that their own searches got, from one run a trial; finals have no part "
        "in this.",
    )
    generator = np.random.default_rng(seed)
    curves = {c.name: np.stack([best_so_far(r, objective, reference)[:budget] for r in c.runs]) for c in entered}
    longest_s = min(elapsed_s(run)[budget - 1] for run in runs)
    standings = [_standing(contender, curves[contender.name], longest_s, generator) for contender in entered]
    standings.sort(key=lambda standing: -standing.final.value)
    order = {standing.name: position for position, standing in enumerate(standings)}
    entered.sort(key=lambda contender: order[contender.name])
    return Comparison(
        objective=objective,
        reference=reference,
        trial_budget=budget,
        standings=tuple(standings),
        duels=_duels(entered, curves, budget, generator),
        is_simulated=any(_is_simulated(trial) for run in runs for trial in run.executed),
        notes=tuple(notes),
    )


def checkpoints(trial_budget: int) -> list[int]:
    """Return after how many trials contenders are tested; not after the first, which is the baseline in every run."""
    return sorted({max(min(2, trial_budget), round(share * trial_budget)) for share in _FRACTIONS})


def _entered(contender: Contender, notes: list[str]) -> Contender:
    """Return a contender without its runs that executed nothing, its seeds in order."""
    runs = tuple(sorted((run for run in contender.runs if run.executed), key=lambda run: run.seed))
    if not runs:
        raise StudyError(f"{contender.name}: none of its {len(contender.runs)} studies has executed a trial; run them")
    seeds = [run.seed for run in runs]
    if len(set(seeds)) != len(seeds):
        raise StudyError(f"{contender.name}: got seeds {seeds}; each may appear once, or one run counts twice")
    if len(runs) < len(contender.runs):
        notes.append(f"{contender.name}: {len(contender.runs) - len(runs)} of its studies executed no trial: left out.")
    return replace(contender, runs=runs)


def _refuse_unlike(contenders: Sequence[Contender]) -> None:
    names = [contender.name for contender in contenders]
    if not names or len(set(names)) != len(names):
        raise StudyError(f"contenders: got {names or 'none'}; give at least one, each with a name of its own")
    starts = {
        trial.config_hash: contender.name
        for contender in contenders
        for run in contender.runs
        for trial in run.executed
        if trial.is_baseline
    }
    if len(starts) > 1:
        raise StudyError(
            f"the studies of {' and '.join(sorted(set(starts.values())))} start from {len(starts)} different "
            "configurations, so their R means different things; compare studies of one campaign"
        )


def _equal_budget(contenders: Sequence[Contender], trial_budget: int, notes: list[str]) -> int:
    lengths = {(c.name, run.seed): len(run.executed) for c in contenders for run in c.runs}
    (name, seed), shortest = min(lengths.items(), key=lambda item: item[1])
    if shortest < trial_budget:
        notes.append(
            f"Compared over {shortest} of {trial_budget} trials, because the run of {name} with seed {seed} has no "
            "more; finish it, or leave it out."
        )
    return min(shortest, trial_budget)


def _reference_in_words(runs: Sequence[Run], reference: Reference) -> str:
    measured = [t for run in runs for t in run.executed if t.is_baseline and t.measurement is not None]
    what = (
        f"the median of {len(measured)} measurements of the starting configuration, pooled over all studies"
        if measured
        else "the median over studies of the first trial that could be measured, since no baseline could"
    )
    learnt = "" if reference.convergence_per_second else "; it did not learn, so convergence counts 0 for every trial"
    return (
        f"Every R here is relative to one common reference, {what}{learnt}. A study's own R divides by its own "
        "baseline, whose noise would favour some runs."
    )


def _is_simulated(trial: Trial) -> bool:
    return trial.measurement is not None and trial.measurement.versions.get("evaluator") == "simulated"


def _standing(contender: Contender, best: Floats, until_s: float, generator: np.random.Generator) -> Standing:
    runs, budget = contender.runs, best.shape[1]
    by_trials = interquartile_means(best, generator)
    times_s = np.linspace(0.0, until_s, _TIME_POINTS)
    in_time = np.stack([_at(times_s, elapsed_s(run)[:budget], row) for run, row in zip(runs, best, strict=True)])
    return Standing(
        name=contender.name,
        seeds=tuple(run.seed for run in runs),
        by_trials=Curve(at=tuple(float(trial) for trial in range(1, budget + 1)), best=tuple(by_trials)),
        by_seconds=Curve(at=tuple(times_s.tolist()), best=tuple(interquartile_means(in_time, generator))),
        final=by_trials[-1],
        area=interquartile_means(best.mean(axis=1, keepdims=True), generator)[0],
        finals=tuple(best[:, -1].tolist()),
        failed_count=float(np.mean([failed_count(run, budget) for run in runs])),
        pruned_count=float(np.mean([pruned_count(run, budget) for run in runs])),
        duplicate_count=float(np.mean([duplicate_count(run, budget) for run in runs])),
        seconds=float(np.median([elapsed_s(run)[budget - 1] for run in runs])),
    )


def _at(times_s: Floats, ended_s: Floats, best: Floats) -> Floats:
    """Return the best so far at given times, 0 before the first trial has ended."""
    done = np.searchsorted(ended_s, times_s, side="right")
    return np.concatenate([[0.0], best])[done]


def _duels(
    contenders: Sequence[Contender], curves: dict[str, Floats], budget: int, generator: np.random.Generator
) -> tuple[Duel, ...]:
    duels = []
    for trials in checkpoints(budget):
        for one, other in combinations(contenders, 2):
            first, second = curves[one.name][:, trials - 1], curves[other.name][:, trials - 1]
            differences = _differences(one, first, other, second)
            duels.append(
                Duel(
                    first=one.name,
                    second=other.name,
                    trials=trials,
                    probability=probability_of_improvement(first, second, generator),
                    difference=float(differences.mean()) if len(differences) else None,
                    pair_count=len(differences),
                    p_value=paired_p_value(differences, generator),
                )
            )
    corrected = holm([duel.p_value for duel in duels])
    return tuple(replace(duel, p_value=p_value) for duel, p_value in zip(duels, corrected, strict=True))


def _differences(one: Contender, first: Floats, other: Contender, second: Floats) -> Floats:
    """Return first - second for the seeds that both ran, shape (common seeds,)."""
    of_first = dict(zip((run.seed for run in one.runs), first.tolist(), strict=True))
    of_second = dict(zip((run.seed for run in other.runs), second.tolist(), strict=True))
    return np.asarray([of_first[seed] - of_second[seed] for seed in of_first if seed in of_second], dtype=float)
