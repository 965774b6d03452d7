"""What an estimate and a plan come to, in sentences."""

from __future__ import annotations

from autotune.performance.configurations import PRECISIONS
from autotune.planning import settings as settings_words
from autotune.planning.estimates import Estimates, Row
from autotune.planning.models import Model
from autotune.planning.plans import Offer, Plan
from autotune.report import units

ERROR = "Estimated, not measured; on published runs mostly within 20 %, at worst off by half or more: docs/estimate.md."
OFFLOADED = {"none": "no offload", "optimizer": "the optimizer offloaded", "both": "optimizer and parameters offloaded"}


def title(found: Estimates) -> str:
    """Return what was asked."""
    return f"{_of_model(found.model)}, {found.model.sequence:,.0f} tokens a sample, on {found.hardware.title}"


def same_in_all_rows(found: Estimates) -> str:
    """Return the settings that all rows share."""
    text = settings_words.in_words(found.settings, found.model, found.hardware)
    return f"{text}{f' (from {found.settings.source})' if found.settings.source else ''}"


def notes(found: Estimates) -> list[str]:
    """Return what was assumed."""
    return [*found.model.notes, *found.hardware.notes, *found.settings.notes]


def headline(found: Estimates) -> str:
    """Return what is fastest, or how much is missing."""
    fastest = found.fastest
    if fastest is None:
        nearest = max(found.rows, key=lambda row: (row.margin_bytes, row.host_margin_bytes))
        short = max(-nearest.margin_bytes, 0.0)
        if short:
            return (
                f"Nothing fits. Nearest is {_name(nearest)}, {units.memory(short)} short per device: try "
                "--checkpointing full, a smaller --micro-batch, or more devices."
            )
        return (
            f"Nothing fits: {_name(nearest)} fits the devices, and lacks {units.memory(-nearest.host_margin_bytes)} "
            "of host memory per node: try more nodes, NVMe in --config, or --host-memory-gib."
        )
    return (
        f"Fastest that fits: {_name(fastest)}, {units.number(fastest.tokens_per_second)} tokens/s, "
        f"{units.percent(fastest.utilization)} of the peak (MFU)."
    )


def where_time_goes(found: Estimates) -> str | None:
    """Return the shares of the fastest row's step; None where nothing fits."""
    row = found.fastest
    if row is None:
        return None
    shares = [f"{name} {units.percent(share)}" for name, share in row.where_time_goes]
    return f"Its step of {units.seconds(row.step_time_s)}: {', '.join(shares)}."


def plan_title(found: Plan) -> str:
    """Return what was asked of a plan."""
    return (
        f"{_of_model(found.model)}, on {_billions(found.tokens)} tokens: {found.flops:.2g} operations, "
        f"{_billions(found.batch_tokens)} tokens a step"
    )


def plan_headline(found: Plan) -> str:
    """Return the answer."""
    if not found.offers:
        where = found.tried[0] if len(found.tried) == 1 else "any of " + ", ".join(found.tried)
        if found.is_one_cluster:
            return f"It doesn't fit: no configuration tried leaves 10 % of the memory of {where} free."
        return f"No cluster of up to 16,384 of {where} does it in {found.days:g} days; give more --days."
    if found.is_one_cluster:
        fastest = found.offers[0]
        return (
            f"{days(fastest)} days on {fastest.hardware.title} at {units.percent(fastest.utilization)} of the peak "
            f"(MFU), with {fastest.in_words}."
        )
    fewest = found.offers[0]
    return (
        f"Fewest devices within {found.days:g} days: {fewest.hardware.title}, {days(fewest)} days with "
        f"{fewest.in_words}."
    )


def plan_notes(found: Plan) -> list[str]:
    """Return what the figures of a plan mean."""
    said = [*found.model.notes, *(note for offer in found.offers[:1] for note in offer.hardware.notes)]
    if not found.is_one_cluster and found.offers:
        said.append("* no other cluster here needs as few devices and fewer days (Pareto set)")
    if found.offers:
        said.append("batch 2 x 64: micro-batch x accumulation; TP, PP: tensor- and pipeline-parallel devices")
        said.append(
            "days are of training alone: no failures, no evaluation; from-to spans 80 % of the model's own doubt"
        )
    ratio = found.tokens / found.model.parameters
    if ratio < 5 or ratio > 200:
        said.append(f"{ratio:.3g} tokens per parameter; about 20 are compute-optimal (Hoffmann et al. 2022)")
    return said


def days(offer: Offer) -> str:
    """Return days with two or three digits."""
    return units.number(offer.days, 2 if offer.days < 10 else 3)


def span(offer: Offer) -> str:
    """Return the range of days."""
    return f"{units.number(offer.days_low, 2)}-{units.number(offer.days_high, 2)}"


def precision(found: Estimates) -> str:
    """Return the name of the number format."""
    return PRECISIONS[int(found.settings.number("precision"))]


def _of_model(model: Model) -> str:
    size = _billions(model.parameters)
    return f"{size} parameters" if model.name == size else f"{model.name}, {size} parameters"


def _name(row: Row) -> str:
    return f"stage {row.stage} with {OFFLOADED[row.offload]}"


def _billions(value: float) -> str:
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= 0.9995 * limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}"
