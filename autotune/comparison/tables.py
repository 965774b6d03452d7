"""A comparison's tables as data, and the same as plain rows for JSON and CSV."""

from __future__ import annotations

from typing import Any

from autotune.comparison import wording
from autotune.comparison.contest import Comparison
from autotune.comparison.statistics import Estimate
from autotune.report import units
from autotune.report.tables import Table


def standings(comparison: Comparison) -> Table:
    """Return the contenders, the best at the end first."""
    rows = tuple(
        (
            standing.name,
            str(len(standing.seeds)),
            _text(standing.final),
            _text(standing.area),
            f"{standing.failed_count:.1f}",
            f"{standing.pruned_count:.1f}",
            f"{standing.duplicate_count:.1f}",
            units.seconds(standing.seconds),
        )
        for standing in comparison.standings
    )
    what_happened = ("Failed", "Pruned", "Repeated", "Wall time")
    columns = ("Searcher", "Seeds", "Best R at the end", "Mean best R so far", *what_happened)
    return Table(columns=columns, rows=rows, figures=frozenset(range(1, 8)))


def duels(comparison: Comparison, *, last_only: bool = False) -> Table:
    """Return every pair after every budget that was tested, or after the last of them only."""
    last = max((duel.trials for duel in comparison.duels), default=0)
    rows = tuple(
        (
            str(duel.trials),
            f"{duel.first} over {duel.second}",
            _share(duel.probability),
            units.DASH if duel.difference is None else f"{duel.difference:+.3f}",
            str(duel.pair_count),
            f"{duel.p_value:.3f}" if duel.pair_count > 1 else units.DASH,
            "yes" if wording.is_shown(duel) else "no",
        )
        for duel in comparison.duels
        if duel.trials == last or not last_only
    )
    columns = ("Trials", "Pair", "Chance to be better", "Difference in R", "Pairs", "p (Holm)", "Shown")
    return Table(columns=columns, rows=rows, figures=frozenset({0, 2, 3, 4, 5}))


def by_trials(comparison: Comparison, *, with_intervals: bool = True) -> Table:
    """Return the best R so far after 1, 2, 4, 8, ... trials, a column for each contender."""
    said = _text if with_intervals else _value
    after = [2**power for power in range(comparison.trial_budget.bit_length()) if 2**power < comparison.trial_budget]
    rows = tuple(
        (str(trials), *(said(standing.by_trials.best[trials - 1]) for standing in comparison.standings))
        for trials in (*after, comparison.trial_budget)
    )
    columns = ("Trials", *(standing.name for standing in comparison.standings))
    return Table(columns=columns, rows=rows, figures=frozenset(range(len(columns))))


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one plain mapping for each contender and number of trials, for JSON and CSV."""
    return [
        {
            "searcher": standing.name,
            "seeds": len(standing.seeds),
            "trials": int(trials),
            "best_R": best.value,
            "best_R_low": best.low,
            "best_R_high": best.high,
            "is_final": int(trials) == comparison.trial_budget,
            "failed_per_run": standing.failed_count,
            "pruned_per_run": standing.pruned_count,
            "duplicates_per_run": standing.duplicate_count,
            "seconds_per_run": standing.seconds,
        }
        for standing in comparison.standings
        for trials, best in zip(standing.by_trials.at, standing.by_trials.best, strict=True)
    ]


def _text(estimate: Estimate) -> str:
    return wording.estimate(estimate.value, estimate.low, estimate.high)


def _value(estimate: Estimate) -> str:
    return wording.estimate(estimate.value, None, None)


def _share(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return units.percent(estimate.value)
    return f"{units.percent(estimate.value)} ({units.percent(estimate.low)} to {units.percent(estimate.high)})"
