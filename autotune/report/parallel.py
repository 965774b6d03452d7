"""The chart of parallel coordinates: a line for each trial over all dimensions and R, drawn without WebGL."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.report import units
from autotune.report.charts import BEST, START, Figure, described, layout, short_name
from autotune.report.summary import StudySummary
from autotune.report.thinning import LINES, spread
from autotune.space import Dimension
from autotune.trials import Trial, Value

SCALE = tuple(f"var(--scale-{step})" for step in range(6))
"""Colours from the lowest R to the highest."""
_FAN, _FAN_AT_MOST = 0.5, 0.12
"""Share of the distance between two levels, and of the axis, over which the trials at one level are fanned out."""
_LABEL_WIDTH = 13
"""Characters of a line of an axis' name."""


def parallel_coordinates(summary: StudySummary) -> Figure | None:
    """Return a line for each completed trial over the dimensions and R, coloured by R; best and start stand out."""
    trials = sorted((t for t in summary.completed if t.point), key=lambda trial: trial.score or 0.0)
    shown = {trial.number for trial in (*spread(trials, LINES), summary.baseline) if trial is not None}
    trials = [trial for trial in trials if trial.number in shown]
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
        "hovertext": [text for t in trials for text in [described(t)] * (len(paths[t.number]) + 1)],
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
