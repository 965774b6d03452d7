"""Tables of an estimate and a plan as data, and the same as plain rows for JSON and CSV."""

from __future__ import annotations

from typing import Any

import numpy as np

from autotune.planning import wording
from autotune.planning.estimates import GIB, MEMORY_PARTS, TIME_PARTS, Estimates, Row
from autotune.planning.plans import Plan
from autotune.report import units
from autotune.report.tables import Table

MIB = 2.0**20
_SMALL = 4 * GIB
"""Where no row needs more than this without the process's own share, MiB are shown."""


def memory_unit(found: Estimates) -> tuple[str, float]:
    """Return the unit that memory is shown in, and its bytes."""
    return ("GiB", GIB) if max(row.needed_bytes for row in found.rows) > _SMALL else ("MiB", MIB)


def memory(found: Estimates) -> Table:
    """Return memory of the fullest device by part, and whether it fits."""
    _, size = memory_unit(found)
    rows = tuple(
        (
            *_names(row),
            *(_amount(row.memory_bytes[part] / size) for part in MEMORY_PARTS),
            _amount(row.needed_bytes / size),
            row.verdict(unit=size),
        )
        for row in found.rows
    )
    columns = ("ZeRO", "Offload", "Params", "Grads", "Optim.", "Activ.", "Other", "Needs", "Fits")
    return Table(columns=columns, rows=rows, figures=frozenset(range(2, 8)))


def time(found: Estimates) -> Table:
    """Return the step of the rows that fit, by part, with throughput and utilisation."""
    shown = _shown_parts(found)
    rows = tuple(
        (
            *_names(row),
            units.seconds(row.step_time_s),
            *(units.percent(sum(row.time_s[part] for part in parts) / row.step_time_s) for parts in shown.values()),
            units.number(row.samples_per_second),
            units.number(row.tokens_per_second),
            units.percent(row.utilization),
            f"{row.largest_micro_batch:,}",
        )
        for row in found.fitting
    )
    columns = ("ZeRO", "Offload", "Step", *shown, "Samples/s", "Tokens/s", "MFU", "Largest micro-batch")
    return Table(columns=columns, rows=rows, figures=frozenset(range(2, len(columns))))


def estimate_records(found: Estimates) -> list[dict[str, Any]]:
    """Return the rows with units in their names."""
    return [
        {
            "stage": row.stage,
            "offload": row.offload,
            "yours": row.is_own,
            "fits": row.fits,
            "margin_bytes": round(row.margin_bytes),
            "needed_bytes": round(row.needed_bytes),
            "capacity_bytes": round(row.capacity_bytes),
            **{f"{part}_bytes": round(row.memory_bytes[part]) for part in MEMORY_PARTS},
            "host_bytes_per_node": round(row.host_bytes),
            "host_margin_bytes": round(row.host_margin_bytes),
            "step_time_s": row.step_time_s,
            **{f"{part}_s": row.time_s[part] for part in TIME_PARTS},
            "samples_per_second": row.samples_per_second,
            "tokens_per_second": row.tokens_per_second,
            "model_tflops_per_device": row.model_tflops,
            "utilization": row.utilization,
            "largest_micro_batch": row.largest_micro_batch,
        }
        for row in found.rows
    ]


def estimate_document(found: Estimates) -> dict[str, Any]:
    """Return everything of an estimate, for JSON."""
    shape, place, settings = found.model.shape, found.hardware, found.settings
    widths = (
        "parameters",
        "trainable",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "ffn_hidden",
        "sequence",
        "vocabulary",
    )
    return {
        "model": {"name": found.model.name, **{name: int(np.asarray(getattr(shape, name))) for name in widths}},
        "hardware": {
            "device": place.cluster.device.name,
            "devices": place.devices,
            "devices_per_node": place.devices_per_node,
            "network_gbps": place.gbps,
        },
        "training": {
            "precision": wording.precision(found),
            **{
                name: int(settings.number(name))
                for name in ("micro_batch", "accumulation", "tensor_parallel", "pipeline_parallel", "sequence_parallel")
            },
        },
        "notes": wording.notes(found),
        "rows": estimate_records(found),
    }


def offers(found: Plan) -> Table:
    """Return the offers of a plan; ways to train on one cluster go without the cluster's columns."""
    front = set(map(id, found.pareto))
    clusters = tuple(
        (
            f"{offer.hardware.devices:,}{'*' if id(offer) in front else ' '}",
            offer.hardware.cluster.device.name,
            f"{offer.hardware.gbps:,.0f}" if offer.hardware.nodes > 1 else units.DASH,
        )
        for offer in found.offers
    )
    figures = tuple(
        (
            wording.days(offer),
            wording.span(offer),
            units.number(offer.device_days),
            units.percent(offer.utilization),
            units.number(offer.tokens_per_second),
            f"{offer.needed_bytes / GIB:.0f} of {offer.capacity_bytes / GIB:.0f}",
            offer.in_words,
        )
        for offer in found.offers
    )
    columns = ("Days", "From-to", "Device-days", "MFU", "Tokens/s", "GiB", "Configuration")
    if found.is_one_cluster:
        return Table(columns=columns, rows=figures, figures=frozenset(range(6)))
    return Table(
        columns=("Devices", "Device", "Gb/s", *columns),
        rows=tuple((*cluster, *row) for cluster, row in zip(clusters, figures, strict=True)),
        figures=frozenset({0, 2, 3, 4, 5, 6, 7, 8}),
    )


def plan_records(found: Plan) -> list[dict[str, Any]]:
    """Return the offers with units in their names."""
    front = set(map(id, found.pareto))
    return [
        {
            "devices": offer.hardware.devices,
            "device": offer.hardware.cluster.device.name,
            "devices_per_node": offer.hardware.devices_per_node,
            "network_gbps": offer.hardware.gbps,
            "days": offer.days,
            "days_low": offer.days_low,
            "days_high": offer.days_high,
            "device_days": offer.device_days,
            "pareto": id(offer) in front,
            "utilization": offer.utilization,
            "tokens_per_second": offer.tokens_per_second,
            "stage": offer.stage,
            "offload": offer.offload,
            "tensor_parallel": offer.tensor_parallel,
            "pipeline_parallel": offer.pipeline_parallel,
            "micro_batch": offer.micro_batch,
            "accumulation": offer.accumulation,
            "checkpointing": offer.checkpointing,
            "batch_tokens": offer.batch_tokens,
            "needed_bytes": round(offer.needed_bytes),
            "capacity_bytes": round(offer.capacity_bytes),
        }
        for offer in found.offers
    ]


def _shown_parts(found: Estimates) -> dict[str, tuple[str, ...]]:
    """Return columns of shares by title; parts that are nothing in all rows have none."""
    titles = {
        "Comp.": ("computing",),
        "Recomp.": ("recomputing",),
        "Comm.": ("communication",),
        "Optim.": ("optimizer",),
        "Offl.": ("offload",),
        "Rest": ("bubble", "launching"),
    }
    return {
        title: parts
        for title, parts in titles.items()
        if any(row.time_s[part] >= 0.005 * row.step_time_s for row in found.fitting for part in parts)
    }


def _names(row: Row) -> tuple[str, str]:
    return f"{row.stage}{'*' if row.is_own else ''}", row.offload


def _amount(value: float) -> str:
    """Return an amount to a tenth below 100, else whole; nothing at all is a dash."""
    if value < 0.005:
        return units.DASH
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}"
