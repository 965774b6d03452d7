"""A report's charts, as plain Plotly figures (JSON data): no plotly is needed to build them.

Colours are names of the page's CSS variables (`var(--best)`), which the page replaces for its light or dark theme.
Texts are escaped, because Plotly reads tags in them.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from autotune.drift import noise_ratio
from autotune.report import units
from autotune.report.findings import FAILURES_IN_WORDS, r_of
from autotune.report.pareto_set import pareto
from autotune.report.summary import StudySummary
from autotune.report.tables import STEP_PARTS, stage_seconds
from autotune.trials import Trial

Figure = dict[str, Any]

START, BEST, OTHER, FAILED = "var(--start)", "var(--best)", "var(--other)", "var(--failed)"
_FONT = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
"""As the page's own."""
_STRIP = 0.075
"""Height of one row of failures, as a share of the chart."""
_REASON_LENGTH = 160
"""Characters of a reason that a hover text shows; the whole is in the table of failures."""


def layout(**changes: Any) -> Figure:
    """Return the layout that all charts share, with changes."""
    axis = {
        "automargin": True,
        "gridcolor": "var(--grid)",
        "linecolor": "var(--grid)",
        "zeroline": False,
        "title": {"font": {"size": 12}},
    }
    base: Figure = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "var(--text)", "size": 12, "family": _FONT},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "height": 340,
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hoverlabel": {"align": "left", "bgcolor": "var(--card)", "font": {"color": "var(--text)"}},
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }
    for key, value in changes.items():
        base[key] = {**base.get(key, axis if "axis" in key else {}), **value} if isinstance(value, dict) else value
    return base


def progress(summary: StudySummary) -> Figure | None:
    """Return every trial's R by number, the best so far, and the failures in rows below."""
    return _progress(summary, {trial.number: float(trial.number) for trial in summary.finished}, "Trial")


def progress_in_time(summary: StudySummary) -> Figure | None:
    """Return the same over wall time since the first trial began, pauses of the study included."""
    started = [trial.started_at for trial in summary.finished if trial.started_at]
    if not started:
        return None
    first: datetime = min(started)
    elapsed_s = {
        trial.number: (trial.finished_at - first).total_seconds() for trial in summary.finished if trial.finished_at
    }
    unit_s, unit = _unit(max(elapsed_s.values(), default=0.0))
    return _progress(summary, {number: s / unit_s for number, s in elapsed_s.items()}, f"Wall time, {unit}")


def _unit(longest_s: float) -> tuple[int, str]:
    """Return the unit in which an axis shows times, in seconds, and its name."""
    units_s = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
    return next((s, name) for s, name in units_s if longest_s > 2 * s or s == 1)


def _progress(summary: StudySummary, places: dict[int, float], title: str) -> Figure | None:
    completed = sorted((t for t in summary.completed if t.number in places), key=lambda trial: places[trial.number])
    failed = [trial for trial in summary.failed if trial.number in places]
    if len(completed) + len(failed) < 2:
        return None
    scores = [trial.score or 0.0 for trial in completed]
    best_so_far = list(itertools.accumulate(scores, max))
    xs = [places[trial.number] for trial in completed]
    end = max(places.values())
    kinds = list(dict.fromkeys(FAILURES_IN_WORDS[t.failure.kind] for t in failed if t.failure is not None))
    figure_layout = layout(xaxis={"title": {"text": title}, "anchor": "y2" if kinds else "y"})
    data: list[Figure] = []
    if completed:
        reference = summary.objective.alpha + (summary.objective.beta if _has_convergence(summary) else 0)
        data += [
            {
                "type": "scatter",
                "name": "reference",
                "mode": "lines",
                "x": [min(places.values()), end],
                "y": [reference, reference],
                "line": {"color": START, "dash": "dot", "width": 1.5},
                "hoverinfo": "skip",
            },
            {
                "type": "scatter",
                "name": "best so far",
                "mode": "lines",
                "x": [*xs, end],
                "y": [*best_so_far, best_so_far[-1]],
                "line": {"shape": "hv", "color": BEST, "width": 2.5},
                "hovertemplate": "best so far %{y:.3f}<extra></extra>",
            },
            _points(completed, xs, scores, "trials", color=OTHER, size=8),
        ]
    pruned = [trial for trial in summary.pruned if trial.number in places]
    if completed and pruned:
        estimates = [trial.score or 0.0 for trial in pruned]
        places_of_pruned = [places[trial.number] for trial in pruned]
        data.append(
            _points(pruned, places_of_pruned, estimates, "pruned (estimate)", color=OTHER, size=8, symbol="circle-open")
        )
    if kinds:
        share = min(0.4, _STRIP * len(kinds) + 0.03) if completed else 1.0
        if completed:
            figure_layout["yaxis"] |= {"domain": [share + 0.05, 1]}
        else:
            figure_layout |= {"height": 90 + 30 * len(kinds), "showlegend": False}
        figure_layout["yaxis2"] = {
            **figure_layout["yaxis"],
            "domain": [0, share],
            "type": "category",
            "range": [-0.6, len(kinds) - 0.4],
            "title": {"text": ""},
        }
        data.append(
            {
                "type": "scatter",
                "name": "failed",
                "mode": "markers",
                "x": [places[trial.number] for trial in failed],
                "y": [FAILURES_IN_WORDS[t.failure.kind] for t in failed if t.failure is not None],
                "yaxis": "y2",
                "marker": {"symbol": "x", "size": 8, "color": FAILED},
                "hovertext": [described(trial) for trial in failed],
                "hoverinfo": "text",
            }
        )
    figure_layout["yaxis"] |= {"title": {"text": "R"}}
    return {"data": data, "layout": figure_layout}


def trade_off(summary: StudySummary) -> Figure | None:
    """Return throughput against convergence speed, the Pareto set joined by a line."""
    measured = [trial for trial in summary.finished if trial.measurement is not None]
    if len(measured) < 2:
        return None
    front = pareto(measured)
    apart = {trial.number for trial in front} | ({summary.baseline.number} if summary.baseline else set())
    groups = [
        ("other trials", [trial for trial in measured if trial.number not in apart], {"color": OTHER, "size": 8}),
        ("Pareto set", front, {"color": BEST, "size": 10, "symbol": "diamond"}),
        ("your start", [t for t in measured if t.is_baseline], {"color": START, "size": 14, "symbol": "star"}),
    ]
    data = []
    for name, trials, marker in groups:
        if not trials:
            continue
        xs = [trial.measurement.samples_per_second for trial in trials if trial.measurement]
        ys = [trial.measurement.convergence_per_second for trial in trials if trial.measurement]
        points = _points(trials, xs, ys, name, **marker)
        if name == "Pareto set":
            points |= {"mode": "lines+markers", "line": {"color": BEST, "dash": "dot", "width": 1.5}}
        data.append(points)
    axes = {"xaxis": {"title": {"text": "Samples per second"}}, "yaxis": {"title": {"text": "Loss drop per second"}}}
    return {"data": data, "layout": layout(**axes)}


def steadiness(summary: StudySummary) -> Figure | None:
    """Return the throughput of the user's configuration each time it ran, over its first, by wall time."""
    baseline = summary.baseline
    if not summary.readings or baseline is None or baseline.measurement is None or baseline.finished_at is None:
        return None
    begun, first = baseline.finished_at, baseline.measurement.samples_per_second
    runs = [(r.at, r.result, f"after trial {r.after_trial}") for r in summary.readings]
    if summary.finals is not None and summary.finals.record.reference_is_baseline:
        record = summary.finals.record
        of_baseline = [run for run in record.runs if run.number == baseline.number]
        runs += [(run.at, run.result, f"finals, round {run.round}") for run in of_baseline]
    points = [(0.0, 1.0, f"trial {baseline.number}")]
    points += [
        ((datetime.fromisoformat(at) - begun).total_seconds(), result.samples_per_second / first, when)
        for at, result, when in runs
        if result.samples_per_second is not None
    ]
    unit_s, unit = _unit(max(elapsed_s for elapsed_s, _, _ in points))
    xs = [elapsed_s / unit_s for elapsed_s, _, _ in points]
    limit, end = noise_ratio(summary.rules.noise_floor), max(xs)
    edges = {"type": "scatter", "mode": "lines", "x": [0, end], "hoverinfo": "skip", "showlegend": False}
    line = {"color": OTHER, "dash": "dot", "width": 1}
    data: list[Figure] = [
        {**edges, "y": [limit, limit], "line": line, "name": "noise", "showlegend": True},
        {**edges, "y": [1 / limit, 1 / limit], "line": line},
        {
            "type": "scatter",
            "name": "your configuration",
            "mode": "lines+markers",
            "x": xs,
            "y": [speed for _, speed, _ in points],
            "line": {"color": START, "width": 1.5},
            "marker": {"color": START, "size": 8},
            "hovertext": [f"{when}: {units.times(speed)}" for _, speed, when in points],
            "hoverinfo": "text",
        },
    ]
    axes = {
        "xaxis": {"title": {"text": f"Wall time, {unit}"}},
        "yaxis": {"title": {"text": "Throughput over its first"}},
    }
    return {"data": data, "layout": layout(height=280, **axes)}


def step_times(summary: StudySummary) -> Figure | None:
    """Return the parts of a training step, the user's start beside the best."""
    data = []
    for name, trial, color in (("your start", summary.baseline, START), ("best", summary.best, BEST)):
        measurement = trial.measurement if trial else None
        times_s = [getattr(measurement, f"{part}_s", None) for part in STEP_PARTS]
        if all(time_s is None for time_s in times_s):
            continue
        data.append(_bars(name, list(STEP_PARTS), times_s, color))
    axes = {"xaxis": {"title": {"text": "Seconds of a training step"}}, "yaxis": {"autorange": "reversed"}}
    return {"data": data, "layout": layout(height=280, barmode="group", **axes)} if data else None


def stage_times(summary: StudySummary) -> Figure | None:
    """Return the wall time of all trials by stage."""
    totals = stage_seconds(summary)
    if not totals:
        return None
    stages = [stage.replace("_", " ") for stage in totals]
    axes = {"xaxis": {"title": {"text": "Seconds, all trials"}}, "yaxis": {"autorange": "reversed"}}
    bars = _bars("wall time", stages, list(totals.values()), OTHER)
    return {"data": [bars], "layout": layout(height=280, showlegend=False, **axes)}


def short_name(name: str) -> str:
    """Return a dimension's name without its block: 'zero_optimization.stage' -> 'stage'."""
    return name.rsplit(".", 1)[-1]


def described(trial: Trial) -> str:
    """Return a trial as the text that hovers over its mark."""
    lines = [f"<b>trial {trial.number}{' (your start)' if trial.is_baseline else ''}</b>"]
    measurement = trial.measurement
    if trial.failure is not None:
        reason = trial.failure.reason
        short = reason if len(reason) <= _REASON_LENGTH else f"{reason[:_REASON_LENGTH]}…"
        lines.append(html.escape(f"{FAILURES_IN_WORDS[trial.failure.kind]}: {short}"))
    if trial.outcome is not None and trial.outcome.pruned is not None:
        lines.append(f"R {r_of(trial)}, pruned")
    if measurement is not None:
        lines.append(f"R {units.score(trial.score)}, {units.number(measurement.samples_per_second)} samples/s")
        lines.append(f"loss drop {units.number(measurement.convergence_per_second)}/s")
    lines += [html.escape(f"{short_name(name)} {units.setting(value)}") for name, value in trial.point.items()]
    return "<br>".join(lines)


def _bars(name: str, labels: list[str], times_s: Sequence[float | None], color: str) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": labels,
        "x": list(times_s),
        "text": [units.seconds(time_s) for time_s in times_s],
        "textposition": "auto",
        "marker": {"color": color},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }


def _points(trials: Sequence[Trial], xs: list[float], ys: list[float], name: str, **marker: Any) -> Figure:
    return {
        "type": "scatter",
        "name": name,
        "mode": "markers",
        "x": xs,
        "y": ys,
        "marker": marker,
        "hovertext": [described(trial) for trial in trials],
        "hoverinfo": "text",
    }


def _has_convergence(summary: StudySummary) -> bool:
    return summary.reference is not None and summary.reference.convergence_ratio is not None
