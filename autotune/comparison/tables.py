"""A comparison's tables as data, and the same as plain rows for JSON and CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotune.comparison import wording
from autotune.comparison.contest import Comparison, Curve, Mark, Standing, Unit, doubling
from autotune.comparison.statistics import Estimate
from autotune.report import units
from autotune.report.tables import Table


def standings(comparison: Comparison) -> Table:
    """Return the contenders, the best at the end first."""
    rows = tuple(
        (
            standing.name,
            str(len(standing.finals)),
            wording.estimate(standing.final),
            wording.estimate(standing.area),
            f"{standing.failed_count:.1f}",
            units.seconds(standing.failed_s),
            f"{standing.pruned_count:.1f}",
            f"{standing.duplicate_count:.1f}",
            units.seconds(standing.searcher_s),
            units.seconds(standing.seconds),
        )
        for standing in comparison.standings
    )
    spent = ("Failed", "Time in failures", "Pruned", "Repeated", "Searcher, per trial", "Wall time")
    columns = ("Searcher", "Runs", "Best R at the end", "Mean best R so far", *spent)
    return Table(columns=columns, rows=rows, figures=frozenset(range(1, len(columns))))


def duels(comparison: Comparison, *, last_only: bool = False) -> Table:
    """Return every pair at every budget that was tested, or after all trials only."""
    rows = tuple(
        (
            wording.mark_in_words(duel.mark).removeprefix("after "),
            f"{duel.first} over {duel.second}",
            wording.share(duel.probability),
            units.DASH if duel.difference is None else f"{duel.difference:+.3f}",
            str(duel.pair_count),
            f"{duel.p_value:.3f}" if duel.pair_count > 1 else units.DASH,
            "yes" if wording.is_shown(duel) else "no",
        )
        for duel in comparison.duels
        if duel.mark == comparison.last_mark or not last_only
    )
    columns = ("After", "Pair", "Chance", "Difference", "Pairs", "p", "Shown")
    return Table(columns=columns, rows=rows, figures=frozenset({0, 2, 3, 4, 5}))


def by_trials(comparison: Comparison, *, with_intervals: bool = True) -> Table:
    """Return the best R so far after 1, 2, 4, 8, ... trials, a column for each contender."""
    said = wording.estimate if with_intervals else _value
    return _at_marks(comparison, "Trials", _trial_marks(comparison), _best, said)


def area_by_trials(comparison: Comparison) -> Table:
    """Return the mean of the best R so far up to 1, 2, 4, 8, ... trials, a column for each contender."""
    return _at_marks(comparison, "Trials", _trial_marks(comparison), _area, wording.estimate)


def by_seconds(comparison: Comparison) -> Table:
    """Return the best R so far at equal wall times, a column for each contender; no rows without times."""
    times = [mark for mark in comparison.marks if mark.unit is Unit.SECONDS]
    return _at_marks(comparison, "Wall time", times, _best, wording.estimate)


def area_by_seconds(comparison: Comparison) -> Table:
    """Return the mean of the best R so far up to equal wall times; no rows without times."""
    times = [mark for mark in comparison.marks if mark.unit is Unit.SECONDS]
    return _at_marks(comparison, "Wall time", times, _area, wording.estimate)


def by_workload(comparison: Comparison) -> Table:
    """Return the best R at the end on each workload, a column for each contender; no rows where there is one."""
    names = list(comparison.references) if len(comparison.references) > 1 else []
    rows = tuple(
        (name, *(wording.estimate(standing.by_workload[name]) for standing in comparison.standings)) for name in names
    )
    columns = ("Workload", *(standing.name for standing in comparison.standings))
    return Table(columns=columns, rows=rows, figures=frozenset(range(1, len(columns))))


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one plain mapping for each contender and budget (each trial, marks of wall time), for JSON and CSV."""
    marks = [Mark(unit=Unit.TRIALS, at=trials) for trials in range(1, comparison.trial_budget + 1)]
    marks += [mark for mark in comparison.marks if mark.unit is Unit.SECONDS]
    return [_row(comparison, standing, mark) for standing in comparison.standings for mark in marks]


def _row(comparison: Comparison, standing: Standing, mark: Mark) -> dict[str, Any]:
    best, area = _best(standing, mark), _area(standing, mark)
    return {
        "searcher": standing.name,
        "runs": len(standing.finals),
        "workloads": len(comparison.references),
        "trials": int(mark.at) if mark.unit is Unit.TRIALS else None,
        "seconds": mark.at if mark.unit is Unit.SECONDS else None,
        "best_R": best.value,
        "best_R_low": best.low,
        "best_R_high": best.high,
        "mean_best_R": area.value,
        "mean_best_R_low": area.low,
        "mean_best_R_high": area.high,
        "is_final": mark == comparison.last_mark,
        "failed_per_run": standing.failed_count,
        "failed_s_per_run": standing.failed_s,
        "pruned_per_run": standing.pruned_count,
        "duplicates_per_run": standing.duplicate_count,
        "seconds_per_run": standing.seconds,
        "searcher_s_per_trial": standing.searcher_s,
    }


def _trial_marks(comparison: Comparison) -> list[Mark]:
    return [Mark(unit=Unit.TRIALS, at=trials) for trials in doubling(comparison.trial_budget)]


def _at_marks(
    comparison: Comparison,
    title: str,
    marks: Sequence[Mark],
    figure: Callable[[Standing, Mark], Estimate],
    said: Callable[[Estimate], str],
) -> Table:
    rows = tuple(
        (
            f"{mark.at:.0f}" if mark.unit is Unit.TRIALS else units.seconds(mark.at),
            *(said(figure(standing, mark)) for standing in comparison.standings),
        )
        for mark in marks
    )
    columns = (title, *(standing.name for standing in comparison.standings))
    return Table(columns=columns, rows=rows, figures=frozenset(range(len(columns))))


def _curve(standing: Standing, mark: Mark) -> Curve:
    return standing.by_trials if mark.unit is Unit.TRIALS else standing.by_seconds


def _best(standing: Standing, mark: Mark) -> Estimate:
    curve = _curve(standing, mark)
    return curve.best[curve.index(mark.at)]


def _area(standing: Standing, mark: Mark) -> Estimate:
    curve = _curve(standing, mark)
    return curve.area[curve.index(mark.at)]


def _value(figure: Estimate) -> str:
    return units.score(figure.value)
