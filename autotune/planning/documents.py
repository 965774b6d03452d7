"""An estimate and a plan as self-contained HTML pages."""

from __future__ import annotations

from pathlib import Path

from autotune.planning import charts, tables, wording
from autotune.planning.estimates import Estimates
from autotune.planning.plans import Plan
from autotune.report import page


def write_estimate(found: Estimates, path: Path) -> None:
    """Write an estimate as one HTML file that loads nothing from elsewhere.

    Raises:
        StudyError: when the file can't be written.
    """
    unit, size = tables.memory_unit(found)
    context = {
        "title": wording.title(found),
        "headline": wording.headline(found),
        "where": wording.where_time_goes(found),
        "shared": wording.same_in_all_rows(found),
        "notes": [*wording.notes(found), wording.ERROR],
        "unit": unit,
        "capacity": f"{found.rows[0].capacity_bytes / size:,.1f}",
        "memory": tables.memory(found),
        "time": tables.time(found),
    }
    drawn = {"memory_parts": charts.memory(found), "time_parts": charts.time(found)}
    page.write(page.render("estimate.html.jinja", context, drawn, package="autotune.planning"), path)


def write_plan(found: Plan, path: Path) -> None:
    """Write a plan as one HTML file that loads nothing from elsewhere.

    Raises:
        StudyError: when the file can't be written.
    """
    context = {
        "title": wording.plan_title(found),
        "headline": wording.plan_headline(found),
        "notes": [*wording.plan_notes(found), wording.ERROR],
        "offers": tables.offers(found),
        "is_one_cluster": found.is_one_cluster,
    }
    drawn = {} if found.is_one_cluster else {"offers": charts.offers(found)}
    page.write(page.render("plan.html.jinja", context, drawn, package="autotune.planning"), path)
