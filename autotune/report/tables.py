"""A report's tables as data: what the HTML page and the Markdown text both show."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.remeasuring import LEVEL
from autotune.report import finalists, units
from autotune.report.changes import changed
from autotune.report.effect import effects
from autotune.report.findings import FAILURES_IN_WORDS, ValidationLike, r_of
from autotune.report.pareto_set import pareto
from autotune.report.summary import StudySummary
from autotune.report.thinning import LISTED_REASONS, NAMED_TRIALS
from autotune.trials import FailureKind, Measurement, Stage, Trial, TrialState

STEP_PARTS = ("forward", "backward", "optimizer", "communication")
_STAGES = (*Stage, "cleanup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts under columns; figures are set to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: frozenset[int] = field(default_factory=frozenset)
    """Positions of the columns that hold figures."""
    sort_keys: tuple[tuple[float | str, ...], ...] = ()
    """For each row what each of its cells sorts by; empty: by its text."""


def against_baseline(summary: StudySummary) -> Table | None:
    """Return the figures of the user's own configuration beside the best one's; None while there is no best.

    Where the best is the user's own, its figures stand alone.
    """
    best, baseline = summary.best, summary.baseline
    if best is None:
        return None
    start, top = baseline.measurement if baseline else None, best.measurement
    source = top.loss_source.capitalize() if top else ""
    rows = [
        (
            name.format(loss=source),
            _read(start, read, text),
            _read(top, read, text),
            _ratio(start, top, read),
        )
        for name, read, text in _FIGURES
        if any(figures is not None and read(figures) is not None for figures in (start, top))
    ]
    rows.append(("R", units.score(baseline.score if baseline else None), units.score(best.score), ""))
    columns: tuple[str, ...] = ("", "Your start", f"Best (trial {best.number})", "Best / start")
    if best.is_baseline:
        return Table(columns=columns[:2], rows=tuple(row[:2] for row in rows), figures=frozenset({1}))
    return Table(columns=columns, rows=tuple(rows), figures=frozenset({1, 2, 3}))


def changed_settings(summary: StudySummary) -> Table | None:
    """Return what the best configuration sets differently from the user's; None when there is nothing to compare."""
    best, baseline = summary.best, summary.baseline
    if best is None or baseline is None or best.is_baseline:
        return None
    rows = [(change.name, change.before, change.after) for change in changed(baseline, best, summary.space)]
    return Table(columns=("Setting", "Your start", "Best"), rows=tuple(rows), figures=frozenset({1, 2}))


def trials(summary: StudySummary) -> Table:
    """Return every trial, by number."""
    names = summary.space.names
    front = {trial.number for trial in pareto(summary.finished)}
    rows, keys = [], []
    for trial in summary.trials:
        measurement = trial.measurement
        rows.append(
            (
                str(trial.number),
                _state(trial, summary),
                r_of(trial),
                units.number(measurement.samples_per_second if measurement else None),
                units.number(measurement.convergence_per_second if measurement else None),
                units.memory(_peak(measurement)),
                "yes" if trial.number in front else "",
                *(units.setting(trial.point[name]) if name in trial.point else units.DASH for name in names),
            )
        )
        keys.append(
            (
                trial.number,
                _state(trial, summary),
                _key(trial.score),
                _key(measurement.samples_per_second if measurement else None),
                _key(measurement.convergence_per_second if measurement else None),
                _key(_peak(measurement)),
                float(trial.number not in front),
                *(_key(trial.point.get(name)) for name in names),
            )
        )
    columns = ("Trial", "State", "R", "Samples/s", "Loss drop/s", "Peak memory", "Pareto", *names)
    return Table(columns=columns, rows=tuple(rows), figures=frozenset({0, 2, 3, 4, 5}), sort_keys=tuple(keys))


def failures(summary: StudySummary) -> dict[str, Table]:
    """Return the failed trials by kind in words, the most frequent kind first; trials with one reason share a row."""
    by_kind: dict[FailureKind, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
    for trial in summary.trials:
        if trial.failure is not None:
            stage = str(trial.failure.stage or units.DASH).replace("_", " ")
            by_kind[trial.failure.kind][trial.failure.reason, stage].append(trial.number)
    tables = {}
    for kind, reasons in sorted(by_kind.items(), key=lambda item: (-sum(map(len, item[1].values())), item[0])):
        amount = sum(map(len, reasons.values()))
        frequent = sorted(reasons.items(), key=lambda item: -len(item[1])) if len(reasons) > LISTED_REASONS else None
        shown = frequent[:LISTED_REASONS] if frequent else list(reasons.items())
        rows = [(reason, stage, _named(numbers)) for (reason, stage), numbers in shown]
        if frequent:
            left = frequent[LISTED_REASONS:]
            trials_left = units.count(sum(len(numbers) for _, numbers in left), "trial")
            rows.append((f"{units.count(len(left), 'other reason')}, each less frequent", units.DASH, trials_left))
        title = f"{FAILURES_IN_WORDS[kind].capitalize()} ({units.count(amount, 'trial')})"
        tables[title] = Table(columns=("Reason", "Stage", "Trials"), rows=tuple(rows))
    return tables


def pruned(summary: StudySummary) -> Table | None:
    """Return the trials that were ended early, and why; None where none was."""
    rows = [
        (str(trial.number), r_of(trial), trial.outcome.pruned)
        for trial in summary.pruned
        if trial.outcome is not None and trial.outcome.pruned is not None
    ]
    return Table(columns=("Trial", "R", "Why"), rows=tuple(rows), figures=frozenset({0, 1})) if rows else None


def _named(numbers: Sequence[int]) -> str:
    named = ", ".join(str(number) for number in numbers[:NAMED_TRIALS])
    return named if len(numbers) <= NAMED_TRIALS else f"{named}, ... ({len(numbers):,} in all)"


def level_effects(summary: StudySummary) -> Table:
    """Return R by level of every dimension, the dimension that explains most first."""
    rows = [
        (
            effect.dimension.name,
            units.setting(level.level),
            units.score(level.mean),
            units.score(max(level.scores, default=None)),
            str(len(level.scores)),
            str(level.failed_count),
            units.percent(effect.explained),
        )
        for effect in effects(summary)
        for level in effect.levels
        if level.scores or level.failed_count
    ]
    return Table(
        columns=("Dimension", "Level", "Mean R", "Best R", "With R", "Failed", "Explains"),
        rows=tuple(rows),
        figures=frozenset(range(1, 7)),
    )


def step_times(summary: StudySummary) -> Table | None:
    """Return where one training step's time goes, baseline and best; None where it was not measured."""
    shown = [("Your start", summary.baseline), ("Best", summary.best)]
    rows = []
    for name, trial in shown:
        measurement = trial.measurement if trial else None
        if measurement is None or all(getattr(measurement, f"{part}_s") is None for part in STEP_PARTS):
            continue
        parts = (units.seconds(getattr(measurement, f"{part}_s")) for part in STEP_PARTS)
        rows.append((name, *parts, units.seconds(measurement.step_time_s)))
    columns = ("", *(part.capitalize() for part in STEP_PARTS), "Whole step (median)")
    return Table(columns=columns, rows=tuple(rows), figures=frozenset(range(1, 6))) if rows else None


def stage_times(summary: StudySummary) -> Table | None:
    """Return where the wall time of the trials went, by stage; None where it was not measured."""
    totals = stage_seconds(summary)
    whole_s = sum(totals.values())
    if not whole_s:
        return None
    rows = tuple(
        (stage.replace("_", " "), units.seconds(total), units.percent(total / whole_s))
        for stage, total in totals.items()
    )
    return Table(columns=("Stage", "All trials", "Share"), rows=rows, figures=frozenset({1, 2}))


def stage_seconds(summary: StudySummary) -> dict[str, float]:
    """Return the wall seconds of all finished trials by stage, in the order in which a trial passes them."""
    totals: dict[str, float] = {str(stage): 0.0 for stage in _STAGES}
    for trial in summary.finished:
        for stage, time_s in (trial.outcome.stage_s if trial.outcome else {}).items():
            totals[stage] = totals.get(stage, 0.0) + time_s
    return {stage: total for stage, total in totals.items() if total > 0}


def finals(summary: StudySummary) -> Table | None:
    """Return a row for each finalist; None without finals."""
    held = summary.finals
    if held is None:
        return None
    in_search = {trial.number: trial.score for trial in summary.completed}
    rows = tuple(
        (
            finalists.name(held, each),
            str(each.changes),
            units.score(in_search.get(each.number)),
            " ".join(f"{figure:.2f}" for figure in each.scores) or units.DASH,
            finalists.score(each.score),
            units.DASH if each.number == held.leader else finalists.times(each.of_leader),
            finalists.verdict(held, each),
        )
        for each in held.finalists
    )
    columns = (
        "Finalist",
        "Changes",
        "R in search",
        "R by round",
        f"R run again ({units.percent(LEVEL)})",
        f"Over trial {held.leader}",
        "Verdict",
    )
    return Table(columns=columns, rows=rows, figures=frozenset({1, 2, 4, 5}))


def validated(validation: ValidationLike) -> Table:
    """Return what the search claimed beside what re-measuring found."""
    rows = tuple((ratio.name, units.times(ratio.claimed), ratio.words) for ratio in validation.ratios)
    return Table(
        columns=("Best / start", "Claimed by the search", "Measured again (95 % interval)"),
        rows=rows,
        figures=frozenset({1, 2}),
    )


def provenance(summary: StudySummary) -> Table:
    """Return what the figures come from."""
    hardware, objective = summary.hardware, summary.objective
    devices = f"{hardware.device_name} ({units.memory(hardware.device_memory_bytes)})"
    measured = summary.reference.measurement if summary.reference else None
    rows = [
        ("Study", summary.name),
        ("Searcher", summary.searcher),
        ("Evaluator", f"{summary.evaluator}{' (made-up figures)' if summary.evaluator == 'simulated' else ''}"),
        ("Workload", summary.workload),
        ("Objective", f"R = {objective.alpha:g} x throughput / start + {objective.beta:g} x convergence / start"),
        ("Space", f"{len(summary.space.dimensions)} dimensions, {summary.space.count:,} configurations"),
        ("Accelerator", f"{hardware.accelerator}: {hardware.device_count} x {devices}"),
        ("Ranks of a trial", str(hardware.ranks)),
        ("Host", f"{units.count(hardware.cpu_count, 'processor')}, {units.memory(hardware.host_memory_bytes)}"),
    ]
    if measured is not None:
        rows.append(("Compared at", f"{units.seconds(measured.convergence_time_s)} of training"))
        rows += [(f"Version of {name}", version) for name, version in sorted(measured.versions.items())]
    started = [trial.started_at for trial in summary.trials if trial.started_at]
    ended = [trial.finished_at for trial in summary.trials if trial.finished_at]
    if started:
        rows.append(("First trial began", f"{min(started):%Y-%m-%d %H:%M} UTC"))
    if ended:
        rows.append(("Last trial ended", f"{max(ended):%Y-%m-%d %H:%M} UTC"))
    return Table(columns=("", ""), rows=tuple(rows))


def _state(trial: Trial, summary: StudySummary) -> str:
    if summary.is_interrupted(trial):
        return "interrupted"
    if trial.failure is not None:
        return FAILURES_IN_WORDS[trial.failure.kind]
    if trial.state is TrialState.COMPLETE:
        return "your start" if trial.is_baseline else "complete"
    return trial.state.lower()


def _key(value: float | str | None) -> float | str:
    """What a cell sorts by: cells without a figure come last in both text and number columns."""
    return "" if value is None else float(value) if isinstance(value, int | float) else value


def _peak(measurement: Measurement | None) -> float | None:
    return max(measurement.peak_memory_bytes, default=None) if measurement else None


_Read = Callable[[Measurement], float | None]
_FIGURES: Sequence[tuple[str, _Read, Callable[[float | None], str]]] = (
    ("Throughput, samples/s", lambda m: m.samples_per_second, units.number),
    ("Tokens/s", lambda m: m.tokens_per_second, units.number),
    ("Step time (median)", lambda m: m.step_time_s, units.seconds),
    ("Samples per step", lambda m: m.samples_per_step, units.number),
    ("Convergence, loss drop/s", lambda m: m.convergence_per_second, units.number),
    ("{loss} loss after the same time", lambda m: m.held_out_loss_after, units.number),
    ("Peak memory of a rank", _peak, units.memory),
    ("Spread of step times", lambda m: m.samples_per_second_spread, units.percent),
    ("Median step known within", lambda m: m.step_time_interval, units.percent),
)


def _read(measurement: Measurement | None, read: _Read, text: Callable[[float | None], str]) -> str:
    return text(read(measurement) if measurement else None)


def _ratio(one: Measurement | None, other: Measurement | None, read: _Read) -> str:
    before, after = read(one) if one else None, read(other) if other else None
    if before is None or after is None or before <= 0 or not math.isfinite(after / before):
        return units.DASH
    return units.times(after / before)
