"""A report as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.report import agreement, charts, finalists, findings, page, parallel, steadiness, tables, thinning
from autotune.report.effect import ROUGH_BELOW_TRIALS, effects
from autotune.report.findings import ValidationLike
from autotune.report.summary import StudySummary


def write_html(summary: StudySummary, path: Path, validation: ValidationLike | None = None) -> None:
    """Write the report of a study as one HTML file that loads nothing from elsewhere.

    Args:
        summary: of the study.
        path: of the file; its folder is made.
        validation: of the best trial, when it has been measured again.

    Raises:
        StudyError: when the file can't be written.
    """
    page.write(page.render("report.html.jinja", _context(summary, validation), _charts(summary)), path)


def _charts(summary: StudySummary) -> dict[str, charts.Figure | None]:
    drawn = thinning.drawn(summary)
    return {
        "progress": charts.progress(drawn),
        "progress_in_time": charts.progress_in_time(drawn),
        "trade_off": charts.trade_off(drawn),
        "parallel_coordinates": parallel.parallel_coordinates(drawn),
        "steadiness": charts.steadiness(summary),
        "step_times": charts.step_times(summary),
        "stage_times": charts.stage_times(summary),
    }


def _context(summary: StudySummary, validation: ValidationLike | None) -> dict[str, Any]:
    scores = [trial.score for trial in summary.completed if trial.score is not None]
    shown = effects(summary) if len(scores) > 1 else []
    return {
        "summary": summary,
        "headline": validation.headline if validation else findings.headline(summary),
        "tally": findings.tally(summary),
        "cautions": findings.cautions(summary, validation),
        "finals": tables.finals(summary),
        "finals_rule": finalists.rule(summary.finals) if summary.finals is not None else "",
        "finals_notes": finalists.notes(summary),
        "steadiness": steadiness.sentence(summary),
        "agreement": agreement.sentence(summary),
        "validation": validation,
        "validated": tables.validated(validation) if validation else None,
        "against_baseline": tables.against_baseline(summary),
        "changed_settings": tables.changed_settings(summary),
        "effects": shown,
        "effects_are_rough": len(scores) < ROUGH_BELOW_TRIALS and any(effect.explained is not None for effect in shown),
        "scores_from": min(scores, default=0.0),
        "scores_to": max(scores, default=1.0),
        "pruned": tables.pruned(summary),
        "failures": tables.failures(summary),
        "trials": tables.trials(thinning.listed(summary)),
        "drawn_in_words": thinning.drawn_in_words(summary),
        "listed_in_words": thinning.listed_in_words(summary),
        "dots": thinning.DOTS,
        "step_times": tables.step_times(summary),
        "stage_times": tables.stage_times(summary),
        "provenance": tables.provenance(summary),
    }
