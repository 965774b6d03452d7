"""Pictures of an estimate and a plan, as plain Plotly figures."""

from __future__ import annotations

import html
from collections.abc import Sequence

from autotune.planning import tables, wording
from autotune.planning.estimates import MEMORY_PARTS, TIME_PARTS, Estimates, Row
from autotune.planning.plans import Plan
from autotune.report import units
from autotune.report.charts import BEST, FAILED, Figure, layout

_SERIES = 8
"""Colours that the page has for series."""


def memory(found: Estimates) -> Figure:
    """Return memory by part, a bar for each stage and offload, with the device's capacity as a line."""
    unit, size = tables.memory_unit(found)
    names = [_name(row) for row in found.rows]
    data = [
        _bar(part, names, [row.memory_bytes[part] / size for row in found.rows], place, f" {unit}")
        for place, part in enumerate(MEMORY_PARTS)
    ]
    capacity = found.rows[0].capacity_bytes / size
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"what a device has, {capacity:,.0f} {unit}",
            "x": [capacity, capacity],
            "y": [names[0], names[-1]],
            "line": {"color": FAILED, "width": 2, "dash": "dash"},
            "hoverinfo": "skip",
        }
    )
    axes = {"xaxis": {"title": {"text": f"{unit} of one device at the peak"}}, "yaxis": {"autorange": "reversed"}}
    return {"data": data, "layout": layout(height=120 + 38 * len(names), barmode="stack", **axes)}


def time(found: Estimates) -> Figure | None:
    """Return the step by part, a bar for each row that fits; None where none does."""
    rows = found.fitting
    if not rows:
        return None
    names = [_name(row) for row in rows]
    data = [
        _bar(part, names, [row.time_s[part] for row in rows], place, " s")
        for place, part in enumerate(TIME_PARTS)
        if any(row.time_s[part] > 0 for row in rows)
    ]
    axes = {"xaxis": {"title": {"text": "Seconds of one optimizer step"}}, "yaxis": {"autorange": "reversed"}}
    return {"data": data, "layout": layout(height=120 + 38 * len(names), barmode="stack", **axes)}


def offers(found: Plan) -> Figure | None:
    """Return devices against days by device, the Pareto set joined; None where there are fewer than two offers."""
    if len(found.offers) < 2:
        return None
    data: list[Figure] = []
    names = list(dict.fromkeys(offer.hardware.cluster.device.name for offer in found.offers))
    front = found.pareto
    if not found.is_one_cluster:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "Pareto set",
                "x": [offer.hardware.devices for offer in front],
                "y": [offer.days for offer in front],
                "line": {"color": BEST, "dash": "dot", "width": 1.5},
                "hoverinfo": "skip",
            }
        )
    for place, name in enumerate(names):
        shown = [offer for offer in found.offers if offer.hardware.cluster.device.name == name]
        color = f"var(--series-{place % _SERIES})"
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": html.escape(name),
                "x": [offer.hardware.devices for offer in shown],
                "y": [offer.days for offer in shown],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [max(offer.days_high - offer.days, 0.0) for offer in shown],
                    "arrayminus": [max(offer.days - offer.days_low, 0.0) for offer in shown],
                    "color": color,
                    "thickness": 1,
                    "width": 0,
                },
                "marker": {"color": color, "size": 10},
                "hovertext": [
                    html.escape(f"{offer.hardware.title}: {wording.days(offer)} days")
                    + f"<br>{html.escape(offer.in_words)}<br>MFU {offer.utilization:.0%}"
                    for offer in shown
                ],
                "hoverinfo": "text",
            }
        )
    axes = {
        "xaxis": {"title": {"text": "Devices"}, "type": "log", "dtick": 0.30103},
        "yaxis": {"title": {"text": "Days"}, "type": "log" if not found.is_one_cluster else "linear"},
    }
    return {"data": data, "layout": layout(height=420, **axes)}


def _bar(name: str, labels: list[str], values: Sequence[float], place: int, unit: str) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": labels,
        "x": list(values),
        "marker": {"color": f"var(--series-{place % _SERIES})"},
        "hovertext": [
            f"{label}, {name}: {units.number(value)}{unit}" for label, value in zip(labels, values, strict=True)
        ],
        "hoverinfo": "text",
    }


def _name(row: Row) -> str:
    offload = "" if row.offload == "none" else f", {row.offload} offloaded"
    return f"stage {row.stage}{offload}{' (yours)' if row.is_own else ''}"
