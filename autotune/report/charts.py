"""A report's charts, as plain Plotly figures (JSON data): no plotly is needed to build them.

Colours are names of the page's CSS variables (`var(--best)`), which the page replaces for its light or dark theme.
Texts are escaped, because Plotly reads tags in them.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autotune.report import units
from autotune.report.findings import FAILURES_IN_WORDS
from autotune.report.pareto_set import pareto
from autotune.report.summary import StudySummary
from autotune.report.tables import STEP_PARTS, stage_seconds
from autotune.space import Dimension
from autotune.trials import Trial, Value

Figure = dict[str, Any]

START, BEST, OTHER, FAILED = "var(--start)", "var(--best)", "var(--other)", "var(--failed)"
SCALE = tuple(f"var(--scale-{step})" for step in range(6))
"""Colours from the lowest R to the highest."""
_FAN, _FAN_AT_MOST = 0.5, 0.12
"""Share of the distance between two levels, and of the axis, over which the trials at one level are fanned out."""
_LABEL_WIDTH = 13
"""Characters of a line of an axis' name."""
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
    longest_s = max(elapsed_s.values(), default=0.0)
    unit_s, unit = next(
        (s, name) for s, name in ((3600, "hours"), (60, "minutes"), (1, "seconds")) if longest_s > 2 * s or s == 1
    )
    return _progress(summary, {number: s / unit_s for number, s in elapsed_s.items()}, f"Wall time, {unit}")


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
                "hovertext": [_described(trial) for trial in failed],
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


def parallel_coordinates(summary: StudySummary) -> Figure | None:
    """Return a line for each completed trial over the dimensions and R, coloured by R; best and start stand out."""
    trials = sorted((t for t in summary.completed if t.point), key=lambda trial: trial.score or 0.0)
    if len(trials) < 2:
        return None
    axes = [axis for axis in (_Axis.of(dimension, trials) for dimension in summary.space.dimensions) if axis]
    scores = [trial.score or 0.0 for trial in trials]
    span = scores[-1] - scores[0]
    paths = {
        trial.number: [*(axis.places[trial.number] for axis in axes), (score - scores[0]) / span if span else 0.5]
        for trial, score in zip(trials, scores, strict=True)
    }
    bins: list[list[Trial]] = [[] for _ in SCALE]
    for trial in trials:
        bins[min(len(SCALE) - 1, int(paths[trial.number][-1] * len(SCALE)))].append(trial)
    data = [
        _lines(alike, paths, name=None, color=color, width=1.3)
        for alike, color in zip(bins, SCALE, strict=True)
        if alike
    ]
    for name, special, color in (("your start", summary.baseline, START), ("best", summary.best, BEST)):
        if special is not None and special.number in paths:
            data.append(_lines([special], paths, name=name, color=color, width=3.5))
    names = [*(axis.label for axis in axes), "R"]
    ticks = [axis.ticks for axis in axes] + [[(0.0, units.score(scores[0])), (1.0, units.score(scores[-1]))]]
    upright: Figure = {"type": "line", "y0": 0, "y1": 1, "line": {"color": "var(--rule)", "width": 1}, "layer": "below"}
    return {
        "data": data,
        "layout": layout(
            height=430,
            margin={"l": 56, "r": 30, "t": 30, "b": 8},
            hovermode="closest",
            shapes=[{**upright, "x0": position, "x1": position} for position in range(len(names))],
            annotations=[
                _tick_label(position, place, text) for position, axis in enumerate(ticks) for place, text in axis
            ],
            xaxis={
                "tickvals": list(range(len(names))),
                "ticktext": names,
                "side": "top",
                "tickangle": 0,
                "showgrid": False,
                "range": [-0.15, len(names) - 0.85],
                "fixedrange": True,
            },
            yaxis={"visible": False, "range": [-0.11, 1.11], "fixedrange": True},
            legend={"orientation": "h", "x": 0, "y": -0.01, "yanchor": "top"},
        ),
    }


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
        "hovertext": [_described(trial) for trial in trials],
        "hoverinfo": "text",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """A dimension as an upright axis from 0 to 1: a place for each level tried, the lowest for 'has no effect'."""

    label: str
    ticks: list[tuple[float, str]]
    places: dict[int, float]
    """By number of trial; trials at one level are fanned out a little, in the order of their R."""

    @classmethod
    def of(cls, dimension: Dimension, trials: Sequence[Trial]) -> _Axis | None:
        """Return the axis; None where all trials are alike in it."""
        tried = {trial.point.get(dimension.name) for trial in trials}
        levels: list[Value | None] = [level for level in (None, *dimension.levels) if level in tried]
        if len(levels) < 2:
            return None
        fan = min(_FAN_AT_MOST, _FAN / (len(levels) - 1))
        places = {}
        for position, level in enumerate(levels):
            alike = [trial.number for trial in trials if trial.point.get(dimension.name) == level]
            for rank, number in enumerate(alike):
                places[number] = position / (len(levels) - 1) + fan * ((rank + 0.5) / len(alike) - 0.5)
        ticks = [
            (position / (len(levels) - 1), units.DASH if level is None else html.escape(units.short_setting(level)))
            for position, level in enumerate(levels)
        ]
        return cls(label=_in_lines(short_name(dimension.name)), ticks=ticks, places=places)


def _in_lines(name: str) -> str:
    """Return an escaped name broken after underscores, into lines that stand side by side."""
    lines = [""]
    for part in name.split("_"):
        if lines[-1] and len(lines[-1]) + len(part) > _LABEL_WIDTH:
            lines.append("")
        lines[-1] += f"{part}_"
    return "<br>".join(html.escape(line) for line in lines).removesuffix("_")


def _lines(
    trials: Sequence[Trial], paths: dict[int, list[float]], *, name: str | None, color: str, width: float
) -> Figure:
    """Return the paths of some trials as one series, with a gap after each."""
    ys = [y for trial in trials for y in (*paths[trial.number], None)]
    xs = [x for trial in trials for x in (*range(len(paths[trial.number])), None)]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "name": name or "",
        "showlegend": name is not None,
        "line": {"color": color, "width": width, "shape": "spline", "smoothing": 0.35},
        "hovertext": [text for t in trials for text in [_described(t)] * (len(paths[t.number]) + 1)],
        "hoverinfo": "text",
    }


def _tick_label(position: int, place: float, text: str) -> Figure:
    return {
        "x": position,
        "y": place,
        "text": text,
        "xanchor": "right",
        "xshift": -5,
        "showarrow": False,
        "font": {"size": 10},
        "bgcolor": "var(--card-veil)",
        "borderpad": 1,
    }


def _described(trial: Trial) -> str:
    lines = [f"<b>trial {trial.number}{' (your start)' if trial.is_baseline else ''}</b>"]
    measurement = trial.measurement
    if trial.failure is not None:
        reason = trial.failure.reason
        short = reason if len(reason) <= _REASON_LENGTH else f"{reason[:_REASON_LENGTH]}…"
        lines.append(html.escape(f"{FAILURES_IN_WORDS[trial.failure.kind]}: {short}"))
    if measurement is not None:
        lines.append(f"R {units.score(trial.score)}, {units.number(measurement.samples_per_second)} samples/s")
        lines.append(f"loss drop {units.number(measurement.convergence_per_second)}/s")
    lines += [html.escape(f"{short_name(name)} {units.setting(value)}") for name, value in trial.point.items()]
    return "<br>".join(lines)


def _has_convergence(summary: StudySummary) -> bool:
    return summary.reference is not None and summary.reference.convergence_ratio is not None
