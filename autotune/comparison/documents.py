"""A comparison as a self-contained HTML page, and as Markdown with its curves beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune import whole_file
from autotune.comparison import charts, drawing, tables, wording
from autotune.comparison.contest import Comparison
from autotune.errors import StudyError
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
        "by_workload": tables.by_workload(comparison),
        "duels": tables.duels(comparison),
        "by_trials": tables.by_trials(comparison),
        "by_seconds": tables.by_seconds(comparison),
        "area_by_trials": tables.area_by_trials(comparison),
        "area_by_seconds": tables.area_by_seconds(comparison),
    }
    drawn = {
        "by_trials": charts.by_trials(comparison),
        "by_seconds": charts.by_seconds(comparison),
        "finals": charts.finals(comparison),
    }
    page.write(page.render("comparison.html.jinja", context, drawn, package="autotune.comparison"), path)


def write_markdown(comparison: Comparison, path: Path) -> None:
    """Write a comparison as Markdown, and its curves as SVG files beside it (NAME-trials.svg, NAME-seconds.svg).

    Raises:
        StudyError: when a file can't be written; none is then.
    """
    drawings = {"trials": _drawing(comparison, "trials")}
    if comparison.time_budget_s:
        drawings["seconds"] = _drawing(comparison, "seconds")
    beside = {name: path.with_name(f"{path.stem}-{name}.svg") for name in drawings}
    texts = {beside[name]: text for name, text in drawings.items()}
    texts[path] = to_markdown(comparison, pictures={name: other.name for name, other in beside.items()})
    try:
        whole_file.write_all(texts)
    except OSError as error:
        raise StudyError(f"can't write the report {path}: {error}; choose another path") from error


def to_markdown(comparison: Comparison, *, pictures: Mapping[str, str] | None = None) -> str:
    """Return a comparison as Markdown: the same tables and words as the page's.

    Args:
        comparison: what is shown.
        pictures: names of files with the curves over 'trials' and 'seconds'; None: no pictures.
    """
    named = pictures or {}
    parts = ["# Comparison of searchers", f"**{markdown.escaped(wording.headline(comparison))}**"]
    said = [*([SIMULATED] if comparison.is_simulated else []), *wording.verdicts(comparison), *comparison.notes]
    parts.append("\n".join(f"- {markdown.escaped(sentence)}" for sentence in said))
    parts += markdown.section("Standings", tables.standings(comparison))
    parts += markdown.section("Best R at the end, by workload", tables.by_workload(comparison))
    for name, title, best, area in (
        ("trials", "by executed trials", tables.by_trials(comparison), tables.area_by_trials(comparison)),
        ("seconds", "by wall time", tables.by_seconds(comparison), tables.area_by_seconds(comparison)),
    ):
        section = markdown.section(f"Best R so far, {title}", best)
        if section and name in named:
            section.insert(1, f"![Best R so far, {title}](<{named[name]}>)")
        parts += [*section, *markdown.section(f"Mean best R so far, {title}", area)]
    parts += markdown.section("Pairs", tables.duels(comparison))
    return "\n\n".join(parts) + "\n"


def _drawing(comparison: Comparison, name: str) -> str:
    if name == "trials":
        return drawing.curves({s.name: s.by_trials for s in comparison.standings}, "Executed trials")
    return drawing.curves({s.name: s.by_seconds for s in comparison.standings}, "Wall time, seconds")
