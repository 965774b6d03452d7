"""A comparison's charts, as plain Plotly figures: curves with their intervals, and the runs' final figures."""

from __future__ import annotations

import html

from autotune.comparison.contest import Comparison, Curve
from autotune.report.charts import Figure, layout

_SERIES = 8
"""Colours that the page has for series; more contenders than that share them, told apart by the dashes."""
_DASHES = ("solid", "dash", "dot")


def by_trials(comparison: Comparison) -> Figure:
    """Return the best R so far after each trial."""
    return _curves({s.name: s.by_trials for s in comparison.standings}, "Executed trials")


def by_seconds(comparison: Comparison) -> Figure | None:
    """Return the best R so far over wall time; None where no time was recorded."""
    if not comparison.time_budget_s:
        return None
    return _curves({s.name: s.by_seconds for s in comparison.standings}, "Wall time, seconds")


def finals(comparison: Comparison) -> Figure:
    """Return each run's best R at the end, a row of dots for each contender, and the interval of their mean."""
    data = []
    for position, standing in enumerate(comparison.standings):
        color = f"var(--series-{position % _SERIES})"
        name = html.escape(standing.name)
        low, high = standing.final.low, standing.final.high
        hovers = [
            html.escape(
                ", ".join(filter(None, (standing.name, final.workload, f"seed {final.seed}: {final.best:.3f}")))
            )
            for final in standing.finals
        ]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [final.best for final in standing.finals],
                "y": [name] * len(standing.finals),
                "marker": {"color": color, "size": 9, "opacity": 0.45},
                "hovertext": hovers,
                "hoverinfo": "text",
            }
        )
        mean: Figure = {
            "type": "scatter",
            "mode": "markers",
            "x": [standing.final.value],
            "y": [name],
            "marker": {"color": color, "size": 13, "symbol": "line-ns", "line": {"color": color, "width": 3}},
            "hovertemplate": "interquartile mean %{x:.3f}<extra></extra>",
        }
        if low is not None and high is not None:
            arms = {"array": [high - standing.final.value], "arrayminus": [standing.final.value - low]}
            mean["error_x"] = {"type": "data", "symmetric": False, **arms, "color": color, "thickness": 2, "width": 0}
        data.append(mean)
    axes = {"xaxis": {"title": {"text": "Best R at the end"}}, "yaxis": {"autorange": "reversed", "type": "category"}}
    return {"data": data, "layout": layout(height=110 + 44 * len(comparison.standings), showlegend=False, **axes)}


def _curves(curves: dict[str, Curve], title: str) -> Figure:
    bands, lines = [], []
    for position, (name, curve) in enumerate(curves.items()):
        color, shown = f"var(--series-{position % _SERIES})", html.escape(name)
        if all(best.low is not None and best.high is not None for best in curve.best):
            bands.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": [*curve.at, *reversed(curve.at)],
                    "y": [*(best.high for best in curve.best), *(best.low for best in reversed(curve.best))],
                    "fill": "toself",
                    "fillcolor": color,
                    "opacity": 0.15,
                    "line": {"width": 0},
                    "legendgroup": shown,
                    "showlegend": False,
                    "hoverinfo": "skip",
                }
            )
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": shown,
                "x": list(curve.at),
                "y": [best.value for best in curve.best],
                "line": {"color": color, "width": 2.5, "dash": _DASHES[position // _SERIES % len(_DASHES)]},
                "legendgroup": shown,
                "hovertemplate": f"{shown}: %{{y:.3f}}<extra></extra>",
            }
        )
    axes = {"xaxis": {"title": {"text": title}}, "yaxis": {"title": {"text": "Best R so far"}}}
    return {"data": [*bands, *lines], "layout": layout(height=400, hovermode="x unified", **axes)}
