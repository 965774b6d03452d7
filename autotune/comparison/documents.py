"""A comparison as a self-contained HTML page, and as Markdown."""

from __future__ import annotations

from pathlib import Path

from autotune.comparison import charts, tables, wording
from autotune.comparison.contest import Comparison
from autotune.report import markdown, page
from autotune.report.findings import SIMULATED


def write_html(comparison: Comparison, path: Path) -> None:
    """Write a comparison as one HTML file that loads nothing from elsewhere.

    Raises:
        StudyError: when the file can't be written.
    """
    context = {
        "comparison": comparison,
        "simulated": SIMULATED,
        "headline": wording.headline(comparison),
        "verdicts": wording.verdicts(comparison),
        "standings": tables.standings(comparison),
        "duels": tables.duels(comparison),
        "by_trials": tables.by_trials(comparison),
    }
    drawn = {
        "by_trials": charts.by_trials(comparison),
        "by_seconds": charts.by_seconds(comparison),
        "finals": charts.finals(comparison),
    }
    page.write(page.render("comparison.html.jinja", context, drawn, package="autotune.comparison"), path)


def to_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown: the same tables and words, without the charts."""
    parts = ["# Comparison of searchers", f"**{markdown.escaped(wording.headline(comparison))}**"]
    said = [*([SIMULATED] if comparison.is_simulated else []), *wording.verdicts(comparison), *comparison.notes]
    parts.append("\n".join(f"- {markdown.escaped(sentence)}" for sentence in said))
    parts += markdown.section("Standings", tables.standings(comparison))
    parts += markdown.section("Best R so far, by executed trials", tables.by_trials(comparison))
    parts += markdown.section("Pairs", tables.duels(comparison))
    return "\n\n".join(parts) + "\n"
