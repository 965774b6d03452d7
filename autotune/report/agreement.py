"""Whether trials that ran again cold trained the same, in words."""

from __future__ import annotations

from autotune.cold_checks import ColdCheck
from autotune.report import units
from autotune.report.summary import StudySummary


def line(check: ColdCheck) -> str:
    """Return a check on one line."""
    head = "cold again  "
    if check.failure is not None:
        return f"{head}  {check.failure}"
    if check.agrees:
        return f"{head}  the same losses in {units.count(check.compared_steps, 'step')}"
    return f"{head}  other losses: they differ by up to {_percent(check)}"


def sentence(summary: StudySummary) -> str | None:
    """Return how the checks went; None where there were none."""
    if not summary.cold_checks:
        return None
    wrong = [check for check in summary.cold_checks if not check.agrees]
    if not wrong:
        count = units.count(len(summary.cold_checks), "trial")
        return f"{count} ran again in cold processes, with the same losses."
    return caution(summary)


def caution(summary: StudySummary) -> str | None:
    """Return which trials trained otherwise when they ran cold; None where all agreed."""
    parts = [
        f"trial {check.trial} ({check.failure or f'losses differ by up to {_percent(check)}'})"
        for check in summary.cold_checks
        if not check.agrees
    ]
    if not parts:
        return None
    return (
        f"Run again in cold processes, {units.listed(parts)} did not train as it had warm. Don't rely on warm trials "
        "here: set execution: cold. The workload may draw on something that changes from run to run."
    )


def _percent(check: ColdCheck) -> str:
    return f"{100 * (check.difference or 0.0):.2g} %"
