"""A comparison of searchers at equal budgets of trials and of wall time: standings, duels, and what can be said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
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
    failed_s,
    pruned_count,
    searcher_s,
)
from autotune.comparison.statistics import (
    Estimate,
    Floats,
    interquartile_means,
    paired_p_values,
    probability_of_improvement,
)
from autotune.errors import StudyError
from autotune.objective import Objective, Reference
from autotune.trials import Trial

_TIME_POINTS = 60
"""Points of a curve over wall time, those of the marks apart: about one for each trial of a usual budget."""


class Unit(StrEnum):
    """What a budget is counted in."""

    TRIALS = "trials"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A budget at which contenders are compared: so many executed trials, or so much wall time."""

    unit: Unit
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A figure over runs, along trials or seconds."""

    at: tuple[float, ...]
    best: tuple[Estimate, ...]
    """The best R so far: interquartile mean over runs."""
    area: tuple[Estimate, ...]
    """Mean of the best R so far from the start until here (the area under it, over its width): high for who is good
    early."""

    def index(self, at: float) -> int:
        """Return the position of a point."""
        return self.at.index(at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """What one run came to at the end of the budget of trials."""

    workload: str
    seed: int
    best: float
    """Best R."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one contender did."""

    name: str
    finals: tuple[Final, ...]
    """Of each run."""
    by_trials: Curve
    by_seconds: Curve
    by_workload: Mapping[str, Estimate]
    """Best R at the end, of each workload's runs."""
    failed_count: float
    """Failed trials of a run, mean over runs."""
    failed_s: float
    """Seconds of a run that went into failed trials, mean over runs."""
    pruned_count: float
    """Trials of a run that were ended early as clearly dominated, mean over runs."""
    duplicate_count: float
    """Configurations of a run that were executed again, mean over runs."""
    seconds: float
    """Wall time of a run's budget, median over runs."""
    searcher_s: float | None
    """Seconds that the searcher took to propose a trial, mean over runs; None where it was not recorded."""

    @property
    def final(self) -> Estimate:
        """Best R at the end of the budget of trials."""
        return self.by_trials.best[-1]

    @property
    def area(self) -> Estimate:
        """Mean of the best R so far over all trials of the budget."""
        return self.by_trials.area[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """Two contenders at a mark."""

    first: str
    second: str
    mark: Mark
    probability: Estimate
    """That a run of the first beats a run of the second."""
    difference: float | None
    """Mean over common workloads and seeds of the first's best R minus the second's; None without common ones."""
    pair_count: int
    """Workloads and seeds that both ran."""
    p_value: float
    """Of the paired test, corrected for all duels of the comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Contenders side by side, the best at the end first."""

    objective: Objective
    references: Mapping[str, Reference]
    """What every R here is relative to, by workload."""
    trial_budget: int
    """Trials of each run that are compared."""
    time_budget_s: float
    """Wall time of each run that is compared; 0 where no time was recorded."""
    standings: tuple[Standing, ...]
    duels: tuple[Duel, ...]
    is_simulated: bool
    """Whether figures are made up by a formula."""
    notes: tuple[str, ...]
    """What a reader must know of how it was made."""

    @property
    def marks(self) -> list[Mark]:
        """Budgets at which contenders are tested, trials first."""
        return marks(self.trial_budget, self.time_budget_s)

    @property
    def last_mark(self) -> Mark:
        """The whole budget of trials."""
        return Mark(unit=Unit.TRIALS, at=self.trial_budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A contender's runs as figures."""

    name: str
    runs: tuple[Run, ...]
    best: Floats
    """Best R so far, shape (runs, trials)."""
    ended_s: Floats
    """Wall time at which each trial ended, shape (runs, trials)."""

    def best_at(self, mark: Mark) -> Floats:
        """Return the best R of each run at a mark, shape (runs,)."""
        if mark.unit is Unit.TRIALS:
            return self.best[:, int(mark.at) - 1]
        return self.best_at_times(np.asarray([mark.at]))[:, 0]

    def best_at_times(self, times_s: Floats) -> Floats:
        """Return the best R so far at given times, 0 before the first trial has ended, shape (runs, times)."""
        done = (np.searchsorted(ended_s, times_s, side="right") for ended_s in self.ended_s)
        return np.stack([np.concatenate([[0.0], row])[count] for row, count in zip(self.best, done, strict=True)])

    def area_at_times(self, times_s: Floats) -> Floats:
        """Return the mean of the best R so far from 0 to given times (the first 0), shape (runs, times)."""
        areas = np.zeros((len(self.runs), len(times_s)))
        for area, row, ended_s in zip(areas, self.best, self.ended_s, strict=True):
            gains = np.diff(row, prepend=0.0)  # each adds to the area from its trial's end on
            gained = np.clip(times_s[1:, None] - ended_s[None, :], 0.0, None) @ gains
            area[1:] = gained / np.maximum(times_s[1:], np.finfo(float).tiny)
        return areas


def compare(contenders: Sequence[Contender], *, trial_budget: int, objective: Objective, seed: int = 0) -> Comparison:
    """Compare searchers after equally many executed trials, failed ones counted, and after equal wall time.

    Args:
        contenders: each with at least one run; runs of the same workload and seed are paired.
        trial_budget: how many trials of each run count; the shortest run's, where it has fewer.
        objective: scores every trial anew, against one reference for all runs of a workload.
        seed: of the resampling.

    Raises:
        StudyError: when names repeat, a contender has no executed trial, seeds of a contender repeat, the contenders
            ran different workloads, or runs of one workload started from different configurations.
    """
    notes: list[str] = []
    entered = [_entered(contender, notes) for contender in contenders]
    _refuse_unlike(entered)
    runs = [run for contender in entered for run in contender.runs]
    workloads = list(dict.fromkeys(run.workload for run in runs))
    references = {name: common_reference([run for run in runs if run.workload == name]) for name in workloads}
    budget = _equal_budget(entered, trial_budget, notes)
    notes[:0] = [
        _references_in_words(runs, references),
        "Searchers are compared by the scores of their own searches, from one run a trial; finals have no part here.",
        *_time_in_words(runs),
    ]
    generator = np.random.default_rng(seed)
    entries = [_figures(contender, budget, objective, references) for contender in entered]
    until_s = min(float(entry.ended_s[:, -1].min()) for entry in entries)
    tested = marks(budget, until_s)
    times_s = [0.0, *np.linspace(0.0, until_s, _TIME_POINTS), *(m.at for m in tested if m.unit is Unit.SECONDS)]
    by_name = {entry.name: _standing(entry, np.unique(times_s), generator) for entry in entries}
    entries.sort(key=lambda entry: -by_name[entry.name].final.value)
    return Comparison(
        objective=objective,
        references=references,
        trial_budget=budget,
        time_budget_s=until_s,
        standings=tuple(by_name[entry.name] for entry in entries),
        duels=_duels(entries, tested, generator),
        is_simulated=any(_is_simulated(trial) for run in runs for trial in run.executed),
        notes=tuple(notes),
    )


def doubling(trial_budget: int, *, first: int = 1) -> list[int]:
    """Return first, twice that, four times that, ... and the budget itself."""
    counts = [first * 2**power for power in range(trial_budget.bit_length()) if first * 2**power < trial_budget]
    return [*counts, trial_budget]


def marks(trial_budget: int, time_budget_s: float) -> list[Mark]:
    """Return where contenders are tested: after 2, 4, 8, ... trials, and after the same shares of the wall time.

    Not after the first trial, which is the starting configuration in every run.
    """
    after = doubling(trial_budget, first=2)
    times_s = [time_budget_s * trials / trial_budget for trials in after] if time_budget_s else []
    return [*(Mark(unit=Unit.TRIALS, at=n) for n in after), *(Mark(unit=Unit.SECONDS, at=time) for time in times_s)]


def _entered(contender: Contender, notes: list[str]) -> Contender:
    """Return a contender without its runs that executed nothing, in order."""
    found = (run for run in contender.runs if run.executed)
    runs = tuple(sorted(found, key=lambda run: (run.workload, run.seed)))
    if not runs:
        raise StudyError(f"{contender.name}: none of its {len(contender.runs)} studies has executed a trial; run them")
    for workload in dict.fromkeys(run.workload for run in runs):
        seeds = [run.seed for run in runs if run.workload == workload]
        if len(set(seeds)) != len(seeds):
            raise StudyError(f"{contender.name}: got seeds {seeds}; each may appear once, or one run counts twice")
    if len(runs) < len(contender.runs):
        notes.append(f"{contender.name}: {len(contender.runs) - len(runs)} of its studies executed no trial: left out.")
    return replace(contender, runs=runs)


def _refuse_unlike(contenders: Sequence[Contender]) -> None:
    names = [contender.name for contender in contenders]
    if not names or len(set(names)) != len(names):
        raise StudyError(f"contenders: got {names or 'none'}; give at least one, each with a name of its own")
    workloads = {contender.name: sorted({run.workload for run in contender.runs}) for contender in contenders}
    for name, ran in workloads.items():
        if ran != workloads[names[0]]:
            raise StudyError(
                f"{names[0]} ran {', '.join(workloads[names[0]])}, and {name} ran {', '.join(ran)}; "
                "compare studies of the same workloads"
            )
    for workload in workloads[names[0]]:
        starts = {
            trial.config_hash: contender.name
            for contender in contenders
            for run in contender.runs
            for trial in run.executed
            if trial.is_baseline and run.workload == workload
        }
        if len(starts) > 1:
            raise StudyError(
                f"the studies of {' and '.join(sorted(set(starts.values())))} start from {len(starts)} different "
                "configurations, so their R means different things; compare studies of one campaign"
            )


def _equal_budget(contenders: Sequence[Contender], trial_budget: int, notes: list[str]) -> int:
    lengths = [(len(run.executed), c.name, run) for c in contenders for run in c.runs]
    shortest, name, run = min(lengths, key=lambda item: item[0])
    if shortest < trial_budget:
        of = f" on {run.workload}" if run.workload else ""
        notes.append(
            f"Compared over {shortest} of {trial_budget} trials, because the run of {name} with seed {run.seed}{of} "
            "has no more; finish it, or leave it out."
        )
    return min(shortest, trial_budget)


def _references_in_words(runs: Sequence[Run], references: Mapping[str, Reference]) -> str:
    measured = [t for run in runs for t in run.executed if t.is_baseline and t.measurement is not None]
    what = (
        f"the median of {len(measured)} measurements of the starting configuration, pooled over all studies"
        if measured
        else "the median over studies of the first trial that could be measured, since no baseline could"
    )
    whose = "one common reference" if len(references) == 1 else f"one reference for each of {len(references)} workloads"
    idle = [name for name, reference in references.items() if reference.convergence_per_second is None]
    learnt = "; it did not learn, so convergence counts 0 for every trial" if idle else ""
    where = f" (on {', '.join(idle)})" if idle and len(references) > 1 else ""
    return (
        f"Every R here is relative to {whose}, {what}{learnt}{where}. A study's own R divides by its own "
        "baseline, whose noise would favour some runs."
    )


def _time_in_words(runs: Sequence[Run]) -> list[str]:
    if all(run.replay_slots is None for run in runs):
        return []
    said = "No trial ran here: seconds are those that trials say they took, and what searchers took to propose them"
    free = "; simulated trials that fail take no time" if any(map(_is_simulated, runs[0].executed)) else ""
    return [f"{said}{free}."]


def _is_simulated(trial: Trial) -> bool:
    return trial.measurement is not None and trial.measurement.versions.get("evaluator") == "simulated"


def _figures(contender: Contender, budget: int, objective: Objective, references: Mapping[str, Reference]) -> _Entry:
    runs = contender.runs
    return _Entry(
        name=contender.name,
        runs=runs,
        best=np.stack([best_so_far(run, objective, references[run.workload])[:budget] for run in runs]),
        ended_s=np.stack([elapsed_s(run)[:budget] for run in runs]),
    )


def _standing(entry: _Entry, times_s: Floats, generator: np.random.Generator) -> Standing:
    runs, best, budget = entry.runs, entry.best, entry.best.shape[1]
    strata = [run.workload for run in runs]
    trials = np.arange(1.0, budget + 1)

    def curve(at: Floats, best: Floats, area: Floats) -> Curve:
        return Curve(
            at=tuple(at.tolist()),
            best=tuple(interquartile_means(best, generator, strata=strata)),
            area=tuple(interquartile_means(area, generator, strata=strata)),
        )

    thought = [taken for taken in (searcher_s(run, budget) for run in runs) if taken is not None]
    ends = {name: best[[run.workload == name for run in runs], -1:] for name in dict.fromkeys(strata)}
    return Standing(
        name=entry.name,
        finals=tuple(
            Final(workload=run.workload, seed=run.seed, best=float(end))
            for run, end in zip(runs, best[:, -1], strict=True)
        ),
        by_trials=curve(trials, best, np.cumsum(best, axis=1) / trials),
        by_seconds=curve(times_s, entry.best_at_times(times_s), entry.area_at_times(times_s)),
        by_workload={name: interquartile_means(end, generator)[0] for name, end in ends.items()},
        failed_count=float(np.mean([failed_count(run, budget) for run in runs])),
        failed_s=float(np.mean([failed_s(run, budget) for run in runs])),
        pruned_count=float(np.mean([pruned_count(run, budget) for run in runs])),
        duplicate_count=float(np.mean([duplicate_count(run, budget) for run in runs])),
        seconds=float(np.median(entry.ended_s[:, -1])),
        searcher_s=float(np.mean(thought)) if thought else None,
    )


def _duels(entries: Sequence[_Entry], tested: Sequence[Mark], generator: np.random.Generator) -> tuple[Duel, ...]:
    """Return every pair at every mark, by mark.

    A pair's p-values are corrected for its marks (Westfall and Young), and all of them for the pairs (Bonferroni).
    """
    pairs = list(combinations(entries, 2))
    by_pair = [list(_duels_of_pair(one, other, tested, len(pairs), generator)) for one, other in pairs]
    return tuple(duels[position] for position in range(len(tested)) for duels in by_pair)


def _duels_of_pair(
    one: _Entry, other: _Entry, tested: Sequence[Mark], pair_count: int, generator: np.random.Generator
) -> Iterator[Duel]:
    of_one, of_other = ({(run.workload, run.seed): i for i, run in enumerate(e.runs)} for e in (one, other))
    common = [key for key in of_one if key in of_other]
    firsts, seconds = (np.stack([entry.best_at(mark) for mark in tested], axis=1) for entry in (one, other))
    differences = firsts[[of_one[key] for key in common]] - seconds[[of_other[key] for key in common]]
    p_values = paired_p_values(differences, generator)
    workloads = dict.fromkeys(run.workload for run in one.runs)
    rows = [[np.asarray([run.workload == name for run in e.runs]) for name in workloads] for e in (one, other)]
    for position, mark in enumerate(tested):
        first, second = firsts[:, position], seconds[:, position]
        yield Duel(
            first=one.name,
            second=other.name,
            mark=mark,
            probability=probability_of_improvement(
                [(first[ours], second[theirs]) for ours, theirs in zip(*rows, strict=True)]
            ),
            difference=float(differences[:, position].mean()) if common else None,
            pair_count=len(common),
            p_value=min(1.0, pair_count * p_values[position]),
        )
