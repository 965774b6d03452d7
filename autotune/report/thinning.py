"""Thinning: what a report shows of a study of many trials, so that its page still opens in a browser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from autotune.report import units
from autotune.report.pareto_set import pareto
from autotune.report.summary import StudySummary
from autotune.storage import command
from autotune.trials import Trial

DRAWN_TRIALS = 500
"""Completed trials in a chart, and as many failed ones, beside those that stand out."""
LINES = 300
"""Trials in the chart of parallel coordinates, each of which crosses all of it."""
LISTED_TRIALS = 200
"""Trials in a table, beside those that stand out."""
LISTED_REASONS = 50
"""Rows of a table of failures."""
NAMED_TRIALS = 20
"""Trials that one cell names."""
DOTS = 100
"""Dots on the track of a level."""

_Item = TypeVar("_Item")


def spread(items: Sequence[_Item], limit: int) -> list[_Item]:
    """Return at most `limit` items in their order, evenly spaced, the first and the last among them."""
    if len(items) <= limit:
        return list(items)
    return [items[round(place * (len(items) - 1) / (limit - 1))] for place in range(limit)]


def drawn(summary: StudySummary) -> StudySummary:
    """Return the summary with the trials that charts draw: some evenly spread, and each that stands out.

    Those are the user's own, the reference, every one that was the best when it ended, and the Pareto set.
    """
    completed, failed = summary.completed, summary.failed
    if len(completed) <= DRAWN_TRIALS and len(failed) <= DRAWN_TRIALS:
        return summary
    ended = [(trial.finished_at, trial.number, trial) for trial in completed if trial.finished_at is not None]
    by_end = [trial for _, _, trial in sorted(ended, key=lambda item: item[:2])]
    chosen = [
        *spread(completed, DRAWN_TRIALS),
        *spread(failed, DRAWN_TRIALS),
        *_standing_out(summary),
        *_new_bests(completed),
        *_new_bests(by_end),
    ]
    return _with_trials(summary, chosen)


def listed(summary: StudySummary) -> StudySummary:
    """Return the summary with the trials that a table lists: those of the highest R, and each that stands out."""
    if len(summary.trials) <= LISTED_TRIALS:
        return summary
    best = sorted(summary.completed, key=lambda trial: (-(trial.score or 0.0), trial.number))[:LISTED_TRIALS]
    return _with_trials(summary, [*best, *_standing_out(summary)])


def drawn_in_words(summary: StudySummary) -> str:
    """Return what the charts leave out, as a sentence; nothing where they draw all."""
    count = len(drawn(summary).finished)
    if count == len(summary.finished):
        return ""
    return (
        f"Drawn are {count:,} of {units.count(len(summary.finished), 'trial')}: evenly spread ones, your start, the "
        f"Pareto set, and each that was the best when it ended."
    )


def listed_in_words(summary: StudySummary) -> str:
    """Return what the table of trials leaves out, as a sentence; nothing where it lists all."""
    count = len(listed(summary).trials)
    if count == len(summary.trials):
        return ""
    whole = command("trials", summary.name, "--format", "csv", url=summary.storage_url)
    return (
        f"Listed are {count:,} of {units.count(len(summary.trials), 'trial')}: those with the highest R, your start "
        f"and the Pareto set. All of them: {whole}"
    )


def _standing_out(summary: StudySummary) -> list[Trial]:
    single = (summary.baseline, summary.reference, summary.best)
    return [*(trial for trial in single if trial is not None), *pareto(summary.finished)]


def _new_bests(trials: Iterable[Trial]) -> list[Trial]:
    found: list[Trial] = []
    for trial in trials:
        if not found or (trial.score or 0.0) > (found[-1].score or 0.0):
            found.append(trial)
    return found


def _with_trials(summary: StudySummary, trials: Iterable[Trial]) -> StudySummary:
    chosen = {trial.number: trial for trial in trials}
    return replace(summary, trials=tuple(chosen[number] for number in sorted(chosen)))
